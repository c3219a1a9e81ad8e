//! The state that all connections of a bridge share.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use skewbridge_k8s_api::forwarding_headers::ViaToken;
use skewbridge_k8s_api::version::Version as KubeVersion;

use crate::authentication_limit::{Attempt, AuthenticationLimit, Outcome};
use crate::buffer_budget::BufferBudget;
use crate::client_connection::ClientConnection;
use crate::cluster_state::ClusterHandle;
use crate::config::{BridgeUser, Limits};
use crate::discovery_view::Complete;
use crate::drain::Drain;
use crate::live_config::LiveConfig;
use crate::metrics::Metrics;
use crate::metrics::connections::Credential;
use crate::self_test::SelfTest;
use crate::signatures::Signatures;
use crate::streams::Streams;

/// Where an administrator finds the details that answers to clients leave out.
const ADMIN_SAYS_WHY: &str = "/readyz?verbose at --admin-address says why";

/// Why the bridge itself is not ready.
const NOT_ACQUAINTED: &str = "the bridge has not heard from upstream yet";

/// What all connections of a bridge share.
#[derive(Debug)]
pub(crate) struct GatewayState {
    /// Certificates, CAs and where upstream is, as they are now.
    pub live: Arc<LiveConfig>,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether the bridge is leaving.
    pub drain: Drain,
    /// Marks requests that have been here.
    pub via: ViaToken,
    /// Which kube-apiserver is behind us, once it has said so.
    pub upstream_version: ArcSwapOption<KubeVersion>,
    /// Whether upstream has been ready, and asked for its version, before.
    pub acquainted: AtomicBool,
    /// Bounds.
    pub limits: Limits,
    /// `Host` for clients of HTTP/1.0, who send none.
    pub default_host: HeaderValue,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Where in the time of draining the next watch ends.
    pub next_share: AtomicU8,
    /// The other servers of the cluster, where they are to be known.
    pub interop: Option<Arc<ClusterHandle>>,
    /// There are no other servers to be known, although there should be.
    pub alone: bool,
    /// Whether all of discovery is that of the whole cluster.
    pub(crate) complete: Complete,
    /// Requests that went to peers so far.
    pub turns: AtomicU64,
    /// How exec, attach and port-forward are carried.
    pub(crate) streams: Streams,
    /// Whether upstream believes what the bridge asserts.
    pub self_test: Arc<SelfTest>,
    /// The user of its own requests.
    pub(crate) own_user: BridgeUser,
    /// Judges signed requests, where there are keys.
    pub(crate) signatures: Option<Signatures>,
    /// Limits failed authentications per source.
    pub(crate) authentication_limit: AuthenticationLimit,
    /// Bytes held for all clients.
    pub(crate) buffers: Arc<BufferBudget>,
}

impl GatewayState {
    /// Why it is not ready although upstream is. Anonymous clients may read this: it
    /// names no file and no address, which the admin port does.
    pub(crate) fn unreadiness(&self) -> Option<String> {
        if !self.acquainted.load(Ordering::Relaxed) {
            return Some(NOT_ACQUAINTED.to_owned());
        }
        if self.self_test.problem().is_some() {
            return Some(format!("the self-test has not passed; {ADMIN_SAYS_WHY}"));
        }
        let interop = self.interop.as_ref()?;
        match interop.cluster.load().missing() {
            Some(missing) => Some(format!("the bridge does not know yet {}", missing.as_str())),
            None => interop
                .registry_unread()
                .map(|_| format!("addresses of peers have not been read yet; {ADMIN_SAYS_WHY}")),
        }
    }

    /// Counts a refused credential, and charges it to the source unless the connection has
    /// authenticated.
    pub(crate) fn note_authentication_failure(
        &self,
        client: &ClientConnection,
        credential: Credential,
        attempt: Option<&Attempt<'_>>,
    ) {
        self.metrics.connections().authentication_failed(credential);
        client.note_failure();
        if let Some(attempt) = attempt {
            attempt.settle(Outcome::Refused);
        }
    }

    /// A number that spreads load: not a secret, only never the same for long.
    pub(crate) fn chance(&self) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        turn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The kube-apiserver behind us, as it is called in answers: one that comes
    /// by way of another bridge has to say which.
    pub(crate) fn upstream_name(&self) -> Cow<'static, str> {
        match &self.interop {
            Some(interop) => format!("the kube-apiserver {}", interop.local.name()).into(),
            None => "the kube-apiserver behind this gateway".into(),
        }
    }
}

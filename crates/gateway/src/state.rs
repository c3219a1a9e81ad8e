//! The state that all connections of a bridge share.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use skewbridge_k8s_api::forwarding_headers::ViaToken;
use skewbridge_k8s_api::version::Version as KubeVersion;

use crate::authentication_limit::{Attempt, AuthenticationLimit, Outcome};
use crate::client_connection::ClientConnection;
use crate::cluster_state::ClusterHandle;
use crate::config::{BridgeUser, Limits};
use crate::discovery_view::Complete;
use crate::live_config::LiveConfig;
use crate::metrics::Metrics;
use crate::metrics::connections::Credential;
use crate::self_test::SelfTest;
use crate::signatures::Signatures;
use crate::streams::Streams;
use skewbridge_http_engine::buffer_budget::BufferBudget;
use skewbridge_http_engine::drain::Drain;

/// Where an administrator finds the details that answers to clients leave out.
const ADMIN_SAYS_WHY: &str = "/readyz?verbose at --admin-address says why";

/// Why the bridge itself is not ready.
const UPSTREAM_NOT_SEEN: &str = "the bridge has not heard from upstream yet";

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
    pub upstream_seen_ready: AtomicBool,
    /// Bounds.
    pub limits: Limits,
    /// `Host` for clients of HTTP/1.0, who send none.
    pub default_host: HeaderValue,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Where in the time of draining the next watch ends.
    pub next_drain_slot: AtomicU8,
    /// The other servers of the cluster, where they are to be known.
    pub cluster_handle: Option<Arc<ClusterHandle>>,
    /// There are no other servers to be known, although there should be.
    pub peering_unavailable: bool,
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
        if !self.upstream_seen_ready.load(Ordering::Relaxed) {
            return Some(UPSTREAM_NOT_SEEN.to_owned());
        }
        if self.self_test.problem().is_some() {
            return Some(format!("the self-test has not passed; {ADMIN_SAYS_WHY}"));
        }
        let cluster_handle = self.cluster_handle.as_ref()?;
        match cluster_handle.cluster.load().missing() {
            Some(missing) => Some(format!("the bridge does not know yet {}", missing.as_str())),
            None => cluster_handle
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

    /// A seed for load balancing: not a secret, but different for each request.
    pub(crate) fn next_lb_seed(&self) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        turn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The name of the local kube-apiserver in responses. Behind another bridge it has to say
    /// which server it is.
    pub(crate) fn upstream_name(&self) -> Cow<'static, str> {
        match &self.cluster_handle {
            Some(cluster_handle) => {
                format!("the kube-apiserver {}", cluster_handle.local.name()).into()
            }
            None => "the kube-apiserver behind this gateway".into(),
        }
    }
}

//! The state that all connections of a bridge share. With several values of `--upstream` there is one
//! for each, and what concerns clients is shared between them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use skewbridge_http_engine::buffer_budget::BufferBudget;
use skewbridge_http_engine::drain::Drain;
use skewbridge_k8s_api::component::Component;
use skewbridge_k8s_api::forwarding_headers::ViaToken;
use skewbridge_k8s_api::version::Version as KubeVersion;

use crate::activity::Activity;
use crate::activity::traffic::ServerTraffic;
use crate::authentication_limit::{Attempt, AuthenticationLimit, Outcome};
use crate::client_connection::ClientConnection;
use crate::cluster_state::ClusterHandle;
use crate::config::{BridgeUser, Guards, Limits};
use crate::discovery_view::CompleteDiscovery;
use crate::leaders::Leaders;
use crate::live_config::LiveConfig;
use crate::local_health::LocalHealth;
use crate::metrics::Metrics;
use crate::metrics::connections::Credential;
use crate::routing::PlacementInput;
use crate::self_test::SelfTest;
use crate::signatures::Signatures;
use crate::streams::Streams;
use crate::upstream::UpstreamTargets;
use crate::vanishing::ledger::Ledger;

/// Where an administrator finds the details that responses to clients omit.
const ADMIN_HINT: &str = "/readyz?verbose at --admin-address shows the cause";

/// Why the bridge itself is not ready.
const UPSTREAM_NOT_SEEN: &str = "upstream has not been ready yet";

/// Pairs of component and minor version that are logged. Clients choose their `User-Agent`, so this
/// bounds memory and log lines.
const MAX_LOGGED_COMPONENTS: usize = 64;

/// The state that all connections of a bridge share.
#[derive(Debug)]
pub(crate) struct GatewayState {
    /// Certificates and CAs, replaced when files change.
    pub live: Arc<LiveConfig>,
    /// For new connections to upstream and to peers.
    pub targets: Arc<ArcSwap<UpstreamTargets>>,
    /// Metrics of the bridge.
    pub metrics: Metrics,
    /// What the bridge is doing, for the status page.
    pub(crate) activity: Arc<Activity>,
    /// The traffic of the local server.
    pub(crate) traffic: Arc<ServerTraffic>,
    /// Whether the bridge is shutting down.
    pub drain: Drain,
    /// Marks requests that have passed this bridge.
    pub via: Arc<ViaToken>,
    /// The version of upstream, once known.
    pub upstream_version: ArcSwapOption<KubeVersion>,
    /// Whether upstream has been ready, and its version has been requested.
    pub upstream_seen_ready: AtomicBool,
    /// Limits for clients.
    pub limits: Limits,
    /// `Host` for requests without one (HTTP/1.0): host and port of upstream.
    pub default_host: HeaderValue,
    /// Whether each request is logged.
    pub access_log: bool,
    /// The slot of the drain period in which the next watch ends.
    pub next_drain_slot: AtomicU8,
    /// Whether upstream can be expected to answer.
    pub(crate) local_health: Arc<LocalHealth>,
    /// The cluster snapshot; `None` without peering.
    pub cluster_handle: Option<Arc<ClusterHandle>>,
    /// Peering is enabled, but cannot be configured.
    pub peering_unavailable: bool,
    /// Whether all discovery responses contain merged discovery.
    pub(crate) complete_discovery: CompleteDiscovery,
    /// The counter for load-balancing seeds.
    pub lb_seed: AtomicU64,
    /// Settings of exec, attach and port-forward streams.
    pub(crate) streams: Streams,
    /// Whether upstream accepts users that the bridge asserts.
    pub self_test: Arc<SelfTest>,
    /// The user of the bridge's own requests.
    pub(crate) bridge_user: BridgeUser,
    /// Verifies signed requests, if there are keys.
    pub(crate) signatures: Option<Arc<Signatures>>,
    /// `--guard-*`.
    pub(crate) guards: Guards,
    /// Components for which a missing newer server has been logged.
    pub(crate) logged_components: Arc<Mutex<BTreeSet<(String, u16)>>>,
    /// Limits failed authentications per source.
    pub(crate) authentication_limit: Arc<AuthenticationLimit>,
    /// Buffered bytes of all clients.
    pub(crate) buffers: Arc<BufferBudget>,
    /// Calls to APIs that the next minor version does not serve.
    pub(crate) ledger: Arc<Ledger>,
    /// The leaders of the control plane, as far as they use this bridge.
    pub(crate) leaders: Arc<Leaders>,
}

impl GatewayState {
    /// Why the bridge is not ready although upstream is. Anonymous clients may read this text: it
    /// contains no files and no addresses. The admin port shows them.
    pub(crate) fn unreadiness(&self) -> Option<String> {
        if !self.upstream_seen_ready.load(Ordering::Relaxed) {
            return Some(UPSTREAM_NOT_SEEN.to_owned());
        }
        if self.self_test.problem().is_some() {
            return Some(format!("the self-test has not passed; {ADMIN_HINT}"));
        }
        let cluster_handle = self.cluster_handle.as_ref()?;
        match cluster_handle.cluster.load().missing() {
            Some(missing) => Some(format!("the bridge does not know {} yet", missing.as_str())),
            None => cluster_handle
                .registry_unread()
                .map(|_| format!("addresses of peers have not been read yet; {ADMIN_HINT}")),
        }
    }

    /// Counts a rejected credential, and charges it to the source unless the connection has
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

    /// Logs, once for each component and minor version, that no available server is as new as the
    /// component.
    pub(crate) fn log_older_server(&self, component: Component<'_>) {
        let mut logged = (self.logged_components.lock()).unwrap_or_else(PoisonError::into_inner);
        let is_new = logged.len() < MAX_LOGGED_COMPONENTS
            && logged.insert((component.name.to_owned(), component.version.minor));
        if is_new {
            tracing::warn!(component = component.name, version = %component.version, "no available kube-apiserver is as new as a component; the newest one gets its requests");
        }
    }

    /// The inputs of the placement rules for a request of this component.
    pub(crate) fn placement_input(&self, component: Option<Component<'_>>) -> PlacementInput {
        PlacementInput {
            component: component.map(|it| it.version),
            fields: self.guards.fields,
            admission: self.guards.admission,
        }
    }

    /// `--upstream`, for the log.
    pub(crate) fn url(&self) -> String {
        let host = self.default_host.to_str().unwrap_or_default();
        format!("https://{host}")
    }

    /// A seed for load balancing: not a secret, but different for each request.
    pub(crate) fn next_lb_seed(&self) -> u64 {
        let count = self.lb_seed.fetch_add(1, Ordering::Relaxed);
        count.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The name of the local server in responses. With peering it contains the identity, because
    /// the response may pass through another bridge.
    pub(crate) fn upstream_name(&self) -> Cow<'static, str> {
        match &self.cluster_handle {
            Some(cluster_handle) => {
                format!("the kube-apiserver {}", cluster_handle.local.name()).into()
            }
            None => "the kube-apiserver behind this bridge".into(),
        }
    }
}

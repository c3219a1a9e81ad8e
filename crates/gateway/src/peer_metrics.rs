//! What is counted of peers: under the names of KEP-4020, under those that
//! kube-apiserver uses on the wire, and under our own where neither has one.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use skewbridge_api::request_info::RequestInfo;
use skewbridge_peers::{Identity, Peers};

use crate::upstream::SendError;

/// Counters of peers.
#[derive(Debug)]
pub(crate) struct PeerMetrics {
    rerouted: Family<ReroutedLabels, Counter>,
    rerouted_to: Family<PeerCodeLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    sync_errors: Family<TypeLabels, Counter>,
    duration: Family<PeerLabels, Histogram, fn() -> Histogram>,
    age: Family<PeerLabels, Gauge>,
    taking_part: Gauge,
}

/// The resource is one that a peer has announced: the labels are bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReroutedLabels {
    code: u16,
    group: String,
    version: String,
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    r#type: &'static str,
    group: String,
    version: String,
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabels {
    peer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerCodeLabels {
    peer: String,
    code: u16,
}

/// Why a peer did not take a request. The first two are kube-apiserver's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerError {
    /// No peer that serves it has an address.
    NoAddress,
    /// No connection.
    Connect,
    /// It would not take it.
    Declined,
    /// It broke off.
    CutOff,
}

impl PeerError {
    pub(crate) fn of(error: &SendError) -> Self {
        match error {
            SendError::Connect(_) => Self::Connect,
            SendError::NotProcessed(_) | SendError::GoneAway(_) | SendError::Declined(_) => {
                Self::Declined
            }
            SendError::CutOff(_) | SendError::BadAnswer(_) | SendError::Client(_) => Self::CutOff,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::NoAddress => "endpoint_resolution",
            Self::Connect => "proxy_transport",
            Self::Declined => "declined",
            Self::CutOff => "cut_off",
        }
    }
}

/// Why it is not known what a peer serves, in kube-apiserver's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncError {
    /// The Leases cannot be read.
    Leases,
    /// A peer did not tell.
    Fetch,
}

impl SyncError {
    fn labels(self) -> TypeLabels {
        TypeLabels {
            r#type: match self {
                Self::Leases => "lease_list",
                Self::Fetch => "fetch_discovery",
            },
        }
    }
}

/// A family that is described before it has its first sample, so that who looks
/// for it finds it.
#[derive(Debug)]
struct Announced<M>(M);

impl<M: EncodeMetric> EncodeMetric for Announced<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }
}

/// From the next rack to a slow list.
const DURATION_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0,
];

fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

impl PeerMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let duration: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(duration_histogram);
        let metrics = Self {
            rerouted: Family::default(),
            rerouted_to: Family::default(),
            errors: Family::default(),
            sync_errors: Family::default(),
            duration,
            age: Family::default(),
            taking_part: Gauge::default(),
        };
        for name in [
            "apiserver_rerouted_request",
            "kubernetes_apiserver_rerouted_request",
        ] {
            registry.register(
                name,
                "Requests answered by a peer because the local kube-apiserver does not serve them",
                Announced(metrics.rerouted.clone()),
            );
        }
        registry.register(
            "apiserver_peer_proxy_errors",
            "Requests that a peer did not take, by cause",
            Announced(metrics.errors.clone()),
        );
        registry.register(
            "apiserver_peer_discovery_sync_errors",
            "Failures to learn what peers serve, by cause",
            Announced(metrics.sync_errors.clone()),
        );
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "rerouted_requests",
            "Requests answered by a peer, by peer",
            Announced(metrics.rerouted_to.clone()),
        );
        bridge.register(
            "peer_request_duration_seconds",
            "Time from sending a request to a peer to the head of its answer",
            Announced(metrics.duration.clone()),
        );
        bridge.register(
            "peer_discovery_age_seconds",
            "How long ago a peer last told what it serves",
            Announced(metrics.age.clone()),
        );
        bridge.register(
            "peering",
            "Whether peers are asked for what the local kube-apiserver does not serve",
            metrics.taking_part.clone(),
        );
        // All there can be: an alert sees them begin at zero.
        for cause in [SyncError::Leases, SyncError::Fetch] {
            metrics.sync_errors.get_or_create(&cause.labels()).inc_by(0);
        }
        metrics
    }

    pub(crate) fn taking_part(&self, takes_part: bool) {
        self.taking_part.set(i64::from(takes_part));
    }

    pub(crate) fn rerouted(
        &self,
        peer: &Identity,
        request: &RequestInfo<'_>,
        status: StatusCode,
        took: Duration,
    ) {
        let code = status.as_u16();
        let labels = ReroutedLabels {
            code,
            group: request.group.to_owned(),
            version: request.version.to_owned(),
            resource: request.resource.to_owned(),
        };
        self.rerouted.get_or_create(&labels).inc();
        let peer = peer.to_string();
        self.duration
            .get_or_create(&PeerLabels { peer: peer.clone() })
            .observe(took.as_secs_f64());
        let labels = PeerCodeLabels { peer, code };
        self.rerouted_to.get_or_create(&labels).inc();
    }

    pub(crate) fn error(&self, cause: PeerError, request: &RequestInfo<'_>) {
        let labels = ErrorLabels {
            r#type: cause.as_str(),
            group: request.group.to_owned(),
            version: request.version.to_owned(),
            resource: request.resource.to_owned(),
        };
        self.errors.get_or_create(&labels).inc();
    }

    pub(crate) fn sync_error(&self, cause: SyncError) {
        self.sync_errors.get_or_create(&cause.labels()).inc();
    }

    /// Those that are gone have no age any more.
    pub(crate) fn ages(&self, peers: &Peers) {
        self.age.clear();
        for peer in &peers.peers {
            let Some(age) = peer.succeeded.and_then(|at| at.elapsed().ok()) else {
                continue;
            };
            let labels = PeerLabels {
                peer: peer.identity.to_string(),
            };
            let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            self.age.get_or_create(&labels).set(seconds);
        }
    }
}

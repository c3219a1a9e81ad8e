//! All metrics of the bridge. Each metric has a help line here and one owner that updates it; labels
//! are bounded.

pub(crate) mod admin;
pub(crate) mod backends;
pub(crate) mod buffers;
pub(crate) mod connections;
mod described;
pub(crate) mod discovery;
#[cfg(test)]
mod documentation;
pub mod headers;
pub(crate) mod peers;
pub(crate) mod placement;
pub(crate) mod process;
pub(crate) mod signatures;
pub(crate) mod streams;
pub(crate) mod vanishing;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use admin::AdminMetrics;
use backends::{BackendFamilies, BackendMetrics};
use buffers::BufferMetrics;
use connections::ConnectionMetrics;
use described::Described;
use discovery::DiscoveryMetrics;
use headers::HeaderMetrics;
use peers::PeerMetrics;
use placement::PlacementMetrics;
use process::ProcessMetrics;
use signatures::SignatureMetrics;
use streams::StreamMetrics;
use vanishing::VanishingMetrics;

/// A gauge, owned by the code that changes it.
pub type Gauge = gauge::Gauge<i64, AtomicI64>;

/// All metrics of a bridge; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    duration: Family<RequestLabels, Histogram, fn() -> Histogram>,
    response_bytes: Counter,
    client_connections: Gauge,
    upstream_connections: Family<ConnectionLabels, Gauge>,
    upstream_streams: Family<LegLabels, Gauge>,
    upstream_retries: Counter,
    handshake_failures: Family<ReasonLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
    certificate_expiry: Family<FlagLabels, gauge::Gauge<u64, AtomicU64>>,
    ready: Gauge,
    self_test: Family<TestLabels, Gauge>,
    peers: PeerMetrics,
    discovery: DiscoveryMetrics,
    streams: StreamMetrics,
    placement: PlacementMetrics,
    signatures: SignatureMetrics,
    connections: ConnectionMetrics,
    buffers: BufferMetrics,
    headers: HeaderMetrics,
    backends: BackendFamilies,
    admin: AdminMetrics,
    vanishing: VanishingMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    /// The deprecated label; `destination` has other names for some values.
    route: &'static str,
    destination: &'static str,
    verb: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectionLabels {
    /// The deprecated label; `identity` has another name for one value.
    leg: &'static str,
    identity: &'static str,
    protocol: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegLabels {
    /// As in [`ConnectionLabels`].
    leg: &'static str,
    identity: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    flag: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlagLabels {
    flag: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TestLabels {
    test: &'static str,
}

/// The value of the deprecated label `route`.
fn deprecated_route(destination: &'static str) -> &'static str {
    match destination {
        "rejected" => "refuse",
        "unrouted" => "none",
        destination => destination,
    }
}

/// The value of the deprecated label `leg`.
fn deprecated_leg(identity: &'static str) -> &'static str {
    match identity {
        "anonymous-or-token" => "plain",
        identity => identity,
    }
}

/// From a cached read to a slow list, a range as wide as that of kube-apiserver.
const DURATION_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];

fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics with the value zero.
    #[allow(clippy::too_many_lines)] // a few lines for each metric
    pub fn new() -> Self {
        let requests = Family::default();
        let duration: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(duration_histogram);
        let response_bytes = Counter::default();
        let client_connections = Gauge::default();
        let upstream_connections = Family::default();
        let upstream_streams = Family::default();
        let upstream_retries = Counter::default();
        let handshake_failures = Family::default();
        let reloads = Family::default();
        let certificate_expiry = Family::default();
        let ready = Gauge::default();
        let self_test = Family::default();

        let mut registry = Registry::default();
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "build",
            "The running build",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        bridge.register(
            "requests",
            "Requests, by destination, verb and code (499: the client disconnected first)",
            Described(Family::clone(&requests)),
        );
        bridge.register(
            "request_duration_seconds",
            "Time from the head of a request to the end of its response",
            Described(Family::clone(&duration)),
        );
        bridge.register(
            "response_bytes",
            "Bytes of response bodies sent to clients",
            response_bytes.clone(),
        );
        bridge.register(
            "client_connections",
            "Open connections from clients",
            client_connections.clone(),
        );
        bridge.register(
            "upstream_connections",
            "Open connections to the kube-apiserver behind this bridge, and to peers",
            Described(Family::clone(&upstream_connections)),
        );
        bridge.register(
            "upstream_streams",
            "Requests in flight on HTTP/2 connections to upstream",
            Described(Family::clone(&upstream_streams)),
        );
        bridge.register(
            "upstream_retries",
            "Requests that upstream had not processed and that were retried",
            upstream_retries.clone(),
        );
        bridge.register(
            "tls_handshake_failures",
            "Client connections that ended before a request, by reason",
            Described(Family::clone(&handshake_failures)),
        );
        bridge.register(
            "file_reloads",
            "Reloads of changed files, by flag and result",
            Described(Family::clone(&reloads)),
        );
        bridge.register(
            "certificate_expiration_timestamp_seconds",
            "When the first certificate of a flag expires",
            Described(Family::clone(&certificate_expiry)),
        );
        bridge.register(
            "ready",
            "Whether bridge and upstream are both ready",
            ready.clone(),
        );
        bridge.register(
            "self_test_up",
            "Whether a self-test passed in its last run; no series without a result",
            Described(Family::clone(&self_test)),
        );
        let peers = PeerMetrics::register(&mut registry);
        let discovery = DiscoveryMetrics::register(&mut registry);
        let streams = StreamMetrics::register(&mut registry);
        let placement = PlacementMetrics::register(&mut registry);
        let signatures = SignatureMetrics::register(&mut registry);
        let connections = ConnectionMetrics::register(&mut registry);
        let buffers = BufferMetrics::register(&mut registry);
        let headers = HeaderMetrics::register(&mut registry);
        let backends = BackendFamilies::register(&mut registry);
        let admin = AdminMetrics::register(&mut registry);
        let vanishing = VanishingMetrics::register(&mut registry);
        registry.register_collector(Box::new(ProcessMetrics));
        Self(Arc::new(Inner {
            registry,
            requests,
            duration,
            response_bytes,
            client_connections,
            upstream_connections,
            upstream_streams,
            upstream_retries,
            handshake_failures,
            reloads,
            certificate_expiry,
            ready,
            self_test,
            peers,
            discovery,
            streams,
            placement,
            signatures,
            connections,
            buffers,
            headers,
            backends,
            admin,
            vanishing,
        }))
    }

    /// In the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.0.registry);
        text
    }

    /// Metrics of discovery.
    pub(crate) fn discovery(&self) -> &DiscoveryMetrics {
        &self.0.discovery
    }

    /// Metrics of calls to APIs that the next minor version does not serve.
    pub(crate) fn vanishing(&self) -> &VanishingMetrics {
        &self.0.vanishing
    }

    /// Metrics of peers.
    pub(crate) fn peers(&self) -> &PeerMetrics {
        &self.0.peers
    }

    /// Metrics of exec, attach and port-forward.
    pub(crate) fn streams(&self) -> &StreamMetrics {
        &self.0.streams
    }

    /// Metrics of signed requests.
    pub(crate) fn placement(&self) -> &PlacementMetrics {
        &self.0.placement
    }

    pub(crate) fn signatures(&self) -> &SignatureMetrics {
        &self.0.signatures
    }

    /// Metrics of client connections and of failed authentications.
    pub(crate) fn connections(&self) -> &ConnectionMetrics {
        &self.0.connections
    }

    /// Metrics of the secure admin port.
    pub(crate) fn admin(&self) -> &AdminMetrics {
        &self.0.admin
    }

    /// Metrics of buffered bytes.
    pub(crate) fn buffers(&self) -> &BufferMetrics {
        &self.0.buffers
    }

    /// Metrics of header limits.
    pub(crate) fn headers(&self) -> &HeaderMetrics {
        &self.0.headers
    }

    pub(crate) fn request(
        &self,
        destination: &'static str,
        verb: &'static str,
        code: u16,
        took: Duration,
        bytes: u64,
    ) {
        let inner = &*self.0;
        let labels = RequestLabels {
            route: deprecated_route(destination),
            destination,
            verb,
            code,
        };
        inner.requests.get_or_create(&labels).inc();
        inner
            .duration
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        inner.response_bytes.inc_by(bytes);
    }

    pub(crate) fn client_connections(&self) -> Gauge {
        self.0.client_connections.clone()
    }

    pub(crate) fn upstream_connections(
        &self,
        identity: &'static str,
        protocol: &'static str,
    ) -> Gauge {
        let labels = ConnectionLabels {
            leg: deprecated_leg(identity),
            identity,
            protocol,
        };
        self.0.upstream_connections.get_or_create_owned(&labels)
    }

    pub(crate) fn upstream_streams(&self, identity: &'static str) -> Gauge {
        let leg = deprecated_leg(identity);
        let labels = LegLabels { leg, identity };
        self.0.upstream_streams.get_or_create_owned(&labels)
    }

    /// The metrics of one backend, by host and port.
    pub(crate) fn backend(&self, upstream: &str) -> BackendMetrics {
        self.0.backends.of(upstream)
    }

    /// Removes the metrics of a backend.
    pub(crate) fn remove_backend(&self, upstream: &str) {
        self.0.backends.remove(upstream);
    }

    pub(crate) fn upstream_retry(&self) {
        self.0.upstream_retries.inc();
    }

    pub(crate) fn handshake_failed(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.0.handshake_failures.get_or_create(&labels).inc();
    }

    /// Creates the series of a flag, so that the first failure is an increase.
    pub(crate) fn will_reload(&self, flag: &'static str) {
        for result in ["ok", "failed"] {
            let labels = ReloadLabels { flag, result };
            drop(self.0.reloads.get_or_create(&labels));
        }
    }

    pub(crate) fn reloaded(&self, flag: &'static str) {
        self.count_reload(flag, "ok");
    }

    pub(crate) fn reload_failed(&self, flag: &'static str) {
        self.count_reload(flag, "failed");
    }

    fn count_reload(&self, flag: &'static str, result: &'static str) {
        let labels = ReloadLabels { flag, result };
        self.0.reloads.get_or_create(&labels).inc();
    }

    pub(crate) fn certificate_expires(&self, flag: &'static str, at: u64) {
        let labels = FlagLabels { flag };
        self.0.certificate_expiry.get_or_create(&labels).set(at);
    }

    /// The results of the last self-test. A test without a result has no series.
    pub(crate) fn self_test(&self, results: impl Iterator<Item = (&'static str, bool)>) {
        self.0.self_test.clear();
        for (test, passed) in results {
            let passed = i64::from(passed);
            let up = self.0.self_test.get_or_create(&TestLabels { test });
            up.set(passed);
        }
    }

    pub(crate) fn ready(&self, ready: bool) {
        self.0.ready.set(i64::from(ready));
    }
}

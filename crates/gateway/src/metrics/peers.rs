//! Metrics of peers: with the names of KEP-4020, with those of kube-apiserver, and with names of the
//! bridge where neither has one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_peer_directory::registry::RegistryStatus;

use super::described::Described;
use skewbridge_peer_directory::{Identity, Peer, Peers, reachability};

/// Counters of peers.
#[derive(Debug)]
pub(crate) struct PeerMetrics {
    rerouted: Family<ReroutedLabels, Counter>,
    rerouted_to: Family<PeerCodeLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    sync_errors: Family<TypeLabels, Counter>,
    duration: Family<PeerLabels, Histogram, fn() -> Histogram>,
    age: Family<PeerLabels, Gauge>,
    up: Family<PeerLabels, Gauge>,
    polls: Family<PollLabels, Counter>,
    registry_up: Gauge,
    peering_enabled: Gauge,
    member: AtomicBool,
    without_bridge: Gauge,
    series: Mutex<Series>,
}

/// The existing series of peers.
#[derive(Debug, Default)]
struct Series {
    /// Peers with series, and the status codes of their responses.
    peers: HashMap<PeerLabels, BTreeSet<u16>>,
    /// A cache of the series of recent rerouted requests, oldest first: a lookup by labels
    /// allocates seven strings.
    recent: Vec<CachedSeries>,
}

/// More combinations of resource and code than a control plane usually reroutes at a time.
const MAX_CACHED_SERIES: usize = 32;

/// The series of rerouted requests with the same labels.
#[derive(Debug)]
struct CachedSeries {
    identity: Identity,
    host: Option<String>,
    group: String,
    version: String,
    resource: String,
    code: u16,
    counted: [Counter; 2],
    duration: Histogram,
}

impl CachedSeries {
    fn matches(&self, peer: &Peer, request: &RequestInfo<'_>, code: u16) -> bool {
        self.code == code
            && self.resource == request.resource
            && self.group == request.group
            && self.version == request.version
            && self.identity == peer.identity
            && self.host == peer.host
    }
}

impl Series {
    /// Notes that a peer has series, so that they can be removed with the peer.
    fn note(&mut self, labels: PeerLabels, code: Option<u16>) {
        self.peers.entry(labels).or_default().extend(code);
    }
}

/// The values of `result` in [`PollLabels`].
const POLL_OK: &str = "ok";
const POLL_FAILED: &str = "failed";

/// The labels are bounded, because the resource is one that a peer serves.
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct PeerLabels {
    peer: String,
    host: String,
}

impl PeerLabels {
    /// The host is empty if it is not known.
    fn of(peer: &Peer) -> Self {
        Self {
            peer: peer.identity.to_string(),
            host: peer.name().host().unwrap_or_default().to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerCodeLabels {
    peer: String,
    host: String,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PollLabels {
    peer: String,
    host: String,
    result: &'static str,
}

/// Why a peer did not accept a request. The labels of the first two are those of kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerErrorType {
    /// No peer that serves it has an address.
    NoAddress,
    /// No connection.
    Connect,
    /// The peer declined it.
    Declined,
    /// The connection was lost.
    ConnectionLost,
}

impl PeerErrorType {
    fn as_str(self) -> &'static str {
        match self {
            Self::NoAddress => "endpoint_resolution",
            Self::Connect => "proxy_transport",
            Self::Declined => "declined",
            // `connection_lost` from the next release on (CHANGELOG, "Deprecated names").
            Self::ConnectionLost => "cut_off",
        }
    }
}

/// Why discovery of peers failed. The labels are those of kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncErrorType {
    /// Leases cannot be listed or watched.
    Leases,
    /// A poll of a peer failed.
    Fetch,
}

impl SyncErrorType {
    fn labels(self) -> TypeLabels {
        TypeLabels {
            r#type: match self {
                Self::Leases => "lease_list",
                Self::Fetch => "fetch_discovery",
            },
        }
    }
}

/// From a peer in the next rack to a slow list.
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
            up: Family::default(),
            polls: Family::default(),
            registry_up: Gauge::default(),
            peering_enabled: Gauge::default(),
            member: AtomicBool::new(false),
            without_bridge: Gauge::default(),
            series: Mutex::default(),
        };
        for name in [
            "apiserver_rerouted_request",
            "kubernetes_apiserver_rerouted_request",
        ] {
            registry.register(
                name,
                "Requests sent to peers because the local kube-apiserver does not serve them, by the code of the response: that of the peer, or that of the bridge if no peer answered",
                Described(metrics.rerouted.clone()),
            );
        }
        registry.register(
            "apiserver_peer_proxy_errors",
            "Requests that a peer did not accept, by cause",
            Described(metrics.errors.clone()),
        );
        registry.register(
            "apiserver_peer_discovery_sync_errors",
            "Failed discovery of peers, by cause",
            Described(metrics.sync_errors.clone()),
        );
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "rerouted_requests",
            "Requests sent to peers, by the peer that answered or was tried last (empty: none had an address) and by the code of the response",
            Described(metrics.rerouted_to.clone()),
        );
        bridge.register(
            "peer_request_duration_seconds",
            "Time from sending a request to a peer to the head of its response",
            Described(metrics.duration.clone()),
        );
        bridge.register(
            "peer_discovery_age_seconds",
            "Time since the last successful discovery poll of a peer",
            Described(metrics.age.clone()),
        );
        bridge.register(
            "peer_up",
            "Whether a peer can be reached: 1 if the last discovery poll and the last request were answered",
            Described(metrics.up.clone()),
        );
        bridge.register(
            "peer_discovery_polls",
            "Discovery polls of peers, by peer and result",
            Described(metrics.polls.clone()),
        );
        bridge.register(
            "peer_registry_up",
            "Whether the registry of peer addresses can be read and written",
            metrics.registry_up.clone(),
        );
        bridge.register(
            "peering_enabled",
            "Whether requests that the local kube-apiserver does not serve are sent to peers",
            metrics.peering_enabled.clone(),
        );
        bridge.register(
            "peering",
            "Deprecated: skewbridge_peering_enabled",
            metrics.peering_enabled.clone(),
        );
        bridge.register(
            "peers_without_bridge",
            "Peers whose bridge announced its departure and has not returned",
            metrics.without_bridge.clone(),
        );
        // All series exist from the start, so that the first error is an increase.
        for cause in [SyncErrorType::Leases, SyncErrorType::Fetch] {
            metrics.sync_errors.get_or_create(&cause.labels()).inc_by(0);
        }
        metrics
    }

    /// Creates one series of each family, so that their labels can be listed.
    #[cfg(test)]
    pub(super) fn create_series(&self) {
        let name = String::new;
        drop(self.rerouted.get_or_create(&ReroutedLabels {
            code: 200,
            group: name(),
            version: name(),
            resource: name(),
        }));
        drop(self.rerouted_to.get_or_create(&PeerCodeLabels {
            peer: name(),
            host: name(),
            code: 200,
        }));
        drop(self.errors.get_or_create(&ErrorLabels {
            r#type: PeerErrorType::Connect.as_str(),
            group: name(),
            version: name(),
            resource: name(),
        }));
        drop(self.polls.get_or_create(&PollLabels {
            peer: name(),
            host: name(),
            result: POLL_OK,
        }));
        let labels = PeerLabels::default();
        drop(self.duration.get_or_create(&labels));
        drop(self.age.get_or_create(&labels));
        drop(self.up.get_or_create(&labels));
    }

    /// Sets whether peering is enabled by flags.
    pub(crate) fn set_peering_enabled(&self, enabled: bool) {
        self.member.store(enabled, Ordering::Relaxed);
        self.peering_enabled.set(i64::from(enabled));
    }

    /// Sets whether a conflict of CA files disables peering.
    pub(crate) fn in_conflict(&self, in_conflict: bool) {
        let enabled = self.member.load(Ordering::Relaxed) && !in_conflict;
        self.peering_enabled.set(i64::from(enabled));
    }

    /// A peer answered a request with this status.
    pub(crate) fn rerouted(
        &self,
        peer: &Peer,
        request: &RequestInfo<'_>,
        status: StatusCode,
        took: Duration,
    ) {
        let mut series = self.lock();
        let code = status.as_u16();
        let mut recent = series.recent.iter();
        let known = recent.position(|it| it.matches(peer, request, code));
        let index = known.unwrap_or_else(|| {
            if series.recent.len() == MAX_CACHED_SERIES {
                series.recent.remove(0);
            }
            let found = self.find_series(&mut series, peer, request, code);
            series.recent.push(found);
            series.recent.len() - 1
        });
        let counted = &series.recent[index];
        for counter in &counted.counted {
            counter.inc();
        }
        counted.duration.observe(took.as_secs_f64());
    }

    /// No peer answered a request; the client got this code from the bridge. `peer`
    /// is the one that was tried last, if any had an address.
    pub(crate) fn not_rerouted(&self, peer: Option<&Peer>, request: &RequestInfo<'_>, code: u16) {
        let mut series = self.lock();
        for counter in self.rerouted_series(&mut series, peer, request, code) {
            counter.inc();
        }
    }

    fn find_series(
        &self,
        series: &mut Series,
        peer: &Peer,
        request: &RequestInfo<'_>,
        code: u16,
    ) -> CachedSeries {
        CachedSeries {
            identity: peer.identity.clone(),
            host: peer.host.clone(),
            group: request.group.to_owned(),
            version: request.version.to_owned(),
            resource: request.resource.to_owned(),
            code,
            counted: self.rerouted_series(series, Some(peer), request, code),
            duration: self.duration.get_or_create(&PeerLabels::of(peer)).clone(),
        }
    }

    /// The counters of a rerouted request: by resource, and by peer.
    fn rerouted_series(
        &self,
        series: &mut Series,
        peer: Option<&Peer>,
        request: &RequestInfo<'_>,
        code: u16,
    ) -> [Counter; 2] {
        let labels = ReroutedLabels {
            code,
            group: request.group.to_owned(),
            version: request.version.to_owned(),
            resource: request.resource.to_owned(),
        };
        let by_resource = self.rerouted.get_or_create(&labels).clone();
        let PeerLabels { peer, host } = peer.map(PeerLabels::of).unwrap_or_default();
        let labels = PeerCodeLabels {
            peer: peer.clone(),
            host: host.clone(),
            code,
        };
        let by_peer = self.rerouted_to.get_or_create(&labels).clone();
        if !peer.is_empty() {
            series.note(PeerLabels { peer, host }, Some(code));
        }
        [by_resource, by_peer]
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the series of all other peers.
    fn end_series_except(&self, present: &BTreeMap<PeerLabels, ObservedPeer>) {
        let mut series = self.lock();
        let Series { peers, recent } = &mut *series;
        peers.retain(|labels, codes| {
            if present.contains_key(labels) {
                return true;
            }
            // A cached counter of a removed series would not be exported any more.
            recent.clear();
            self.duration.remove(labels);
            let PeerLabels { peer, host } = labels;
            for result in [POLL_OK, POLL_FAILED] {
                let (peer, host) = (peer.clone(), host.clone());
                self.polls.remove(&PollLabels { peer, host, result });
            }
            for code in std::mem::take(codes) {
                let (peer, host) = (peer.clone(), host.clone());
                let labels = PeerCodeLabels { peer, host, code };
                self.rerouted_to.remove(&labels);
            }
            false
        });
    }

    /// A peer was polled.
    pub(crate) fn polled(&self, peer: &Peer, succeeded: bool) {
        let series = PeerLabels::of(peer);
        let PeerLabels { peer, host } = series.clone();
        let result = if succeeded { POLL_OK } else { POLL_FAILED };
        let labels = PollLabels { peer, host, result };
        self.polls.get_or_create(&labels).inc();
        self.lock().note(series, None);
    }

    pub(crate) fn error(&self, cause: PeerErrorType, request: &RequestInfo<'_>) {
        let labels = ErrorLabels {
            r#type: cause.as_str(),
            group: request.group.to_owned(),
            version: request.version.to_owned(),
            resource: request.resource.to_owned(),
        };
        self.errors.get_or_create(&labels).inc();
    }

    pub(crate) fn sync_error(&self, cause: SyncErrorType) {
        self.sync_errors.get_or_create(&cause.labels()).inc();
    }

    /// Updates the gauges for a scrape, and removes the series of peers that no longer exist. Each
    /// backend has its own view of the cluster: of a peer in several views the worst counts.
    pub(crate) fn observe(&self, views: &[(&Peers, RegistryStatus)]) {
        let registry_up = views.iter().all(|(_, registry)| registry.up);
        self.registry_up.set(i64::from(registry_up));
        let now = Instant::now();
        let mut observed = BTreeMap::<PeerLabels, ObservedPeer>::new();
        for (peers, registry) in views {
            for peer in &peers.peers {
                let seen = ObservedPeer {
                    is_up: reachability(peer, registry, now).is_reachable(),
                    age: peer.last_success.and_then(|at| at.elapsed().ok()),
                    bridge_left: peer.record.bridge_left,
                };
                let known = observed.entry(PeerLabels::of(peer)).or_insert(seen);
                known.is_up &= seen.is_up;
                known.age = known.age.max(seen.age);
                known.bridge_left |= seen.bridge_left;
            }
        }
        let left = observed.values().filter(|it| it.bridge_left).count();
        self.without_bridge
            .set(i64::try_from(left).unwrap_or(i64::MAX));
        self.age.clear();
        self.up.clear();
        self.end_series_except(&observed);
        for (labels, seen) in observed {
            self.up.get_or_create(&labels).set(i64::from(seen.is_up));
            if let Some(age) = seen.age {
                let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
                self.age.get_or_create(&labels).set(seconds);
            }
        }
    }
}

/// A peer at the time of a scrape.
#[derive(Debug, Clone, Copy)]
struct ObservedPeer {
    is_up: bool,
    /// The time since its last successful poll.
    age: Option<Duration>,
    bridge_left: bool,
}

#[cfg(test)]
mod tests {
    use http::Method;
    use prometheus_client::encoding::text::encode;
    use skewbridge_k8s_api::request_info::DecodedPath;
    use skewbridge_peer_directory::{Identity, LeaseSnapshot, PeerTable};

    use super::*;

    fn peers(names: &[&str]) -> Peers {
        let mut peer_table = PeerTable::new(Identity::named("apiserver-me").unwrap());
        let leases = names.iter().map(|name| LeaseSnapshot {
            identity: Identity::named(name).unwrap(),
            host: Some(format!("host-of-{name}")),
            holder: "h".to_owned(),
            resource_version: "1".to_owned(),
        });
        peer_table.set_leases(leases.collect(), Instant::now());
        peer_table.snapshot()
    }

    #[test]
    fn all_series_of_a_peer_are_removed_with_the_peer() {
        let mut registry = Registry::default();
        let metrics = PeerMetrics::register(&mut registry);
        let path = DecodedPath::new("/apis/example.io/v1/things").unwrap();
        let request = RequestInfo::parse(&Method::GET, &path, None);
        let both = peers(&["apiserver-a", "apiserver-b"]);
        for peer in &both.peers {
            metrics.polled(peer, true);
            metrics.polled(peer, false);
            metrics.rerouted(peer, &request, StatusCode::OK, Duration::ZERO);
            metrics.not_rerouted(Some(peer), &request, 503);
        }
        metrics.not_rerouted(None, &request, 503);
        let up = RegistryStatus::up("etcd");
        let scrape = |peers: &Peers| {
            metrics.observe(&[(peers, up.clone())]);
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        let count = |text: &str, part: &str| text.matches(part).count();
        let before = scrape(&both);
        let of_a = count(&before, "peer=\"apiserver-a\"");
        assert!(of_a > 0, "{before}");
        let after = scrape(&peers(&["apiserver-b"]));
        assert_eq!(count(&after, "apiserver-a"), 0, "{after}");
        assert_eq!(count(&after, "peer=\"apiserver-b\""), of_a, "{after}");
        assert_eq!(count(&after, "peer=\"\""), 1, "{after}");
    }
}

//! Metrics of discovery: with kube-apiserver's names where it has one, with those of KEP-4020, and
//! with names of the bridge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::described::Described;
use prometheus_client::registry::Registry;

/// Counters of discovery.
#[derive(Debug)]
pub(crate) struct DiscoveryMetrics {
    hits: Counter,
    misses: Counter,
    memory_answers: Counter,
    local_requests: Counter,
    fallbacks: Family<ReasonLabels, Counter>,
    bytes: Family<PathLabels, Gauge>,
    recompute: Histogram,
    staleness: Gauge,
    /// So that a fallback is logged once, and again after a hit.
    fell_back: AtomicBool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    path: &'static str,
}

/// Why a client gets the local server's discovery instead of the cluster's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// Certificates for peers, or something else that peering needs, is missing.
    NoPeering,
    /// The cluster state is not complete yet.
    NotSynced,
    /// The response of a server cannot be merged.
    NotMerged,
}

impl Fallback {
    fn as_str(self) -> &'static str {
        match self {
            Self::NoPeering => "no_peering",
            Self::NotSynced => "not_synced",
            Self::NotMerged => "merge_error",
        }
    }
}

/// From a small cluster to one with thousands of custom resources.
const RECOMPUTE_BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0];

impl DiscoveryMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            hits: Counter::default(),
            misses: Counter::default(),
            memory_answers: Counter::default(),
            local_requests: Counter::default(),
            fallbacks: Family::default(),
            bytes: Family::default(),
            recompute: Histogram::new(RECOMPUTE_BUCKETS),
            staleness: Gauge::default(),
            fell_back: AtomicBool::new(false),
        };
        registry.register(
            "aggregator_discovery_peer_aggregated_cache_hits",
            "Requests for discovery answered with the cached merged document",
            metrics.hits.clone(),
        );
        registry.register(
            "aggregator_discovery_peer_aggregated_cache_misses",
            "Rebuilds of the merged discovery document",
            metrics.misses.clone(),
        );
        for name in [
            "aggregator_discovery_nopeer_requests",
            "aggregator_discovery_local_requests",
        ] {
            registry.register(
                name,
                "Requests for the local kube-apiserver's own discovery",
                metrics.local_requests.clone(),
            );
        }
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "discovery_memory_answers",
            "Requests for merged discovery answered without a request or a poll to the local kube-apiserver",
            metrics.memory_answers.clone(),
        );
        bridge.register(
            "discovery_fallbacks",
            "Requests answered with discovery of the local kube-apiserver instead of merged discovery",
            Described(metrics.fallbacks.clone()),
        );
        bridge.register(
            "discovery_document_bytes",
            "Size of the merged discovery document as JSON",
            Described(metrics.bytes.clone()),
        );
        bridge.register(
            "discovery_recompute_seconds",
            "Time to rebuild the merged discovery document",
            metrics.recompute.clone(),
        );
        bridge.register(
            "discovery_staleness_seconds",
            "Time since the oldest successful discovery poll of a peer",
            metrics.staleness.clone(),
        );
        metrics
    }

    /// A request was answered with the cached document.
    pub(crate) fn hit(&self) {
        self.hits.inc();
        self.fell_back.store(false, Ordering::Relaxed);
    }

    /// A request was answered without a request or a poll to the local server.
    pub(crate) fn memory_answer(&self) {
        self.memory_answers.inc();
    }

    /// A request was for discovery of the local server.
    pub(crate) fn local_request(&self) {
        self.local_requests.inc();
    }

    /// A client got discovery of the local server instead of merged discovery.
    pub(crate) fn fallback(&self, why: Fallback) {
        let labels = ReasonLabels {
            reason: why.as_str(),
        };
        self.fallbacks.get_or_create(&labels).inc();
        if !self.fell_back.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason = why.as_str(),
                "clients get discovery of the local kube-apiserver instead of merged discovery"
            );
        }
    }

    /// The merged document was rebuilt.
    pub(crate) fn recomputed(&self, took: Duration) {
        self.misses.inc();
        self.recompute.observe(took.as_secs_f64());
    }

    /// Updates the gauges for a scrape: the sizes of merged documents by path, of several the largest,
    /// and the age of the oldest one. Without peers there is none.
    pub(crate) fn observe(
        &self,
        sizes: impl IntoIterator<Item = (&'static str, usize)>,
        oldest: Option<Duration>,
    ) {
        self.bytes.clear();
        for (path, bytes) in sizes {
            let gauge = self.bytes.get_or_create(&PathLabels { path });
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            gauge.set(bytes.max(gauge.get()));
        }
        let seconds = oldest.unwrap_or_default().as_secs();
        self.staleness
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }
}

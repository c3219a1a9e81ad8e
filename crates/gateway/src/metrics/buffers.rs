//! Metrics of bytes that are buffered for clients.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use skewbridge_http_engine::buffer_budget::{self, Eviction};

use super::Gauge;
use super::described::Described;

/// Metrics of buffers.
#[derive(Debug, Clone)]
pub(crate) struct BufferMetrics {
    held: Gauge,
    evictions: Family<EvictionLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabels {
    reason: &'static str,
}

/// As a metric label.
fn reason(eviction: Eviction) -> &'static str {
    match eviction {
        Eviction::TimedOut => "stalled",
        Eviction::OverBudget => "over-budget",
    }
}

impl BufferMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            held: Gauge::default(),
            evictions: Family::default(),
        };
        for eviction in [Eviction::TimedOut, Eviction::OverBudget] {
            let reason = reason(eviction);
            drop(metrics.evictions.get_or_create(&EvictionLabels { reason }));
        }
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "buffered_bytes",
            "Bytes buffered for clients: stalled responses, request bodies that upstream has not \
             read, and request bodies kept for a retry",
            metrics.held.clone(),
        );
        bridge.register(
            "buffer_evictions",
            "Stalled streams that were reset, by reason",
            Described(Family::clone(&metrics.evictions)),
        );
        metrics
    }
}

impl buffer_budget::BufferMetrics for BufferMetrics {
    fn buffered_bytes_changed(&self, by: i64) {
        self.held.inc_by(by);
    }

    fn evicted(&self, eviction: Eviction) {
        let reason = reason(eviction);
        self.evictions
            .get_or_create(&EvictionLabels { reason })
            .inc();
    }
}

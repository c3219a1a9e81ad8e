//! Metrics of bytes that are buffered for clients.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Gauge;

/// Metrics of buffers.
#[derive(Debug, Clone)]
pub(crate) struct BufferMetrics {
    /// Also the value that is compared with the budget.
    pub(crate) held: Gauge,
    evictions: Family<EvictionLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabels {
    reason: &'static str,
}

/// Why a stream was reset, or its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The client read, or sent, nothing for too long.
    TimedOut,
    /// The process or the connection has exceeded its budget.
    OverBudget,
}

impl Eviction {
    /// The metric label.
    fn as_str(self) -> &'static str {
        match self {
            Self::TimedOut => "stalled",
            Self::OverBudget => "over-budget",
        }
    }
}

impl BufferMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            held: Gauge::default(),
            evictions: Family::default(),
        };
        for eviction in [Eviction::TimedOut, Eviction::OverBudget] {
            let reason = eviction.as_str();
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
            Family::clone(&metrics.evictions),
        );
        metrics
    }

    pub(crate) fn evicted(&self, eviction: Eviction) {
        let reason = eviction.as_str();
        self.evictions
            .get_or_create(&EvictionLabels { reason })
            .inc();
    }
}

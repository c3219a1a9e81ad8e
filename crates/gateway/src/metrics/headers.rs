//! Metrics of the limits on headers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use skewbridge_http_engine::header_bounds::HeaderLimit;

use super::described::Described;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct HeaderMetrics(Family<Labels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    limit: &'static str,
}

impl HeaderMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self(Family::default());
        registry.sub_registry_with_prefix("skewbridge").register(
            "header_limits",
            "Requests and connections that reached a limit on headers, by limit",
            Described(Family::clone(&metrics.0)),
        );
        // All series exist from the start, so that the first event is an increase.
        for limit in HeaderLimit::ALL.map(HeaderLimit::as_str) {
            drop(metrics.0.get_or_create(&Labels { limit }));
        }
        metrics
    }

    pub(crate) fn record(&self, limit: HeaderLimit) {
        let limit = limit.as_str();
        self.0.get_or_create(&Labels { limit }).inc();
    }
}

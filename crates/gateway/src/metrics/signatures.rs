//! Metrics of signed requests.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Counters of signed requests.
#[derive(Debug)]
pub(crate) struct SignatureMetrics {
    judged: Family<ResultLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

const ACCEPTED: &str = "accepted";

impl SignatureMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let judged = Family::default();
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "http_signatures",
            "Requests with a signature (--http-signature-keys), by what became of them",
            Family::clone(&judged),
        );
        Self { judged }
    }

    /// From now on there are series for all results, so that the first refusal is
    /// an increase.
    pub(crate) fn will_judge(&self, rejections: impl Iterator<Item = &'static str>) {
        for result in rejections.chain([ACCEPTED]) {
            drop(self.judged.get_or_create(&ResultLabels { result }));
        }
    }

    /// Counts a signed request; a rejected one with its reason.
    pub(crate) fn judged(&self, rejection: Option<&'static str>) {
        let result = rejection.unwrap_or(ACCEPTED);
        self.judged.get_or_create(&ResultLabels { result }).inc();
    }
}

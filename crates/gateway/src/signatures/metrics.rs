//! What is counted of signatures.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::error::Rejected;

/// Counters of signatures.
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
    pub(crate) fn will_judge(&self) {
        let refused = Rejected::ALL.iter().map(|it| it.as_str());
        for result in refused.chain([ACCEPTED]) {
            drop(self.judged.get_or_create(&ResultLabels { result }));
        }
    }

    pub(super) fn judged(&self, rejected: Option<&Rejected>) {
        let result = rejected.map_or(ACCEPTED, |it| it.as_str());
        self.judged.get_or_create(&ResultLabels { result }).inc();
    }
}

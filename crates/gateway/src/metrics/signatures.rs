//! Metrics of signed requests.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::described::Described;
use prometheus_client::registry::Registry;

/// Counters of signed requests.
#[derive(Debug)]
pub(crate) struct SignatureMetrics {
    verified: Family<ResultLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

const ACCEPTED: &str = "accepted";

impl SignatureMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let verified = Family::default();
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "http_signatures",
            "Requests with a signature (--http-signature-keys), by result",
            Described(Family::clone(&verified)),
        );
        Self { verified }
    }

    /// Creates the series of all results, so that the first rejection is an increase.
    pub(crate) fn create_series(&self, rejections: impl Iterator<Item = &'static str>) {
        for result in rejections.chain([ACCEPTED]) {
            drop(self.verified.get_or_create(&ResultLabels { result }));
        }
    }

    /// Counts a signed request; a rejected one with its error.
    pub(crate) fn verified(&self, rejection: Option<&'static str>) {
        let result = rejection.unwrap_or(ACCEPTED);
        self.verified.get_or_create(&ResultLabels { result }).inc();
    }
}

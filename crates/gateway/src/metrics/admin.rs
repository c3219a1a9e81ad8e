//! Metrics of the secure admin port.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::connections::SlotMetrics;
use super::described::Described;

/// The decision about a request to the secure admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed,
    /// 401.
    Unauthenticated,
    /// 403.
    Forbidden,
    /// 429: the source had too many authentication failures.
    Limited,
    /// 503: kube-apiserver did not answer a review.
    Failed,
}

impl Decision {
    const ALL: [Self; 5] = [
        Self::Allowed,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Limited,
        Self::Failed,
    ];

    /// The metric label.
    fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Limited => "limited",
            Self::Failed => "failed",
        }
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AdminMetrics {
    authorizations: Family<DecisionLabels, Counter>,
    /// Slots of its connections.
    pub(crate) connections: SlotMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: &'static str,
}

impl AdminMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let authorizations = Family::<DecisionLabels, Counter>::default();
        let admin = registry.sub_registry_with_prefix("skewbridge_admin");
        admin.register(
            "authorizations",
            "Requests to --admin-secure-address, by decision",
            Described(Family::clone(&authorizations)),
        );
        for decision in Decision::ALL.map(Decision::as_str) {
            drop(authorizations.get_or_create(&DecisionLabels { decision }));
        }
        Self {
            authorizations,
            connections: SlotMetrics::register(admin, "--admin-secure-address"),
        }
    }

    pub(crate) fn decided(&self, decision: Decision) {
        let decision = decision.as_str();
        let labels = DecisionLabels { decision };
        self.authorizations.get_or_create(&labels).inc();
    }
}

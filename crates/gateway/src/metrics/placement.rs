//! Metrics of placement rules.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::placement_rule::Rule;

/// Counters of placement rules.
#[derive(Debug)]
pub(crate) struct PlacementMetrics {
    placed: Family<RuleLabels, Counter>,
    unmet: Family<RuleLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    rule: &'static str,
}

impl From<Rule> for RuleLabels {
    fn from(rule: Rule) -> Self {
        Self {
            rule: rule.as_str(),
        }
    }
}

impl PlacementMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let (placed, unmet) = (Family::default(), Family::default());
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "placed_requests",
            "Requests that were sent to peers, by the rule that the local server does not satisfy",
            Family::clone(&placed),
        );
        bridge.register(
            "unmet_placements",
            "Requests that no available server satisfies a rule for, by rule",
            Family::clone(&unmet),
        );
        let metrics = Self { placed, unmet };
        // All series exist from the start, so that the first request is an increase.
        for rule in Rule::ALL {
            drop(metrics.placed.get_or_create(&rule.into()));
        }
        drop(metrics.unmet.get_or_create(&Rule::Version.into()));
        metrics
    }

    /// Counts a request that is sent to a peer.
    pub(crate) fn placed(&self, rule: Rule) {
        self.placed.get_or_create(&rule.into()).inc();
    }

    /// Counts a request that is sent to a server which does not satisfy the rule.
    pub(crate) fn unmet(&self, rule: Rule) {
        self.unmet.get_or_create(&rule.into()).inc();
    }
}

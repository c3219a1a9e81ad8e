//! Metrics of placement rules.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::described::Described;
use crate::admission_guard::AdmissionPolicies;
use crate::field_guard::FieldDifferences;
use crate::metrics::Gauge;
use crate::placement_rule::Rule;

/// Counters of placement rules.
#[derive(Debug)]
pub(crate) struct PlacementMetrics {
    placed: Family<RuleLabels, Counter>,
    unmet: Family<RuleLabels, Counter>,
    field_differences: Gauge,
    fields_known: Gauge,
    guarded_policies: Family<PolicyLabels, Gauge>,
    unknown_policies: Gauge,
    dropped_policies: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    resource: String,
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
        let guarded_policies = Family::default();
        let (unknown_policies, dropped_policies) = (Gauge::default(), Counter::default());
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "placed_requests",
            "Requests that were sent to peers, by the rule that the local server does not satisfy",
            Described(Family::clone(&placed)),
        );
        bridge.register(
            "unmet_placements",
            "Requests that no available server satisfies a rule for, by rule",
            Described(Family::clone(&unmet)),
        );
        let (field_differences, fields_known) = (Gauge::default(), Gauge::default());
        bridge.register(
            "field_differences",
            "Resources whose fields differ between kube-apiservers",
            field_differences.clone(),
        );
        bridge.register(
            "fields_known",
            "Whether the fields of all kube-apiservers are known (1) or writes go to the newest one (0)",
            fields_known.clone(),
        );
        bridge.register(
            "guarded_policies",
            "Admission policies that not all servers enforce",
            Described(Family::clone(&guarded_policies)),
        );
        bridge.register(
            "unknown_policy_kinds",
            "Kinds of admission policies that not all servers enforce and whose objects cannot be read: every write may match them",
            unknown_policies.clone(),
        );
        bridge.register(
            "dropped_policies",
            "Admission policies that are not enforced any more because no server serves their kind",
            dropped_policies.clone(),
        );
        let metrics = Self {
            placed,
            unmet,
            field_differences,
            fields_known,
            guarded_policies,
            unknown_policies,
            dropped_policies,
        };
        // All series exist from the start, so that the first request is an increase.
        for rule in Rule::ALL {
            drop(metrics.placed.get_or_create(&rule.into()));
        }
        // A request that no server serves is not counted here.
        for rule in [Rule::Admission, Rule::Fields, Rule::Version] {
            drop(metrics.unmet.get_or_create(&rule.into()));
        }
        metrics
    }

    /// Creates one series of each family, so that their labels can be listed.
    #[cfg(test)]
    pub(super) fn create_series(&self) {
        let resource = String::new();
        drop(
            self.guarded_policies
                .get_or_create(&PolicyLabels { resource }),
        );
    }

    /// Updates the gauges for a scrape. Each backend has its own view of the cluster: the largest
    /// count counts, and fields are known if they are in every view.
    pub(crate) fn observe(&self, views: &[(&FieldDifferences, &AdmissionPolicies)]) {
        let differences = views.iter().map(|(fields, _)| fields.len()).max();
        let count = i64::try_from(differences.unwrap_or_default()).unwrap_or(i64::MAX);
        self.field_differences.set(count);
        let are_known = views.iter().all(|(fields, _)| fields.are_known());
        self.fields_known.set(are_known.into());
        self.guarded_policies.clear();
        let mut unknown = 0;
        for (_, policies) in views {
            let in_view = policies.kinds.iter().filter(|kind| kind.objects.is_none());
            unknown = unknown.max(in_view.count());
            for kind in &policies.kinds {
                let Some(objects) = kind.objects else {
                    continue;
                };
                let labels = PolicyLabels {
                    resource: kind.resource.clone(),
                };
                let gauge = self.guarded_policies.get_or_create(&labels);
                let objects = i64::try_from(objects).unwrap_or(i64::MAX);
                gauge.set(objects.max(gauge.get()));
            }
        }
        self.unknown_policies
            .set(i64::try_from(unknown).unwrap_or(i64::MAX));
    }

    /// Counts a request that is sent to a peer.
    pub(crate) fn placed(&self, rule: Rule) {
        self.placed.get_or_create(&rule.into()).inc();
    }

    /// Counts policies that are not enforced any more.
    pub(crate) fn dropped_policies(&self, dropped: u64) {
        self.dropped_policies.inc_by(dropped);
    }

    /// Counts a request for which no available server satisfies the rule. It is sent to another
    /// server, except for the rule `admission`.
    pub(crate) fn unmet(&self, rule: Rule) {
        self.unmet.get_or_create(&rule.into()).inc();
    }
}

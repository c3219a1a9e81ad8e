//! Metrics of calls to APIs that the next minor version does not serve.

use std::sync::Mutex;
use std::sync::PoisonError;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use skewbridge_released_apis::ApiName;

use super::described::Described;
use crate::metrics::Gauge;

/// The maximum number of series. Each release deprecates a few APIs; custom resources may have any
/// number.
const MAX_SERIES: usize = 200;

/// The group of calls beyond that.
const OTHER_GROUP: &str = "(other)";

/// Counters of the ledger.
#[derive(Debug)]
pub(crate) struct VanishingMetrics {
    requests: Family<ApiLabels, Counter>,
    series: Mutex<usize>,
    callers: Gauge,
    overflowed: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    group: String,
    version: String,
    resource: String,
    reason: &'static str,
}

impl VanishingMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            series: Mutex::default(),
            callers: Gauge::default(),
            overflowed: Counter::default(),
        };
        let bridge = registry.sub_registry_with_prefix("skewbridge_vanishing");
        bridge.register(
            "requests",
            "Requests for APIs that the next minor version (or --watch-target) does not serve, or that are deprecated",
            Described(Family::clone(&metrics.requests)),
        );
        bridge.register(
            "callers",
            "Pairs of user and user agent in /debug/vanishing",
            metrics.callers.clone(),
        );
        bridge.register(
            "requests_without_entry",
            "Requests of callers beyond the limit of /debug/vanishing",
            metrics.overflowed.clone(),
        );
        metrics
    }

    /// Creates one series of each family, so that their labels can be listed.
    #[cfg(test)]
    pub(super) fn create_series(&self) {
        let [group, version, resource] = [(); 3].map(|()| String::new());
        let api = ApiName {
            group,
            version,
            resource,
        };
        self.called(&api, "removed");
    }

    /// Counts a request.
    pub(crate) fn called(&self, api: &ApiName, reason: &'static str) {
        let labels = ApiLabels {
            group: api.group.clone(),
            version: api.version.clone(),
            resource: api.resource.clone(),
            reason,
        };
        if let Some(counter) = self.requests.get(&labels) {
            counter.inc();
            return;
        }
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have created it.
        if self.requests.get(&labels).is_none() {
            if *series >= MAX_SERIES {
                let labels = ApiLabels {
                    group: OTHER_GROUP.to_owned(),
                    version: String::new(),
                    resource: String::new(),
                    reason,
                };
                self.requests.get_or_create(&labels).inc();
                return;
            }
            *series += 1;
        }
        self.requests.get_or_create(&labels).inc();
    }

    /// Sets the number of callers.
    pub(crate) fn callers(&self, callers: usize) {
        self.callers.set(i64::try_from(callers).unwrap_or(i64::MAX));
    }

    /// Counts a request of a caller beyond the limit.
    pub(crate) fn overflowed(&self) {
        self.overflowed.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_is_bounded() {
        let metrics = VanishingMetrics::register(&mut Registry::default());
        let api = |number: usize| ApiName {
            group: "g".to_owned(),
            version: "v1".to_owned(),
            resource: number.to_string(),
        };
        for number in (0..MAX_SERIES + 5).chain(0..MAX_SERIES + 5) {
            metrics.called(&api(number), "deprecated");
        }
        let count = |group: &str, version: &str, resource: &str| {
            let labels = ApiLabels {
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                reason: "deprecated",
            };
            metrics.requests.get(&labels).map(|it| it.get())
        };
        assert_eq!(count("g", "v1", "0"), Some(2));
        assert_eq!(count("g", "v1", &(MAX_SERIES - 1).to_string()), Some(2));
        assert_eq!(count("g", "v1", &MAX_SERIES.to_string()), None);
        assert_eq!(count(OTHER_GROUP, "", ""), Some(10));
    }
}

//! Metrics of backends. The label is host and port of an `--upstream`, so its values are bounded.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Gauge;
use super::described::Described;
use crate::request_class::RequestClass;

#[derive(Debug)]
pub(super) struct BackendFamilies {
    ready: Family<BackendLabels, Gauge>,
    in_flight: Family<InFlightLabels, Gauge>,
    requests: Family<BackendLabels, Counter>,
    retries: Family<BackendLabels, Counter>,
}

/// The metrics of one backend.
#[derive(Debug, Clone)]
pub(crate) struct BackendMetrics {
    pub(crate) ready: Gauge,
    pub(crate) requests: Counter,
    /// Requests that another backend got after this one.
    pub(crate) retries: Counter,
    short: Gauge,
    long_running: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabels {
    upstream: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InFlightLabels {
    upstream: String,
    class: &'static str,
}

impl BackendMetrics {
    /// The requests in flight of a class.
    pub(crate) fn in_flight(&self, class: RequestClass) -> &Gauge {
        match class {
            RequestClass::Short => &self.short,
            RequestClass::LongRunning => &self.long_running,
        }
    }
}

impl BackendFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self {
            ready: Family::default(),
            in_flight: Family::default(),
            requests: Family::default(),
            retries: Family::default(),
        };
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "backend_ready",
            "Whether a kube-apiserver gets requests, with several values of --upstream",
            Described(Family::clone(&families.ready)),
        );
        bridge.register(
            "backend_requests_in_flight",
            "Requests in flight by kube-apiserver and class, with several values of --upstream",
            Described(Family::clone(&families.in_flight)),
        );
        bridge.register(
            "backend_requests",
            "Requests by the kube-apiserver that they were sent to, with several values of --upstream",
            Described(Family::clone(&families.requests)),
        );
        bridge.register(
            "backend_retries",
            "Requests that were sent to another kube-apiserver after this one",
            Described(Family::clone(&families.retries)),
        );
        families
    }

    /// Removes the series of a backend.
    pub(super) fn remove(&self, upstream: &str) {
        let labels = BackendLabels {
            upstream: upstream.to_owned(),
        };
        self.ready.remove(&labels);
        self.requests.remove(&labels);
        self.retries.remove(&labels);
        for class in [RequestClass::Short, RequestClass::LongRunning] {
            self.in_flight.remove(&InFlightLabels {
                upstream: upstream.to_owned(),
                class: class.as_str(),
            });
        }
    }

    pub(super) fn of(&self, upstream: &str) -> BackendMetrics {
        let labels = BackendLabels {
            upstream: upstream.to_owned(),
        };
        let in_flight = |class: RequestClass| {
            self.in_flight.get_or_create_owned(&InFlightLabels {
                upstream: upstream.to_owned(),
                class: class.as_str(),
            })
        };
        BackendMetrics {
            ready: self.ready.get_or_create_owned(&labels),
            requests: self.requests.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
            short: in_flight(RequestClass::Short),
            long_running: in_flight(RequestClass::LongRunning),
        }
    }
}

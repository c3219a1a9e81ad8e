//! Requests in flight at one backend. Long-running requests (watches, logs, streams) are counted
//! separately: they hold a connection and use little CPU. Each class is balanced by its own count.

use std::sync::Arc;

use crate::metrics::backends::BackendMetrics;
use crate::request_class::RequestClass;

/// The requests in flight at one backend, as all workers count them.
#[derive(Debug)]
pub(crate) struct BackendLoad {
    name: Arc<str>,
    metrics: BackendMetrics,
}

impl BackendLoad {
    pub(crate) fn new(name: Arc<str>, metrics: BackendMetrics) -> Arc<Self> {
        Arc::new(Self { name, metrics })
    }

    /// The requests in flight of this class.
    pub(crate) fn in_flight(&self, class: RequestClass) -> i64 {
        self.metrics.in_flight(class).get()
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, class: RequestClass) -> BackendRequest {
        self.metrics.in_flight(class).inc();
        BackendRequest {
            load: self.clone(),
            class,
            is_counted: false,
        }
    }
}

/// A request in flight at a backend.
#[derive(Debug)]
pub(crate) struct BackendRequest {
    load: Arc<BackendLoad>,
    class: RequestClass,
    is_counted: bool,
}

impl BackendRequest {
    /// Host and port of the backend.
    pub(crate) fn backend(&self) -> &Arc<str> {
        &self.load.name
    }

    /// A backend has responded, possibly another one than the chosen one. From now on the request
    /// counts as in flight at that backend.
    pub(crate) fn answered_by(&mut self, load: &Arc<BackendLoad>) {
        if !Arc::ptr_eq(&self.load, load) {
            self.load.metrics.in_flight(self.class).dec();
            load.metrics.in_flight(self.class).inc();
            self.load = load.clone();
        }
        self.count();
    }

    fn count(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.load.metrics.requests.inc();
        }
    }
}

impl Drop for BackendRequest {
    fn drop(&mut self) {
        self.count();
        self.load.metrics.in_flight(self.class).dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn each_class_is_counted_while_its_requests_are_in_flight() {
        use RequestClass::{LongRunning, Short};
        let load = BackendLoad::new("a:1".into(), Metrics::new().backend("a:1"));
        let counts = || (load.in_flight(Short), load.in_flight(LongRunning));
        let watch = load.begin(LongRunning);
        let get = load.begin(Short);
        let other = load.begin(Short);
        assert_eq!(counts(), (2, 1));
        drop((get, watch));
        assert_eq!(counts(), (1, 0));
        drop(other);
        assert_eq!(counts(), (0, 0));
    }

    #[test]
    fn a_request_is_counted_once_and_where_it_was_answered() {
        use RequestClass::LongRunning;
        let metrics = Metrics::new();
        let [chosen, serving] =
            ["a:1", "b:1"].map(|name| BackendLoad::new(name.into(), metrics.backend(name)));
        let in_flight = || [&chosen, &serving].map(|it| it.in_flight(LongRunning));
        let requests = || [&chosen, &serving].map(|it| it.metrics.requests.get());
        let mut watch = chosen.begin(LongRunning);
        assert_eq!((in_flight(), requests()), ([1, 0], [0, 0]));
        watch.answered_by(&serving);
        assert_eq!((in_flight(), requests()), ([0, 1], [0, 1]));
        watch.answered_by(&serving);
        drop(watch);
        assert_eq!((in_flight(), requests()), ([0, 0], [0, 1]));
        // Without a response the request counts at the chosen backend.
        drop(chosen.begin(LongRunning));
        assert_eq!((in_flight(), requests()), ([0, 0], [1, 1]));
    }
}

//! Counts the connections of a pool.

use skewbridge_http_engine::client::{PoolMetrics, Protocol};
use skewbridge_http_engine::header_bounds::HeaderLimit;

use crate::metrics::headers::HeaderMetrics;
use crate::metrics::{Gauge, Metrics};

/// The connections and streams of one identity.
#[derive(Debug)]
pub(super) struct UpstreamMetrics {
    h1: Gauge,
    h2: Gauge,
    streams: Gauge,
    headers: HeaderMetrics,
}

impl UpstreamMetrics {
    pub(super) fn new(identity: &'static str, metrics: &Metrics) -> Self {
        Self {
            h1: metrics.upstream_connections(identity, "http/1.1"),
            h2: metrics.upstream_connections(identity, "h2"),
            streams: metrics.upstream_streams(identity),
            headers: metrics.headers().clone(),
        }
    }

    fn connections(&self, protocol: Protocol) -> &Gauge {
        match protocol {
            Protocol::Http1 => &self.h1,
            Protocol::Http2 => &self.h2,
        }
    }
}

impl PoolMetrics for UpstreamMetrics {
    fn connection_opened(&self, protocol: Protocol) {
        self.connections(protocol).inc();
    }

    fn connection_closed(&self, protocol: Protocol) {
        self.connections(protocol).dec();
    }

    fn stream_opened(&self) {
        self.streams.inc();
    }

    fn stream_closed(&self) {
        self.streams.dec();
    }

    fn met_header_limit(&self, limit: HeaderLimit) {
        self.headers.record(limit);
    }
}

//! Metrics of streams: with kube-apiserver's names where it has one, and with names of the bridge.

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::described::Described;
use crate::stream_kind::StreamKind;

/// Counters of streams.
#[derive(Debug)]
pub(crate) struct StreamMetrics {
    translated: Family<CodeLabels, Counter>,
    tunnelled: Family<CodeLabels, Counter>,
    ended: Family<EndLabels, Counter>,
    open: Family<KindLabels, Gauge>,
    bytes: Family<ByteLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByteLabels {
    kind: &'static str,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    kind: &'static str,
    client: &'static str,
    upstream: &'static str,
    /// The deprecated label; `result` has another name for one value.
    outcome: &'static str,
    result: &'static str,
}

impl StreamMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            translated: Family::default(),
            tunnelled: Family::default(),
            ended: Family::default(),
            open: Family::default(),
            bytes: Family::default(),
        };
        registry.register(
            "apiserver_stream_translator_requests",
            "Requests for exec and attach by WebSocket that were translated to SPDY, by code",
            Described(metrics.translated.clone()),
        );
        registry.register(
            "apiserver_stream_tunnel_requests",
            "Requests for port-forward by WebSocket that were translated to SPDY, by code",
            Described(metrics.tunnelled.clone()),
        );
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "streams",
            "Streams that have ended, by kind, protocol on either side and result",
            Described(metrics.ended.clone()),
        );
        bridge.register(
            "streams_open",
            "Streams that have not ended, by kind",
            Described(metrics.open.clone()),
        );
        bridge.register(
            "stream_bytes",
            "Bytes of streams, by kind and direction (up: from the client)",
            Described(metrics.bytes.clone()),
        );
        metrics
    }

    /// Counts a request that was translated to SPDY, by its status code.
    pub(crate) fn translated(&self, kind: StreamKind, code: StatusCode) {
        let family = match kind {
            StreamKind::Exec | StreamKind::Attach => &self.translated,
            StreamKind::PortForward => &self.tunnelled,
        };
        let code = code.as_u16();
        family.get_or_create(&CodeLabels { code }).inc();
    }
}

/// How a stream ended. A closed set, since it is a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// Cleanly.
    Complete,
    /// With an exit code other than 0.
    Exited,
    /// The server reported why there is no exit code.
    Failed,
    /// Upstream, the node or the connection to it was lost.
    Disconnected,
    /// The client disconnected before the end.
    ClientLeft,
    /// The client violated the protocol.
    ClientError,
    /// Idle timeout.
    Idle,
    /// The bridge shut down.
    Aborted,
}

impl StreamEnd {
    /// A result counts only if the client has received it.
    pub(crate) fn if_delivered(self, delivered: bool) -> Self {
        match self {
            Self::Complete | Self::Exited | Self::Failed if !delivered => Self::ClientLeft,
            ended => ended,
        }
    }

    /// The value of the deprecated label `outcome`.
    fn deprecated(self) -> &'static str {
        match self {
            Self::Disconnected => "cut_off",
            end => end.as_str(),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Exited => "exited",
            Self::Failed => "failed",
            Self::Disconnected => "disconnected",
            Self::ClientLeft => "client_left",
            Self::ClientError => "client_error",
            Self::Idle => "idle",
            Self::Aborted => "aborted",
        }
    }
}

/// Counts one stream until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamMetricsGuard {
    metrics: Metrics,
    labels: EndLabels,
    up: Counter,
    down: Counter,
}

impl StreamMetricsGuard {
    /// A stream has started.
    pub(crate) fn begin(
        metrics: &Metrics,
        kind: StreamKind,
        client: &'static str,
        upstream: &'static str,
    ) -> Self {
        let kind = kind.as_str();
        let streams = metrics.streams();
        streams.open.get_or_create(&KindLabels { kind }).inc();
        let bytes = |direction| {
            let labels = ByteLabels { kind, direction };
            streams.bytes.get_or_create_owned(&labels)
        };
        let labels = |end: StreamEnd| EndLabels {
            kind,
            client,
            upstream,
            outcome: end.deprecated(),
            result: end.as_str(),
        };
        // The series exists before streams are lost, often all at once: otherwise the first loss would
        // not be an increase.
        drop(
            streams
                .ended
                .get_or_create(&labels(StreamEnd::Disconnected)),
        );
        Self {
            labels: labels(StreamEnd::Aborted),
            up: bytes("up"),
            down: bytes("down"),
            metrics: metrics.clone(),
        }
    }

    /// Bytes from the client.
    pub(crate) fn up(&self, bytes: usize) {
        self.up.inc_by(bytes as u64);
    }

    /// Bytes to the client.
    pub(crate) fn down(&self, bytes: usize) {
        self.down.inc_by(bytes as u64);
    }

    /// The stream has ended.
    pub(crate) fn end(mut self, end: StreamEnd) {
        self.labels.outcome = end.deprecated();
        self.labels.result = end.as_str();
    }
}

impl Drop for StreamMetricsGuard {
    fn drop(&mut self) {
        let kind = self.labels.kind;
        let streams = self.metrics.streams();
        streams.open.get_or_create(&KindLabels { kind }).dec();
        streams.ended.get_or_create(&self.labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lost_streams_are_an_increase() {
        let metrics = Metrics::new();
        let lost = |count: usize| {
            let line = format!(
                "skewbridge_streams_total{{kind=\"exec\",client=\"websocket\",upstream=\"spdy\",\
                 outcome=\"cut_off\",result=\"disconnected\"}} {count}\n"
            );
            assert!(metrics.text().contains(&line), "{line}");
        };
        let begin = || StreamMetricsGuard::begin(&metrics, StreamKind::Exec, "websocket", "spdy");
        let streams = [begin(), begin()];
        lost(0);
        for stream in streams {
            stream.end(StreamEnd::Disconnected);
        }
        lost(2);
    }
}

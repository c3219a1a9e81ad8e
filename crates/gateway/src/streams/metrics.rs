//! What is counted of streams: under kube-apiserver's names where it has one, and
//! under our own.

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::translation_plan::Kind;
use crate::metrics::Metrics;

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
    outcome: &'static str,
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
            metrics.translated.clone(),
        );
        registry.register(
            "apiserver_stream_tunnel_requests",
            "Requests for port-forward by WebSocket that were translated to SPDY, by code",
            metrics.tunnelled.clone(),
        );
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        bridge.register(
            "streams",
            "Streams that have ended, by kind, protocol on either side and outcome",
            metrics.ended.clone(),
        );
        bridge.register(
            "streams_open",
            "Streams that have not ended, by kind",
            metrics.open.clone(),
        );
        bridge.register(
            "stream_bytes",
            "Bytes of streams, by kind and direction (up: from the client)",
            metrics.bytes.clone(),
        );
        metrics
    }

    /// A request that was translated to SPDY came to this end.
    pub(crate) fn translated(&self, kind: Kind, code: StatusCode) {
        let family = match kind {
            Kind::Exec | Kind::Attach => &self.translated,
            Kind::PortForward => &self.tunnelled,
        };
        let code = code.as_u16();
        family.get_or_create(&CodeLabels { code }).inc();
    }
}

/// How a stream ended. A closed set, since it is a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// PingRole it should.
    Complete,
    /// The command failed, and its exit code was told.
    Exited,
    /// The server told why there is no exit code.
    Failed,
    /// Upstream, the node or the connection to it was lost.
    Disconnected,
    /// The client left before the end.
    ClientLeft,
    /// The client broke the rules.
    ClientError,
    /// Nothing came for too long.
    Idle,
    /// The bridge had to leave.
    Aborted,
}

impl StreamEnd {
    /// Nothing has ended well, nor with an exit code, before the client has seen it.
    pub(crate) fn if_delivered(self, told: bool) -> Self {
        match self {
            Self::Complete | Self::Exited | Self::Failed if !told => Self::ClientLeft,
            ended => ended,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Exited => "exited",
            Self::Failed => "failed",
            Self::Disconnected => "cut_off",
            Self::ClientLeft => "client_left",
            Self::ClientError => "client_error",
            Self::Idle => "idle",
            Self::Aborted => "aborted",
        }
    }
}

/// Counts one stream, which has not ended until it is said how.
#[derive(Debug)]
pub(crate) struct StreamMetricsGuard {
    metrics: Metrics,
    labels: EndLabels,
    up: Counter,
    down: Counter,
}

impl StreamMetricsGuard {
    /// A stream has begun.
    pub(crate) fn begin(
        metrics: &Metrics,
        kind: Kind,
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
        Self {
            labels: EndLabels {
                kind,
                client,
                upstream,
                outcome: StreamEnd::Aborted.as_str(),
            },
            up: bytes("up"),
            down: bytes("down"),
            metrics: metrics.clone(),
        }
    }

    /// Bytes came from the client.
    pub(crate) fn up(&self, bytes: usize) {
        self.up.inc_by(bytes as u64);
    }

    /// Bytes came for it.
    pub(crate) fn down(&self, bytes: usize) {
        self.down.inc_by(bytes as u64);
    }

    /// It has ended.
    pub(crate) fn end(mut self, how: StreamEnd) {
        self.labels.outcome = how.as_str();
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

//! Exec, attach and port-forward: which streams are translated between WebSocket and SPDY
//! (KEP-4006), and the translators.
//!
//! [`translation_plan`] decides, [`upgrade_headers`] rewrites requests and responses,
//! `proxy::stream_handshake` runs until the 101, and then [`ws_to_spdy`], [`spdy_to_ws`] or
//! [`port_forward`] relays the stream to its end. Streams that need no translation are plain
//! tunnels.

mod busy_poll;
mod injected_pings;
pub(crate) mod port_forward;
mod port_forward_relay;
mod refusal_cache;
pub(crate) mod spdy_to_ws;
mod termination_status;
mod timer;
pub(crate) mod translation_plan;
mod tunnel;
pub(crate) mod upgrade_headers;
pub(crate) mod ws_to_spdy;

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_http_engine::server::ClientIo;
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::version::Version;
use skewbridge_stream_io::{KeepaliveConfig, PingPolicy, WebSocketKeepalive};
use tokio::time::Instant;

pub(crate) use translation_plan::UpgradeRequest;

use crate::access_log::AccessLogEntry;
use crate::config::{Config, Feature};
use crate::metrics::streams::StreamMetricsGuard;
use crate::stream_kind::StreamKind;
use crate::upstream::Upgraded;
use busy_poll::BusyPollArbiter;
use port_forward::{SpdyToWsPortForward, WsToSpdyPortForward};
use refusal_cache::{RefusalCache, StreamProtocol};
use spdy_to_ws::SpdyToWsExec;
use translation_plan::{TranslationPlan, TranslationRules, UpstreamCaps};
use ws_to_spdy::WsToSpdyExec;

/// How many pings a client may leave unanswered. Clients are far away, on unreliable networks,
/// which TCP tolerates.
const MAX_UNANSWERED_CLIENT_PINGS: u32 = 5;

/// Stream handling of a bridge.
#[derive(Debug)]
pub(crate) struct Streams {
    rules: TranslationRules,
    pub(crate) timeouts: StreamTimeouts,
    /// Shared by all translated commands.
    pub(crate) arbiter: Arc<BusyPollArbiter>,
    refusals: RefusalCache,
}

/// Effectively never.
const DISABLED_TIMEOUT: Duration = Duration::from_hours(10 * 365 * 24);

/// Zero disables a timeout.
fn or_never(time: Duration) -> Duration {
    if time.is_zero() {
        DISABLED_TIMEOUT
    } else {
        time
    }
}

/// Timeouts of streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamTimeouts {
    /// `--stream-ping-interval`
    ping: Duration,
    /// `--streaming-connection-idle-timeout`
    idle: Duration,
    /// How long a client may read nothing of the data that waits for it.
    stall: Duration,
}

impl StreamTimeouts {
    /// Clients get a long timeout.
    pub(crate) fn client_keepalive(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: self.ping,
            timeout: self.ping * MAX_UNANSWERED_CLIENT_PINGS,
        }
    }

    /// Upstream is near, and clients wait for it.
    pub(crate) fn upstream_keepalive(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: self.ping,
            timeout: self.ping / 2,
        }
    }

    pub(crate) fn client_ws_keepalive(self, now: Instant) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.client_keepalive();
        WebSocketKeepalive::new(now, interval, timeout)
    }

    pub(crate) fn upstream_ws_keepalive(
        self,
        policy: PingPolicy,
        now: Instant,
    ) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.upstream_keepalive();
        WebSocketKeepalive::new(now, interval, timeout).with_policy(policy)
    }
}

impl Streams {
    pub(crate) fn new(config: &Config) -> Self {
        let enabled = |feature| config.features.enabled(feature);
        Self {
            rules: TranslationRules {
                translate: config.streams.translate,
                upstream: config.streams.upstream,
                commands: enabled(Feature::TranslateStreamCloseWebsocketRequests),
                port_forward: enabled(Feature::PortForwardWebsockets),
            },
            timeouts: StreamTimeouts {
                ping: or_never(config.streams.ping_interval),
                idle: or_never(config.streams.idle_timeout),
                stall: config.limits.stall_timeout,
            },
            arbiter: Arc::new(BusyPollArbiter::new(
                available_parallelism().map_or(1, NonZero::get),
            )),
            refusals: RefusalCache::new(Instant::now()),
        }
    }

    /// How to handle an upgrade request; `None` if it is not for a stream.
    pub(crate) fn request(
        &self,
        switch: UpgradeRequest,
        info: &RequestInfo<'_>,
        version: Option<Version>,
    ) -> Option<StreamRequest> {
        let kind = StreamKind::of(info)?;
        let caps = UpstreamCaps {
            version,
            refused: self.refusals.recent(Instant::now()),
        };
        Some(StreamRequest {
            kind,
            client: switch.as_str(),
            plan: translation_plan::plan(kind, switch, self.rules, caps),
        })
    }

    /// Upstream refused a protocol over WebSocket and accepted it over SPDY.
    pub(crate) fn remember_refusal(&self, protocol: StreamProtocol) {
        self.refusals.insert(protocol, Instant::now());
    }
}

/// A stream request, and how to handle it.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub(crate) kind: StreamKind,
    /// The protocol of the client, as a metric label.
    pub(crate) client: &'static str,
    pub(crate) plan: TranslationPlan,
}

/// A connection after 101.
#[derive(Debug)]
pub(crate) enum UpgradedStream {
    /// The same protocol on both sides.
    Tunnel(Upgraded, Option<StreamMetricsGuard>),
    /// A command over WebSocket to the client and over SPDY upstream.
    WsToSpdyExec(Box<WsToSpdyExec>),
    /// A port-forward over WebSocket to the client and over SPDY upstream.
    WsToSpdyPortForward(Box<WsToSpdyPortForward>),
    /// A command over SPDY to the client and over WebSocket upstream.
    SpdyToWsExec(Box<SpdyToWsExec>),
    /// A port-forward over SPDY to the client and over WebSocket upstream.
    SpdyToWsPortForward(Box<SpdyToWsPortForward>),
}

impl UpgradedStream {
    /// Relays the stream to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, record: AccessLogEntry) {
        match self {
            Self::Tunnel(upstream, stream_metrics) => {
                tunnel::run(client, input, upstream, record, stream_metrics).await;
            }
            Self::WsToSpdyExec(command) => command.run(client, input, record).await,
            Self::WsToSpdyPortForward(port_forward) => {
                port_forward.run(client, input, record).await;
            }
            Self::SpdyToWsExec(command) => command.run(client, input, record).await,
            Self::SpdyToWsPortForward(port_forward) => {
                port_forward.run(client, input, record).await;
            }
        }
    }
}

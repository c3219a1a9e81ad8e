//! Exec, attach and port-forward: which of them are translated between WebSocket
//! and SPDY (KEP-4006), and the translators.
//!
//! [`plan`] decides, [`upgrade_headers`] rewrites what is asked and answered, and after 101
//! [`command`], [`port_forward`] and their counterparts [`to_websocket`] carry the
//! stream to its end. Everything that needs no translation stays a plain tunnel.

mod access_review;
mod busy_poll;
mod handshake;
mod injected_pings;
mod metrics;
mod port_forward;
mod port_forward_relay;
mod refusal_cache;
mod spdy_to_ws;
mod termination_status;
mod timer;
mod translation_plan;
mod upgrade_headers;
mod ws_to_spdy;

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_api::request_info::RequestInfo;
use skewbridge_api::version::Version;
use skewbridge_stream_io::{KeepaliveConfig, PingPolicy, WebSocketKeepalive};
use tokio::time::Instant;

pub(crate) use handshake::{StreamOutcome, handshake};
pub(crate) use metrics::{StreamEnd, StreamMetrics, StreamMetricsGuard};
pub(crate) use translation_plan::UpgradeRequest;

use crate::access_log::AccessLogEntry;
use crate::config::{Config, Feature};
use crate::serve::{ClientIo, Takeover};
use crate::tunnel;
use crate::upstream::h1::Upgraded;
use busy_poll::BusyPollArbiter;
use port_forward::{SpdyToWsPortForward, WsToSpdyPortForward};
use refusal_cache::{RefusalCache, StreamProtocol};
use spdy_to_ws::SpdyToWsExec;
use translation_plan::{Kind, TranslationPlan, TranslationRules, UpstreamCaps};
use ws_to_spdy::WsToSpdyExec;

/// How many pings a client may leave unanswered. Clients are far away, on networks
/// that come and go, and TCP bears that.
const CLIENT_PATIENCE: u32 = 5;

/// How streams are carried by a bridge.
#[derive(Debug)]
pub(crate) struct Streams {
    rules: TranslationRules,
    timeouts: StreamTimeouts,
    /// For all translated commands.
    arbiter: Arc<BusyPollArbiter>,
    refusals: RefusalCache,
}

/// PingRole long as anybody waits for.
const NEVER: Duration = Duration::from_hours(10 * 365 * 24);

/// Zero switches a time off.
fn or_never(time: Duration) -> Duration {
    if time.is_zero() { NEVER } else { time }
}

/// How streams are looked after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamTimeouts {
    /// `--stream-ping-interval`
    ping: Duration,
    /// `--streaming-connection-idle-timeout`
    idle: Duration,
    /// How long a client may take nothing of what waits for it.
    stall: Duration,
}

impl StreamTimeouts {
    /// A client is patiently waited for.
    fn client_keepalive(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: self.ping,
            timeout: self.ping * CLIENT_PATIENCE,
        }
    }

    /// What is above is near, and whoever waits for it wants to know.
    fn upstream_keepalive(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: self.ping,
            timeout: self.ping / 2,
        }
    }

    fn client_ws_keepalive(self, now: Instant) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.client_keepalive();
        WebSocketKeepalive::new(now, interval, timeout)
    }

    fn upstream_ws_keepalive(self, policy: PingPolicy, now: Instant) -> WebSocketKeepalive {
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

    /// What is to be done with a request to switch protocols; `None` if it is not
    /// for a stream.
    pub(crate) fn request(
        &self,
        switch: UpgradeRequest,
        info: &RequestInfo<'_>,
        version: Option<Version>,
    ) -> Option<StreamRequest> {
        let kind = Kind::of(info)?;
        let known = UpstreamCaps {
            version,
            refused: self.refusals.lately(Instant::now()),
        };
        Some(StreamRequest {
            kind,
            client: switch.as_str(),
            plan: translation_plan::plan(kind, switch, self.rules, known),
        })
    }

    /// Upstream has refused what it understood in translation.
    fn remember_refusal(&self, spoken: StreamProtocol) {
        self.refusals.remember(spoken, Instant::now());
    }
}

/// A stream that is asked for, and how it is to be carried.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    kind: Kind,
    /// What the client speaks, as a metric label.
    client: &'static str,
    plan: TranslationPlan,
}

/// A connection after 101.
#[derive(Debug)]
pub(crate) enum UpgradedStream {
    /// The same protocol on both sides.
    Tunnel(Upgraded, Option<StreamMetricsGuard>),
    /// A command by WebSocket here and by SPDY above.
    WsToSpdyExec(Box<WsToSpdyExec>),
    /// A port-forward by WebSocket here and by SPDY above.
    WsToSpdyPortForward(Box<WsToSpdyPortForward>),
    /// A command by SPDY here and by WebSocket above.
    SpdyToWsExec(Box<SpdyToWsExec>),
    /// A port-forward by SPDY here and by WebSocket above.
    SpdyToWsPortForward(Box<SpdyToWsPortForward>),
    /// Whatever somebody else does with the connection.
    TakenOver(Takeover),
}

impl UpgradedStream {
    /// Carries the stream to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, record: AccessLogEntry) {
        match self {
            Self::Tunnel(upstream, stream_metrics) => {
                tunnel::run(client, input, upstream, record, stream_metrics).await;
            }
            Self::WsToSpdyExec(command) => command.run(client, input, record).await,
            Self::WsToSpdyPortForward(port_forward) => {
                port_forward.run(client, input, record).await
            }
            Self::SpdyToWsExec(command) => command.run(client, input, record).await,
            Self::SpdyToWsPortForward(port_forward) => {
                port_forward.run(client, input, record).await;
            }
            Self::TakenOver(takeover) => takeover.run(client, input).await,
        }
    }
}

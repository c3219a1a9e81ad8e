//! Exec, attach and port-forward: which of them are translated between WebSocket
//! and SPDY (KEP-4006), and the translators.
//!
//! [`plan`] decides, [`heads`] rewrites what is asked and answered, and after 101
//! [`command`], [`port_forward`] and their counterparts [`to_websocket`] carry the
//! stream to its end. Everything that needs no translation stays a plain tunnel.

mod carry;
mod clock;
mod command;
mod farewell;
mod heads;
mod interjected;
mod metrics;
mod permission;
mod plan;
mod port_forward;
mod refusals;
mod relay;
mod to_websocket;
mod vigil;

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_api::request_info::RequestInfo;
use skewbridge_api::version::Version;
use skewbridge_stream_io::{KeepaliveConfig, PingPolicy, WebSocketKeepalive};
use tokio::time::Instant;

pub(crate) use carry::{Carried, carry};
pub(crate) use metrics::{Ended, StreamMetrics, Tally};
pub(crate) use plan::Switch;

use crate::config::{Config, Feature};
use crate::record::Record;
use crate::serve::{ClientIo, Takeover};
use crate::tunnel;
use crate::upstream::h1::Upgraded;
use command::Command;
use plan::{Kind, Known, Plan, Rules};
use port_forward::{PortForward, PortForwardToWebSocket};
use refusals::{Refusals, Spoken};
use to_websocket::CommandToWebSocket;
use vigil::Floor;

/// How many pings a client may leave unanswered. Clients are far away, on networks
/// that come and go, and TCP bears that.
const CLIENT_PATIENCE: u32 = 5;

/// How streams are carried by a bridge.
#[derive(Debug)]
pub(crate) struct Streams {
    rules: Rules,
    care: Care,
    /// For all translated commands.
    floor: Arc<Floor>,
    refusals: Refusals,
}

/// As long as anybody waits for.
const NEVER: Duration = Duration::from_hours(10 * 365 * 24);

/// Zero switches a time off.
fn or_never(time: Duration) -> Duration {
    if time.is_zero() { NEVER } else { time }
}

/// How streams are looked after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Care {
    /// `--stream-ping-interval`
    ping: Duration,
    /// `--streaming-connection-idle-timeout`
    idle: Duration,
    /// How long a client may take nothing of what waits for it.
    stall: Duration,
}

impl Care {
    /// A client is patiently waited for.
    fn pace_of_client(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: self.ping,
            timeout: self.ping * CLIENT_PATIENCE,
        }
    }

    /// What is above is near, and whoever waits for it wants to know.
    fn pace_of_upstream(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: self.ping,
            timeout: self.ping / 2,
        }
    }

    fn of_client(self, now: Instant) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.pace_of_client();
        WebSocketKeepalive::new(now, interval, timeout)
    }

    fn of_upstream(self, policy: PingPolicy, now: Instant) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.pace_of_upstream();
        WebSocketKeepalive::new(now, interval, timeout).with_policy(policy)
    }
}

impl Streams {
    pub(crate) fn new(config: &Config) -> Self {
        let enabled = |feature| config.features.enabled(feature);
        Self {
            rules: Rules {
                translate: config.streams.translate,
                upstream: config.streams.upstream,
                commands: enabled(Feature::TranslateStreamCloseWebsocketRequests),
                port_forward: enabled(Feature::PortForwardWebsockets),
            },
            care: Care {
                ping: or_never(config.streams.ping_interval),
                idle: or_never(config.streams.idle_timeout),
                stall: config.limits.stall_timeout,
            },
            floor: Arc::new(Floor::new(available_parallelism().map_or(1, NonZero::get))),
            refusals: Refusals::new(Instant::now()),
        }
    }

    /// What is to be done with a request to switch protocols; `None` if it is not
    /// for a stream.
    pub(crate) fn job(
        &self,
        switch: Switch,
        info: &RequestInfo<'_>,
        version: Option<Version>,
    ) -> Option<Job> {
        let kind = Kind::of(info)?;
        let known = Known {
            version,
            refused: self.refusals.lately(Instant::now()),
        };
        Some(Job {
            kind,
            client: switch.as_str(),
            plan: plan::plan(kind, switch, self.rules, known),
        })
    }

    /// Upstream has refused what it understood in translation.
    fn remember_refusal(&self, spoken: Spoken) {
        self.refusals.remember(spoken, Instant::now());
    }
}

/// A stream that is asked for, and how it is to be carried.
#[derive(Debug)]
pub(crate) struct Job {
    kind: Kind,
    /// What the client speaks, as a metric label.
    client: &'static str,
    plan: Plan,
}

/// A connection after 101.
#[derive(Debug)]
pub(crate) enum Switched {
    /// The same protocol on both sides.
    Tunnel(Upgraded, Option<Tally>),
    /// A command by WebSocket here and by SPDY above.
    Command(Box<Command>),
    /// A port-forward by WebSocket here and by SPDY above.
    PortForward(Box<PortForward>),
    /// A command by SPDY here and by WebSocket above.
    CommandToWebSocket(Box<CommandToWebSocket>),
    /// A port-forward by SPDY here and by WebSocket above.
    PortForwardToWebSocket(Box<PortForwardToWebSocket>),
    /// Whatever somebody else does with the connection.
    TakenOver(Takeover),
}

impl Switched {
    /// Carries the stream to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, record: Record) {
        match self {
            Self::Tunnel(upstream, tally) => {
                tunnel::run(client, input, upstream, record, tally).await;
            }
            Self::Command(command) => command.run(client, input, record).await,
            Self::PortForward(port_forward) => port_forward.run(client, input, record).await,
            Self::CommandToWebSocket(command) => command.run(client, input, record).await,
            Self::PortForwardToWebSocket(port_forward) => {
                port_forward.run(client, input, record).await;
            }
            Self::TakenOver(takeover) => takeover.run(client, input).await,
        }
    }
}

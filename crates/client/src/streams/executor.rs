//! Who starts commands.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use skewbridge_remotecommand::{
    Channel, Options, Protocol, SpdyProtocol, spdy_protocol_from_response,
};
use skewbridge_stream_io::SpdyExecClient;

use super::keep_alive::KeepAlive;
use super::process::{RemoteProcess, Transport};
use super::request::{AttachRequest, ExecRequest, Opening};
use super::shared::Shared;
use super::upgrade::{Repeat, Upgraded};
use super::{by_spdy, by_websocket, upgrade};
use crate::endpoint::Endpoint;
use crate::error::Error;

/// A command that is being started.
pub type Starting<'a> = Pin<Box<dyn Future<Output = Result<RemoteProcess, Error>> + Send + 'a>>;

/// Starts commands in pods.
pub trait Executor: Send + Sync {
    /// Opens the streams of a command: what [`Executor::start`] and
    /// [`Executor::attach`] stand on.
    fn open(&self, opening: Opening) -> Starting<'_>;

    /// Starts a command. When this is ready, the server has agreed to; whether the
    /// command could be started is told by [`RemoteProcess::wait`].
    fn start<'a>(&'a self, request: &ExecRequest) -> Starting<'a> {
        self.open(request.into())
    }

    /// Joins a process that already runs.
    fn attach<'a>(&'a self, request: &AttachRequest) -> Starting<'a> {
        self.open(request.into())
    }
}

/// By WebSocket, in the fifth version of the protocol (KEP-4006).
#[derive(Debug, Clone)]
pub struct WebSocketExecutor {
    endpoint: Endpoint,
    keep_alive: KeepAlive,
}

/// By SPDY, in the fourth version or an older one.
#[derive(Debug, Clone)]
pub struct SpdyExecutor {
    endpoint: Endpoint,
    keep_alive: KeepAlive,
}

/// By WebSocket, or by SPDY where a WebSocket is refused: then
/// [`RemoteProcess::transport`] tells why. What may have begun is never begun again: no
/// command runs twice.
#[derive(Debug, Clone)]
pub struct FallbackExecutor {
    first: WebSocketExecutor,
    second: SpdyExecutor,
}

impl WebSocketExecutor {
    /// At this server.
    pub fn new(endpoint: Endpoint) -> Self {
        let keep_alive = KeepAlive::default();
        Self {
            endpoint,
            keep_alive,
        }
    }

    /// With pings of another kind.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self { keep_alive, ..self }
    }
}

impl SpdyExecutor {
    /// At this server.
    pub fn new(endpoint: Endpoint) -> Self {
        let keep_alive = KeepAlive::default();
        Self {
            endpoint,
            keep_alive,
        }
    }

    /// With pings of another kind.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self { keep_alive, ..self }
    }
}

impl FallbackExecutor {
    /// At this server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            first: WebSocketExecutor::new(endpoint.clone()),
            second: SpdyExecutor::new(endpoint),
        }
    }

    /// With pings of another kind.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self {
            first: self.first.keep_alive(keep_alive),
            second: self.second.keep_alive(keep_alive),
        }
    }
}

impl Executor for WebSocketExecutor {
    fn open(&self, opening: Opening) -> Starting<'_> {
        Box::pin(async move {
            let Opening { path, options } = opening;
            let offer = Protocol::V5.name();
            let upgraded = upgrade::websocket(&self.endpoint, &path, offer).await?;
            let shared = Arc::new(Shared::new());
            let driver = by_websocket::drive(upgraded, shared.clone(), self.keep_alive);
            let task = tokio::spawn(driver);
            let transport = Transport::WebSocket;
            Ok(RemoteProcess::new(
                shared,
                channels(options),
                transport,
                task,
            ))
        })
    }
}

/// KEP-4006, "Client-side fallback": SPDY v4. Of those before it the end of a connection
/// is the end of a command, so a cut could not be told from a success; servers have
/// known this one since 1.4.
const OFFERED: SpdyProtocol = SpdyProtocol::V4;

impl Executor for SpdyExecutor {
    fn open(&self, opening: Opening) -> Starting<'_> {
        Box::pin(async move {
            let Opening { path, options } = opening;
            let upgraded = upgrade::spdy(&self.endpoint, &path, [OFFERED.name()]).await?;
            let unswitched = |cause: String| Error::Unswitched {
                server: self.endpoint.server(),
                cause,
            };
            let protocol = upgraded.protocol.as_deref();
            if spdy_protocol_from_response(protocol) != Some(OFFERED) {
                let protocol = protocol.unwrap_or("no version of its own");
                return Err(unswitched(format!(
                    "to {protocol:?}, which was not offered"
                )));
            }
            let Upgraded { io, input, .. } = upgraded;
            let node = SpdyExecClient::open(io, input, options, OFFERED, self.keep_alive.pace());
            let node = node.map_err(|error| unswitched(error.to_string()))?;
            let shared = Arc::new(Shared::new());
            let driver = by_spdy::drive(node, shared.clone());
            let task = tokio::spawn(driver);
            let transport = Transport::Spdy { instead: None };
            Ok(RemoteProcess::new(
                shared,
                channels(options),
                transport,
                task,
            ))
        })
    }
}

impl Executor for FallbackExecutor {
    fn open(&self, opening: Opening) -> Starting<'_> {
        Box::pin(async move {
            let error = match self.first.open(opening.clone()).await {
                Ok(process) => return Ok(process),
                Err(error) => error,
            };
            let endpoint = &self.first.endpoint;
            let behind_https_proxy = endpoint.is_behind_https_proxy();
            let reason = upgrade::instead(&error, behind_https_proxy, Repeat::Harmful);
            let Some(reason) = reason else {
                return Err(error);
            };
            match self.second.open(opening).await {
                Ok(process) => {
                    let instead = Some(reason);
                    Ok(process.with_transport(Transport::Spdy { instead }))
                }
                Err(error) => Err(Error::neither(reason, error)),
            }
        })
    }
}

/// Which of stdin, stdout and stderr there are.
fn channels(options: Options) -> [bool; 3] {
    [Channel::Stdin, Channel::Stdout, Channel::Stderr].map(|channel| options.has(channel))
}

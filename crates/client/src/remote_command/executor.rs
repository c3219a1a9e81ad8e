//! Starting commands in pods.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use skewbridge_remotecommand::{
    Channel, Options, Protocol, SpdyProtocol, spdy_protocol_from_response,
};
use skewbridge_stream_io::SpdyExecClient;

use super::keep_alive::KeepAlive;
use super::process::{RemoteProcess, Transport};
use super::request::{AttachRequest, ExecRequest, StreamRequest};
use super::stream_buffers::StreamBuffers;
use super::upgrade::{RetrySafety, Upgraded};
use super::{spdy, upgrade, websocket};
use crate::api_server::Endpoint;
use crate::error::Error;

/// The future of a command that is being started.
pub type StartFuture<'a> = Pin<Box<dyn Future<Output = Result<RemoteProcess, Error>> + Send + 'a>>;

/// Starts commands in pods.
pub trait Executor: Send + Sync {
    /// Opens the streams of a command: the base of [`Executor::start`] and
    /// [`Executor::attach`].
    fn open(&self, request: StreamRequest) -> StartFuture<'_>;

    /// Starts a command. When the future resolves, the server has accepted the request;
    /// [`RemoteProcess::wait`] reports whether the command could be started.
    fn start<'a>(&'a self, request: &ExecRequest) -> StartFuture<'a> {
        self.open(request.into())
    }

    /// Attaches to a running process.
    fn attach<'a>(&'a self, request: &AttachRequest) -> StartFuture<'a> {
        self.open(request.into())
    }
}

/// Over WebSocket, with version 5 of the protocol (KEP-4006).
#[derive(Debug, Clone)]
pub struct WebSocketExecutor {
    endpoint: Endpoint,
    keep_alive: KeepAlive,
}

/// Over SPDY, with version 4 of the protocol.
#[derive(Debug, Clone)]
pub struct SpdyExecutor {
    endpoint: Endpoint,
    keep_alive: KeepAlive,
}

/// Over WebSocket, or over SPDY if a WebSocket is refused: then [`RemoteProcess::transport`]
/// has the reason. A request that may have started a command is never repeated: no command runs
/// twice.
#[derive(Debug, Clone)]
pub struct FallbackExecutor {
    websocket: WebSocketExecutor,
    spdy: SpdyExecutor,
}

impl WebSocketExecutor {
    /// An executor for this server.
    pub fn new(endpoint: Endpoint) -> Self {
        let keep_alive = KeepAlive::default();
        Self {
            endpoint,
            keep_alive,
        }
    }

    /// Sets the ping policy.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self { keep_alive, ..self }
    }
}

impl SpdyExecutor {
    /// An executor for this server.
    pub fn new(endpoint: Endpoint) -> Self {
        let keep_alive = KeepAlive::default();
        Self {
            endpoint,
            keep_alive,
        }
    }

    /// Sets the ping policy.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self { keep_alive, ..self }
    }
}

impl FallbackExecutor {
    /// An executor for this server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            websocket: WebSocketExecutor::new(endpoint.clone()),
            spdy: SpdyExecutor::new(endpoint),
        }
    }

    /// Sets the ping policy.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self {
            websocket: self.websocket.keep_alive(keep_alive),
            spdy: self.spdy.keep_alive(keep_alive),
        }
    }
}

impl Executor for WebSocketExecutor {
    fn open(&self, request: StreamRequest) -> StartFuture<'_> {
        Box::pin(async move {
            let StreamRequest { path, options } = request;
            let offer = Protocol::V5.name();
            let upgraded = upgrade::websocket(&self.endpoint, &path, offer).await?;
            let buffers = Arc::new(StreamBuffers::new());
            let driver = websocket::drive(upgraded, buffers.clone(), self.keep_alive);
            let task = tokio::spawn(driver);
            let transport = Transport::WebSocket;
            Ok(RemoteProcess::new(
                buffers,
                channels(options),
                transport,
                task,
            ))
        })
    }
}

/// KEP-4006, "Client-side fallback": SPDY v4. Before v4 the end of the connection was the end
/// of the command, so a lost connection was indistinguishable from success. Servers have
/// supported v4 since 1.4.
const OFFERED_PROTOCOL: SpdyProtocol = SpdyProtocol::V4;

impl Executor for SpdyExecutor {
    fn open(&self, request: StreamRequest) -> StartFuture<'_> {
        Box::pin(async move {
            let StreamRequest { path, options } = request;
            let upgraded = upgrade::spdy(&self.endpoint, &path, [OFFERED_PROTOCOL.name()]).await?;
            let upgrade_mismatch = |cause: String| Error::UpgradeMismatch {
                server: self.endpoint.server(),
                cause,
            };
            let protocol = upgraded.protocol.as_deref();
            if spdy_protocol_from_response(protocol) != Some(OFFERED_PROTOCOL) {
                let protocol = protocol.unwrap_or("no protocol version");
                return Err(upgrade_mismatch(format!(
                    "to {protocol:?}, which was not offered"
                )));
            }
            let Upgraded { io, input, .. } = upgraded;
            let node = SpdyExecClient::open(
                io,
                input,
                options,
                OFFERED_PROTOCOL,
                self.keep_alive.spdy_keepalive(),
            );
            let node = node.map_err(|error| upgrade_mismatch(error.to_string()))?;
            let buffers = Arc::new(StreamBuffers::new());
            let driver = spdy::drive(node, buffers.clone());
            let task = tokio::spawn(driver);
            let transport = Transport::Spdy {
                fallback_reason: None,
            };
            Ok(RemoteProcess::new(
                buffers,
                channels(options),
                transport,
                task,
            ))
        })
    }
}

impl Executor for FallbackExecutor {
    fn open(&self, request: StreamRequest) -> StartFuture<'_> {
        Box::pin(async move {
            let error = match self.websocket.open(request.clone()).await {
                Ok(process) => return Ok(process),
                Err(error) => error,
            };
            let endpoint = &self.websocket.endpoint;
            let behind_https_proxy = endpoint.is_behind_https_proxy();
            let reason =
                upgrade::fallback_reason(&error, behind_https_proxy, RetrySafety::NotIdempotent);
            let Some(reason) = reason else {
                return Err(error);
            };
            match self.spdy.open(request).await {
                Ok(process) => {
                    let fallback_reason = Some(reason);
                    Ok(process.with_transport(Transport::Spdy { fallback_reason }))
                }
                Err(error) => Err(Error::all_transports_failed(reason, error)),
            }
        })
    }
}

/// Which of stdin, stdout and stderr the request has.
fn channels(options: Options) -> [bool; 3] {
    [Channel::Stdin, Channel::Stdout, Channel::Stderr].map(|channel| options.has(channel))
}

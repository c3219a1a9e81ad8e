//! Port forwarding to pods.

mod forward;
mod local;
mod stream;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use skewbridge_remotecommand::port_forward::tunnel::{PORT_FORWARD, TUNNELLED_PORT_FORWARD};
use skewbridge_remotecommand::port_forward::{Port, Stream as Kind, pair};
use skewbridge_spdy::connection::{self, Driver, Handle};
use skewbridge_spdy::{Config, Headers};
use skewbridge_stream_io::{
    ObservedIo, PingPolicy, Rewind, SpdyPinger, WebSocketConn, WebSocketIo,
};
use skewbridge_websocket::Role;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::disconnect_message;
use super::keep_alive::KeepAlive;
use super::process::Transport;
use super::request::pod_path;
use super::timer::Timer;
use super::upgrade::{self, RetrySafety, Upgraded};
use crate::api_server::Endpoint;
use crate::error::Error;

pub use local::{CloseMode, LocalStream};
pub use stream::PortStream;
use stream::{StreamGuard, StreamSet};

/// A connection to a pod that carries any number of streams to its ports. Dropping it ends all
/// of them.
#[derive(Debug)]
pub struct PortForwarder {
    handle: Handle,
    server: String,
    transport: Transport,
    /// The request ID that pairs the data and error streams of a connection.
    next_request_id: AtomicU64,
    keep_alive: KeepAlive,
    /// The open streams.
    open: Arc<StreamSet>,
    /// Why the connection ended, once it has.
    close_reason: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

/// Options of a connection to a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortForwardOptions {
    /// The transport to use.
    pub transport: TransportPreference,
    /// The ping policy.
    pub keep_alive: KeepAlive,
}

/// Which transport to use for port forwarding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransportPreference {
    /// A WebSocket, or SPDY if that is refused.
    #[default]
    Auto,
    /// SPDY inside a WebSocket (KEP-4006).
    WebSocket,
    /// Plain SPDY.
    Spdy,
}

impl PortForwarder {
    /// Connects to a pod: over WebSocket, or over SPDY if that is refused.
    pub async fn connect(endpoint: &Endpoint, namespace: &str, pod: &str) -> Result<Self, Error> {
        Self::connect_with(endpoint, namespace, pod, PortForwardOptions::default()).await
    }

    /// Connects to a pod with these options.
    pub async fn connect_with(
        endpoint: &Endpoint,
        namespace: &str,
        pod: &str,
        options: PortForwardOptions,
    ) -> Result<Self, Error> {
        let path = pod_path(namespace, pod, "portforward");
        let PortForwardOptions {
            transport,
            keep_alive,
        } = options;
        let error = match transport {
            TransportPreference::Spdy => {
                return Self::connect_spdy(endpoint, &path, keep_alive).await;
            }
            TransportPreference::WebSocket => {
                return Self::connect_websocket(endpoint, &path, keep_alive).await;
            }
            TransportPreference::Auto => {
                match Self::connect_websocket(endpoint, &path, keep_alive).await {
                    Ok(forwarder) => return Ok(forwarder),
                    Err(error) => error,
                }
            }
        };
        let behind_https_proxy = endpoint.is_behind_https_proxy();
        let Some(reason) =
            upgrade::fallback_reason(&error, behind_https_proxy, RetrySafety::Idempotent)
        else {
            return Err(error);
        };
        match Self::connect_spdy(endpoint, &path, keep_alive).await {
            Ok(mut forwarder) => {
                let fallback_reason = Some(reason);
                forwarder.transport = Transport::Spdy { fallback_reason };
                Ok(forwarder)
            }
            Err(error) => Err(Error::all_transports_failed(reason, error)),
        }
    }

    async fn connect_websocket(
        endpoint: &Endpoint,
        path: &str,
        keep_alive: KeepAlive,
    ) -> Result<Self, Error> {
        let upgraded = upgrade::websocket(endpoint, path, TUNNELLED_PORT_FORWARD).await?;
        let Upgraded { io, input, .. } = upgraded;
        let socket = WebSocketConn::new(io, input, Role::Client, keep_alive.websocket_keepalive());
        let io = WebSocketIo::new(socket);
        let transport = Transport::WebSocket;
        Ok(Self::start(io, endpoint.server(), transport, keep_alive))
    }

    async fn connect_spdy(
        endpoint: &Endpoint,
        path: &str,
        keep_alive: KeepAlive,
    ) -> Result<Self, Error> {
        let upgraded = upgrade::spdy(endpoint, path, [PORT_FORWARD]).await?;
        if upgraded.protocol.as_deref() != Some(PORT_FORWARD) {
            return Err(Error::UpgradeMismatch {
                server: endpoint.server(),
                cause: format!("not to {PORT_FORWARD}"),
            });
        }
        let (prefix, io) = (upgraded.input, upgraded.io);
        let io = Rewind { prefix, io };
        let transport = Transport::Spdy {
            fallback_reason: None,
        };
        Ok(Self::start(io, endpoint.server(), transport, keep_alive))
    }

    fn start<T>(io: T, server: String, transport: Transport, keep_alive: KeepAlive) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = ObservedIo::new(
            io,
            skewbridge_spdy::Role::Client,
            keep_alive.spdy_keepalive(),
            PingPolicy::Always,
        );
        let tap = io.keepalive_handle();
        let (handle, incoming, driver) = connection::client(io, Config::default());
        // Pods open no streams.
        drop(incoming);
        let (close_sender, close_reason) = watch::channel(None);
        let pings = SpdyPinger::new(handle.clone(), tap);
        let task = tokio::spawn(async move {
            let cause = drive(driver, pings).await;
            close_sender.send_replace(Some(cause));
        });
        Self {
            handle,
            server,
            transport,
            next_request_id: AtomicU64::new(0),
            keep_alive,
            open: Arc::default(),
            close_reason,
            task,
        }
    }

    /// The transport in use.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Waits until the connection to the pod has ended, and returns the reason.
    pub async fn closed(&self) -> String {
        let mut close_reason = self.close_reason.clone();
        let cause = close_reason.wait_for(Option::is_some).await;
        let cause = cause.ok().and_then(|cause| cause.clone());
        cause.unwrap_or_else(|| "the connection was dropped".to_owned())
    }

    /// Whether the connection to the pod has ended.
    pub fn is_closed(&self) -> bool {
        self.close_reason.borrow().is_some()
    }

    /// Whether data from any port has arrived over this connection.
    pub fn has_received_data(&self) -> bool {
        self.open.has_received_data()
    }

    /// Opens a stream to a port without waiting. If nothing listens there, reading from the
    /// stream reports it.
    pub fn open(&self, port: Port) -> Result<PortStream, Error> {
        let request = self
            .next_request_id
            .fetch_add(1, Ordering::Relaxed)
            .to_string();
        let connection_lost = |cause: String| Error::ConnectionLost {
            server: self.server.clone(),
            cause,
        };
        let open = |stream| {
            let request = request.clone();
            let headers = pair::Headers {
                stream,
                port,
                request,
            };
            let fields = headers.fields().into_iter();
            let headers = fields.fold(Headers::new(), |all, (name, value)| all.with(name, &value));
            self.handle
                .open(headers)
                .map_err(|error| connection_lost(error.to_string()))
        };
        // The error stream comes first, and its sending side is closed at once.
        let mut error = open(Kind::Error)?;
        error
            .sender
            .finish()
            .map_err(|error| connection_lost(error.to_string()))?;
        let data = open(Kind::Data)?;
        Ok(PortStream::new(
            data,
            error.receiver,
            StreamGuard::join(&self.open),
            self.keep_alive.timeout,
        ))
    }
}

impl Drop for PortForwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Drives all streams of the connection; returns why it ended.
///
/// If the pod ignores flow-control windows, a local program that does not read keeps the client
/// from reading the connection. Answers to pings are not read then, so their absence does not count
/// as silence of the pod.
async fn drive<T>(driver: Driver<T>, pings: SpdyPinger) -> String
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut driver = pin!(driver);
    let mut timer = Timer::new();
    poll_fn(|cx| {
        pings.before_drive();
        if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
            return Poll::Ready(match ended {
                Ok(()) => "the other side ended the connection".to_owned(),
                Err(error) => disconnect_message::of_spdy(&error),
            });
        }
        timer.bring_forward(pings.next_deadline(), cx);
        while timer.poll_expired(cx).is_ready() {
            if !pings.check(Instant::now()) {
                return Poll::Ready("the other side does not answer any more".to_owned());
            }
            timer.set(pings.next_deadline(), cx);
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;

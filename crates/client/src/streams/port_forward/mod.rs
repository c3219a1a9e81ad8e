//! Connections to ports of a pod.

mod forward;
mod local;
mod stream;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use skewbridge_channels::port_forward::tunnel::{PORT_FORWARD, TUNNELLED_PORT_FORWARD};
use skewbridge_channels::port_forward::{Port, Stream as Kind, pair};
use skewbridge_spdy::connection::{self, Driver, Handle};
use skewbridge_spdy::{Config, Headers};
use skewbridge_websocket::Role;
use skewbridge_wire::{Asked, Pings, Prefixed, Socket, Tapped, Tunnel};
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
use crate::endpoint::Endpoint;
use crate::error::Error;

pub use local::{CloseMode, LocalStream};
pub use stream::PortStream;
use stream::{StreamGuard, StreamSet};

/// One connection to a pod, that carries any number of connections to its ports. When
/// this is dropped, all of them end.
#[derive(Debug)]
pub struct PortForwarder {
    handle: Handle,
    server: String,
    transport: Transport,
    /// What joins the two streams of a connection.
    next_request_id: AtomicU64,
    keep_alive: KeepAlive,
    /// The connections that there are.
    open: Arc<StreamSet>,
    /// Why it is over, when it is.
    close_reason: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

/// How a connection to a pod is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortForwardOptions {
    /// By what.
    pub transport: TransportPreference,
    /// How it is looked after.
    pub keep_alive: KeepAlive,
}

/// What connections to ports are carried by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransportPreference {
    /// A WebSocket, or SPDY where that is refused.
    #[default]
    Auto,
    /// SPDY inside a WebSocket (KEP-4006).
    WebSocket,
    /// Plain SPDY.
    Spdy,
}

impl PortForwarder {
    /// Connects to a pod: by WebSocket, or by SPDY where that is refused.
    pub async fn connect(endpoint: &Endpoint, namespace: &str, pod: &str) -> Result<Self, Error> {
        Self::connect_with(endpoint, namespace, pod, PortForwardOptions::default()).await
    }

    /// Connects to a pod in a certain manner.
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
        let socket = Socket::new(io, input, Role::Client, keep_alive.websocket_keepalive());
        let io = Tunnel::new(socket);
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
        let io = Prefixed { prefix, io };
        let transport = Transport::Spdy {
            fallback_reason: None,
        };
        Ok(Self::start(io, endpoint.server(), transport, keep_alive))
    }

    fn start<T>(io: T, server: String, transport: Transport, keep_alive: KeepAlive) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = Tapped::new(
            io,
            skewbridge_spdy::Role::Client,
            keep_alive.spdy_keepalive(),
            Asked::Plainly,
        );
        let tap = io.tap();
        let (handle, incoming, driver) = connection::client(io, Config::default());
        // Pods open none.
        drop(incoming);
        let (close_sender, close_reason) = watch::channel(None);
        let pings = Pings::new(handle.clone(), tap);
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

    /// How it is carried.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Waits until the connection to the pod is over, and tells why.
    pub async fn closed(&self) -> String {
        let mut close_reason = self.close_reason.clone();
        let cause = close_reason.wait_for(Option::is_some).await;
        let cause = cause.ok().and_then(|cause| cause.clone());
        cause.unwrap_or_else(|| "it was left".to_owned())
    }

    /// Whether the connection to the pod is over.
    pub fn is_closed(&self) -> bool {
        self.close_reason.borrow().is_some()
    }

    /// Whether anything has come from a port by this connection to the pod.
    pub fn has_received_data(&self) -> bool {
        self.open.has_received_data()
    }

    /// Opens a connection to a port. Nothing is waited for: that nobody listens there is
    /// told when it is read from.
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
        // The error stream first, and its own side of it is closed at once.
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

/// Moves the bytes of all connections; gives why it is over.
///
/// A local program that does not read keeps us from reading the connection where the pod
/// heeds no windows: its answers are not heard then, and that is no silence of its own.
async fn drive<T>(driver: Driver<T>, pings: Pings) -> String
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut driver = pin!(driver);
    let mut timer = Timer::new();
    poll_fn(|cx| {
        pings.before();
        if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
            return Poll::Ready(match ended {
                Ok(()) => "the other side ended the connection".to_owned(),
                Err(error) => disconnect_message::of_spdy(&error),
            });
        }
        timer.bring_forward(pings.next(), cx);
        while timer.poll_expired(cx).is_ready() {
            if !pings.look(Instant::now()) {
                return Poll::Ready("the other side does not answer any more".to_owned());
            }
            timer.set(pings.next(), cx);
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;

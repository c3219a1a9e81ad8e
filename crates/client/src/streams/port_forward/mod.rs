//! Connections to ports of a pod.

mod carry;
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

use super::clock::Clock;
use super::keep_alive::KeepAlive;
use super::lost;
use super::process::Transport;
use super::request::pod_path;
use super::upgrade::{self, Repeat, Upgraded};
use crate::endpoint::Endpoint;
use crate::error::Error;

pub use local::{Closing, Local};
pub use stream::PortStream;
use stream::{Company, Everybody};

/// One connection to a pod, that carries any number of connections to its ports. When
/// this is dropped, all of them end.
#[derive(Debug)]
pub struct PortForwarder {
    handle: Handle,
    server: String,
    transport: Transport,
    /// What joins the two streams of a connection.
    next: AtomicU64,
    keep_alive: KeepAlive,
    /// The connections that there are.
    open: Arc<Everybody>,
    /// Why it is over, when it is.
    over: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

/// How a connection to a pod is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// By what.
    pub by: By,
    /// How it is looked after.
    pub keep_alive: KeepAlive,
}

/// What connections to ports are carried by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum By {
    /// A WebSocket, or SPDY where that is refused.
    #[default]
    Either,
    /// SPDY inside a WebSocket (KEP-4006).
    WebSocket,
    /// Plain SPDY.
    Spdy,
}

impl PortForwarder {
    /// Connects to a pod: by WebSocket, or by SPDY where that is refused.
    pub async fn connect(endpoint: &Endpoint, namespace: &str, pod: &str) -> Result<Self, Error> {
        Self::connect_in(endpoint, namespace, pod, Manner::default()).await
    }

    /// Connects to a pod in a certain manner.
    pub async fn connect_in(
        endpoint: &Endpoint,
        namespace: &str,
        pod: &str,
        manner: Manner,
    ) -> Result<Self, Error> {
        let path = pod_path(namespace, pod, "portforward");
        let Manner { by, keep_alive } = manner;
        let error = match by {
            By::Spdy => return Self::by_spdy(endpoint, &path, keep_alive).await,
            By::WebSocket => return Self::by_websocket(endpoint, &path, keep_alive).await,
            By::Either => match Self::by_websocket(endpoint, &path, keep_alive).await {
                Ok(forwarder) => return Ok(forwarder),
                Err(error) => error,
            },
        };
        let behind_https_proxy = endpoint.is_behind_https_proxy();
        let Some(reason) = upgrade::instead(&error, behind_https_proxy, Repeat::Harmless) else {
            return Err(error);
        };
        match Self::by_spdy(endpoint, &path, keep_alive).await {
            Ok(mut forwarder) => {
                let instead = Some(reason);
                forwarder.transport = Transport::Spdy { instead };
                Ok(forwarder)
            }
            Err(error) => Err(Error::neither(reason, error)),
        }
    }

    async fn by_websocket(
        endpoint: &Endpoint,
        path: &str,
        keep_alive: KeepAlive,
    ) -> Result<Self, Error> {
        let upgraded = upgrade::websocket(endpoint, path, TUNNELLED_PORT_FORWARD).await?;
        let Upgraded { io, input, .. } = upgraded;
        let socket = WebSocketConn::new(io, input, Role::Client, keep_alive.pulse());
        let io = WebSocketIo::new(socket);
        let transport = Transport::WebSocket;
        Ok(Self::over(io, endpoint.server(), transport, keep_alive))
    }

    async fn by_spdy(
        endpoint: &Endpoint,
        path: &str,
        keep_alive: KeepAlive,
    ) -> Result<Self, Error> {
        let upgraded = upgrade::spdy(endpoint, path, [PORT_FORWARD]).await?;
        if upgraded.protocol.as_deref() != Some(PORT_FORWARD) {
            return Err(Error::Unswitched {
                server: endpoint.server(),
                cause: format!("not to {PORT_FORWARD}"),
            });
        }
        let (prefix, io) = (upgraded.input, upgraded.io);
        let io = Rewind { prefix, io };
        let transport = Transport::Spdy { instead: None };
        Ok(Self::over(io, endpoint.server(), transport, keep_alive))
    }

    fn over<T>(io: T, server: String, transport: Transport, keep_alive: KeepAlive) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = ObservedIo::new(
            io,
            skewbridge_spdy::Role::Client,
            keep_alive.pace(),
            PingPolicy::Always,
        );
        let keepalive = io.keepalive_handle();
        let (handle, incoming, driver) = connection::client(io, Config::default());
        // Pods open none.
        drop(incoming);
        let (tell, over) = watch::channel(None);
        let pings = SpdyPinger::new(handle.clone(), keepalive);
        let task = tokio::spawn(async move {
            let cause = drive(driver, pings).await;
            tell.send_replace(Some(cause));
        });
        Self {
            handle,
            server,
            transport,
            next: AtomicU64::new(0),
            keep_alive,
            open: Arc::default(),
            over,
            task,
        }
    }

    /// How it is carried.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Waits until the connection to the pod is over, and tells why.
    pub async fn closed(&self) -> String {
        let mut over = self.over.clone();
        let cause = over.wait_for(Option::is_some).await;
        let cause = cause.ok().and_then(|cause| cause.clone());
        cause.unwrap_or_else(|| "it was left".to_owned())
    }

    /// Whether the connection to the pod is over.
    pub fn is_closed(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Whether anything has come from a port by this connection to the pod.
    pub fn has_served(&self) -> bool {
        self.open.was_served()
    }

    /// Opens a connection to a port. Nothing is waited for: that nobody listens there is
    /// told when it is read from.
    pub fn open(&self, port: Port) -> Result<PortStream, Error> {
        let request = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let broke_off = |cause: String| Error::BrokeOff {
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
                .map_err(|error| broke_off(error.to_string()))
        };
        // The error stream first, and its own side of it is closed at once.
        let mut error = open(Kind::Error)?;
        error
            .sender
            .finish()
            .map_err(|error| broke_off(error.to_string()))?;
        let data = open(Kind::Data)?;
        Ok(PortStream::new(
            data,
            error.receiver,
            Company::join(&self.open),
            self.keep_alive.patience,
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
async fn drive<T>(driver: Driver<T>, pings: SpdyPinger) -> String
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut driver = pin!(driver);
    let mut clock = Clock::new();
    poll_fn(|cx| {
        pings.before_drive();
        if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
            return Poll::Ready(match ended {
                Ok(()) => "the other side ended the connection".to_owned(),
                Err(error) => lost::of_spdy(&error),
            });
        }
        clock.hurry(pings.next_deadline(), cx);
        while clock.poll_due(cx).is_ready() {
            if !pings.check(Instant::now()) {
                return Poll::Ready("the other side does not answer any more".to_owned());
            }
            clock.set(pings.next_deadline(), cx);
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;

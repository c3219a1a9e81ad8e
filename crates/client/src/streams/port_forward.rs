//! Connections to ports of a pod.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use skewbridge_channels::port_forward::tunnel::{PORT_FORWARD, TUNNELLED_PORT_FORWARD};
use skewbridge_channels::port_forward::{Port, Stream as Kind, pair};
use skewbridge_spdy::connection::{self, Driver, Handle, Receiver, Sender};
use skewbridge_spdy::frame::ResetStatus;
use skewbridge_spdy::{Config, Headers, StreamError};
use skewbridge_websocket::Role;
use skewbridge_wire::{Pings, Prefixed, Socket, Tunnel};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::clock::Clock;
use super::keep_alive::KeepAlive;
use super::lost;
use super::process::Transport;
use super::request::pod_path;
use super::upgrade::{self, Upgraded};
use crate::endpoint::Endpoint;
use crate::error::Error;

/// The longest reason why there is no connection to a port.
const LONGEST_ERROR: usize = 4 * 1024;

/// What is read of a local connection at once.
const CHUNK: usize = 32 * 1024;

/// One connection to a pod, that carries any number of connections to its ports. When
/// this is dropped, all of them end.
#[derive(Debug)]
pub struct PortForwarder {
    handle: Handle,
    server: String,
    transport: Transport,
    /// What joins the two streams of a connection.
    next: AtomicU64,
    /// Why it is over, when it is.
    over: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

/// One connection to a port. Ended (shut down) it takes no more, and still gives what
/// comes; dropped, it is reset unless it was ended.
#[derive(Debug)]
pub struct PortStream {
    sender: Sender,
    receiver: Receiver,
    /// Come, and not read.
    piece: Bytes,
    ended: bool,
    error: PortError,
}

/// What the other side has to say of a connection, beside its data.
#[derive(Debug)]
struct PortError {
    receiver: Option<Receiver>,
    text: Vec<u8>,
}

impl PortForwarder {
    /// Connects to a pod: by WebSocket, or by SPDY where that is refused.
    pub async fn connect(endpoint: &Endpoint, namespace: &str, pod: &str) -> Result<Self, Error> {
        match Self::by_websocket(endpoint, namespace, pod).await {
            Ok(forwarder) => Ok(forwarder),
            Err(error) => {
                let behind_https_proxy = endpoint.is_behind_https_proxy();
                let Some(reason) = upgrade::instead(&error, behind_https_proxy) else {
                    return Err(error);
                };
                let mut forwarder = Self::by_spdy(endpoint, namespace, pod).await?;
                let instead = Some(reason);
                forwarder.transport = Transport::Spdy { instead };
                Ok(forwarder)
            }
        }
    }

    /// With SPDY inside a WebSocket (KEP-4006).
    pub async fn by_websocket(
        endpoint: &Endpoint,
        namespace: &str,
        pod: &str,
    ) -> Result<Self, Error> {
        let path = pod_path(namespace, pod, "portforward");
        let upgraded = upgrade::websocket(endpoint, &path, TUNNELLED_PORT_FORWARD).await?;
        let Upgraded { io, input, .. } = upgraded;
        let keep_alive = KeepAlive::default();
        let socket = Socket::new(io, input, Role::Client, keep_alive.pulse());
        let io = Tunnel::new(socket);
        Ok(Self::over(io, endpoint, Transport::WebSocket, keep_alive))
    }

    /// With plain SPDY.
    pub async fn by_spdy(endpoint: &Endpoint, namespace: &str, pod: &str) -> Result<Self, Error> {
        let path = pod_path(namespace, pod, "portforward");
        let upgraded = upgrade::spdy(endpoint, &path, [PORT_FORWARD]).await?;
        if upgraded.protocol.as_deref() != Some(PORT_FORWARD) {
            return Err(Error::Unswitched {
                server: endpoint.server(),
                cause: format!("not to {PORT_FORWARD}"),
            });
        }
        let (prefix, io) = (upgraded.input, upgraded.io);
        let io = Prefixed { prefix, io };
        let transport = Transport::Spdy { instead: None };
        Ok(Self::over(io, endpoint, transport, KeepAlive::default()))
    }

    fn over<T>(io: T, endpoint: &Endpoint, transport: Transport, keep_alive: KeepAlive) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (handle, incoming, driver) = connection::client(io, Config::default());
        // Pods open none.
        drop(incoming);
        let (tell, over) = watch::channel(None);
        let pings = Pings::new(handle.clone(), keep_alive.pulse());
        let task = tokio::spawn(async move {
            let cause = drive(driver, pings).await;
            tell.send_replace(Some(cause));
        });
        Self {
            handle,
            server: endpoint.server(),
            transport,
            next: AtomicU64::new(0),
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
        Ok(PortStream {
            sender: data.sender,
            receiver: data.receiver,
            piece: Bytes::new(),
            ended: false,
            error: PortError {
                receiver: Some(error.receiver),
                text: Vec::new(),
            },
        })
    }
}

impl Drop for PortForwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Moves the bytes of all connections; gives why it is over.
async fn drive<T>(driver: Driver<T>, mut pings: Pings) -> String
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut driver = pin!(driver);
    let mut clock = Clock::new();
    poll_fn(|cx| {
        if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
            return Poll::Ready(match ended {
                Ok(()) => "the other side ended the connection".to_owned(),
                Err(error) => lost::of_spdy(&error),
            });
        }
        pings.poll(cx);
        while clock.poll_due(cx).is_ready() {
            if !pings.look(Instant::now()) {
                return Poll::Ready("the other side does not answer any more".to_owned());
            }
            pings.poll(cx);
            clock.set(pings.pulse.next(), cx);
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

impl PortStream {
    /// Carries a local connection to the port and back until both have ended, or one
    /// has failed. What the pod has said last still reaches the local side.
    pub async fn carry<T>(mut self, local: T) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut read, mut write) = tokio::io::split(local);
        let Self {
            sender,
            receiver,
            error,
            ..
        } = &mut self;
        let up = async {
            let mut buffer = bytes::BytesMut::new();
            loop {
                poll_fn(|cx| sender.poll_ready(cx)).await.map_err(failed)?;
                buffer.reserve(CHUNK);
                if read.read_buf(&mut buffer).await? == 0 {
                    // One that the other side has ended needs no end.
                    let _ = sender.finish();
                    return Ok::<_, io::Error>(());
                }
                sender.send(buffer.split().freeze()).map_err(failed)?;
            }
        };
        let down = async {
            while let Some(piece) = next(receiver).await? {
                write.write_all(&piece).await?;
            }
            // Whoever waits for more is told that there is none.
            write.shutdown().await
        };
        let (mut up, mut down) = (pin!(up), pin!(down));
        let ended = tokio::select! {
            ended = &mut down => ended,
            // The local side has sent its last, or is gone.
            ended = &mut up => match ended {
                Ok(()) => down.await,
                Err(error) => Err(error),
            },
        };
        error.look();
        match error.told() {
            Some(told) => Err(told),
            None => ended,
        }
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.piece.is_empty() {
            match ready!(poll_next(&mut this.receiver, cx)) {
                Ok(Some(piece)) => this.piece = piece,
                ended => {
                    this.error.look();
                    if let Some(told) = this.error.told() {
                        return Poll::Ready(Err(told));
                    }
                    return Poll::Ready(ended.map(drop));
                }
            }
        }
        let length = this.piece.len().min(buf.remaining());
        buf.put_slice(&this.piece[..length]);
        this.piece.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.sender.poll_ready(cx)).map_err(failed)?;
        let length = bytes.len().min(CHUNK);
        this.sender
            .send(Bytes::copy_from_slice(&bytes[..length]))
            .map_err(failed)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The driver sends what there is.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ended {
            this.ended = true;
            let _ = this.sender.finish();
        }
        Poll::Ready(Ok(()))
    }
}

impl PortError {
    /// Takes what has come. It is written before the data ends, so nothing is waited for.
    fn look(&mut self) {
        let cx = Context::from_waker(std::task::Waker::noop());
        while let Some(receiver) = &mut self.receiver {
            match receiver.poll_read(&cx) {
                Poll::Ready(Ok(Some(piece))) => {
                    let room = LONGEST_ERROR - self.text.len();
                    self.text.extend_from_slice(&piece[..piece.len().min(room)]);
                }
                Poll::Ready(_) => self.receiver = None,
                Poll::Pending => return,
            }
        }
    }

    fn told(&self) -> Option<io::Error> {
        if self.text.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.text);
        Some(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            text.trim().to_owned(),
        ))
    }
}

async fn next(receiver: &mut Receiver) -> io::Result<Option<Bytes>> {
    poll_fn(|cx| poll_next(receiver, cx)).await
}

/// Runtimes reset a stream whose port has been closed as well as one that has failed;
/// the error stream tells which.
fn poll_next(receiver: &mut Receiver, cx: &Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
    receiver.poll_read(cx).map(|read| match read {
        Err(StreamError::ResetByPeer(ResetStatus::Cancel)) => Ok(None),
        read => read.map_err(failed),
    })
}

#[allow(clippy::needless_pass_by_value)] // as it is used
fn failed(error: StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())
}

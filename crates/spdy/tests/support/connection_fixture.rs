//! Two ends of a connection, and a data pattern to verify.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{future, io};

use bytes::Bytes;
use skewbridge_spdy::connection::{self, Handle, Incoming, Receiver, Stream};
use skewbridge_spdy::{Config, Error, FlowControl, Headers, StreamError};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A byte pattern that reveals wrong offsets: its length is no multiple of any buffer size.
pub(crate) static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut noise = 1u32;
    let next = |_| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.to_be_bytes()[0]
    };
    (0..1_000_003).map(next).collect()
});

/// The bytes at `from` of the repeated pattern.
pub(crate) fn pattern(from: usize, bytes: usize) -> Bytes {
    let from = from % PATTERN.len();
    let rest = PATTERN.len() - from;
    if bytes <= rest {
        return PATTERN.slice(from..from + bytes);
    }
    [&PATTERN[from..], &pattern(0, bytes - rest)]
        .concat()
        .into()
}

/// Reads to the end and verifies the pattern; returns the length.
pub(crate) async fn verify_pattern(mut receiver: Receiver) -> Result<usize, StreamError> {
    let mut bytes = 0;
    while let Some(data) = receiver.read().await? {
        assert!(data == pattern(bytes, data.len()), "wrong bytes at {bytes}");
        bytes += data.len();
    }
    Ok(bytes)
}

/// All data.
pub(crate) async fn read_to_end(receiver: &mut Receiver) -> Result<Bytes, StreamError> {
    let mut all = Vec::new();
    while let Some(data) = with_timeout(receiver.read()).await? {
        all.extend_from_slice(&data);
    }
    Ok(all.into())
}

/// Waits with a timeout.
pub(crate) async fn with_timeout<F: future::IntoFuture>(future: F) -> F::Output {
    let limit = Duration::from_mins(1);
    tokio::time::timeout(limit, future).await.unwrap()
}

/// Small limits.
pub(crate) fn config(flow_control: FlowControl) -> Config {
    Config {
        flow_control,
        receive_window: 100_000,
        send_queue: 50_000,
        ..Config::default()
    }
}

/// Two ends with their drivers.
pub(crate) struct ConnectionFixture {
    pub(crate) client: Handle,
    pub(crate) server: Handle,
    /// The streams that the client opens.
    pub(crate) incoming: Incoming,
    pub(crate) client_driver: JoinHandle<Result<(), Error>>,
    pub(crate) server_driver: JoinHandle<Result<(), Error>>,
}

pub(crate) fn connection_fixture(config: Config) -> ConnectionFixture {
    let (local, remote) = duplex(64 * 1024);
    ConnectionFixture::with_io(local, remote, config)
}

impl ConnectionFixture {
    pub(crate) fn with_io<T>(local: T, remote: T, config: Config) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (client, _, client_driver) = connection::client(local, config.clone());
        let (server, incoming, server_driver) = connection::server(remote, config);
        Self {
            client,
            server,
            incoming,
            client_driver: tokio::spawn(client_driver),
            server_driver: tokio::spawn(server_driver),
        }
    }

    /// An accepted stream: the client's end and the server's.
    pub(crate) async fn stream(&mut self) -> (Stream, Stream) {
        let mut client = self.client.open(Headers::new()).unwrap();
        let request = with_timeout(self.incoming.next()).await.unwrap();
        let server = request.accept(Headers::new()).unwrap();
        with_timeout(client.accepted()).await.unwrap();
        (client, server)
    }

    /// Closes from the client, and checks that both drivers succeed.
    pub(crate) async fn close_cleanly(self) {
        self.client.close();
        with_timeout(self.client_driver).await.unwrap().unwrap();
        with_timeout(self.server_driver).await.unwrap().unwrap();
    }
}

/// A connection over loopback.
pub(crate) async fn loopback() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let local = TcpStream::connect(listener.local_addr().unwrap());
    let (local, remote) = tokio::join!(local, listener.accept());
    (local.unwrap(), remote.unwrap().0)
}

/// Does not support vectored writes.
pub(crate) struct NonVectoredIo(pub(crate) DuplexStream);

impl AsyncRead for NonVectoredIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for NonVectoredIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

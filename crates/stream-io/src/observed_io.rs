//! An IO wrapper that feeds the frames of an SPDY connection to its keepalive, for an owner
//! that does not hold the connection itself.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use skewbridge_spdy::Role;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::frame_scanner::{FrameScanner, ScannedFrame};
use crate::ping_policy::PingPolicy;
use crate::spdy_keepalive::{KeepaliveConfig, SpdyKeepalive};

/// The bytes of an SPDY connection, observed in both directions.
#[derive(Debug)]
pub struct ObservedIo<T> {
    io: T,
    role: Role,
    read: FrameScanner,
    written: FrameScanner,
    keepalive: KeepaliveHandle,
}

/// Shared access to the keepalive of an observed connection.
#[derive(Debug, Clone)]
pub struct KeepaliveHandle(Arc<Mutex<SpdyKeepalive>>);

impl KeepaliveHandle {
    /// Locks the keepalive.
    pub fn lock(&self) -> MutexGuard<'_, SpdyKeepalive> {
        // A panic leaves no partial update behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ObservedIo<T> {
    /// Observes a connection on which nothing has been sent yet; `role` is the local end.
    pub fn new(io: T, role: Role, config: KeepaliveConfig, policy: PingPolicy) -> Self {
        let keepalive = SpdyKeepalive::new(config, policy, Instant::now());
        Self {
            io,
            role,
            read: FrameScanner::default(),
            written: FrameScanner::default(),
            keepalive: KeepaliveHandle(Arc::new(Mutex::new(keepalive))),
        }
    }

    /// The keepalive, which stays accessible when the connection is moved.
    pub fn keepalive_handle(&self) -> KeepaliveHandle {
        self.keepalive.clone()
    }

    fn record_write<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        written: &Poll<io::Result<usize>>,
    ) {
        let Poll::Ready(Ok(mut left)) = *written else {
            return;
        };
        let mut keepalive = self.keepalive.lock();
        let now = Instant::now();
        // Pings of clients have odd ids (SPDY/3.1, 2.6.5); other ids are replies.
        let ours = u32::from(self.role == Role::Client);
        for slice in slices {
            let (some, _) = slice.split_at(left.min(slice.len()));
            left -= some.len();
            self.written.scan(some, |frame, bytes| match frame {
                ScannedFrame::Ping(id) if id % 2 == ours => keepalive.on_ping_sent(now, id),
                frame => keepalive.on_sent(now, frame, bytes),
            });
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ObservedIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        let (_, some) = buf.filled().split_at(before);
        if !some.is_empty() {
            let mut keepalive = this.keepalive.lock();
            keepalive.on_received(Instant::now());
            this.read.scan(some, |frame, _| {
                if let ScannedFrame::Ping(id) = frame {
                    keepalive.on_ping_received(id);
                }
            });
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ObservedIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.record_write([bytes], &written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.record_write(slices.iter().map(|slice| &**slice), &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skewbridge_spdy::connection;
    use skewbridge_spdy::{Config, Headers};

    use super::*;
    use crate::spdy_keepalive::SpdyKeepaliveAction;

    #[tokio::test]
    async fn the_keepalive_observes_all_frames_of_a_connection() {
        let config = KeepaliveConfig {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
        };
        let (local, remote) = tokio::io::duplex(100);
        let local = ObservedIo::new(local, Role::Client, config, PingPolicy::AvoidNearEof);
        let keepalive = local.keepalive_handle();
        let (handle, _none, driver) = connection::client(local, Config::default());
        let (_remote, mut incoming, pod) = connection::server(remote, Config::default());
        tokio::spawn(driver);
        tokio::spawn(pod);
        let mut stream = handle.open(Headers::new()).unwrap();
        let request = incoming.next().await.unwrap();
        let mut other = request.accept(Headers::new()).unwrap();
        stream.sender.write("some".into()).await.unwrap();
        other.receiver.read().await.unwrap();

        // Data was sent, so a ping is due soon.
        let next = keepalive.lock().next_deadline();
        assert!(next.unwrap() < Instant::now() + config.interval / 5);
        let later = Instant::now() + config.interval;
        assert_eq!(
            keepalive.lock().check(later),
            SpdyKeepaliveAction::SendPings
        );
        for _ in 0..SpdyKeepalive::PINGS_PER_ROUND {
            handle.ping().await.unwrap();
        }
        // Everything is confirmed, and bytes were received.
        assert_eq!(keepalive.lock().dead_at(), None);
        assert_eq!(
            keepalive.lock().next_deadline(),
            Some(later + config.interval)
        );
    }
}

//! An SPDY connection whose frames are seen on their way, by whoever looks after its other
//! end and does not hold it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use skewbridge_spdy::Role;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::asked::Asked;
use crate::passing::{Frame, Passing};
use crate::traffic::{Pace, Traffic};

/// The bytes of an SPDY connection.
#[derive(Debug)]
pub struct Tapped<T> {
    io: T,
    role: Role,
    read: Passing,
    written: Passing,
    tap: Tap,
}

/// What is seen.
#[derive(Debug, Clone)]
pub struct Tap(Arc<Mutex<Traffic>>);

impl Tap {
    /// What went through so far.
    pub fn traffic(&self) -> MutexGuard<'_, Traffic> {
        // Nothing in there is half done when something panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Tapped<T> {
    /// Sees all from here on, where nothing has been sent yet: of whom this is, and how the
    /// other end is asked.
    pub fn new(io: T, role: Role, pace: Pace, tact: Asked) -> Self {
        let traffic = Traffic::new(pace, tact, Instant::now());
        Self {
            io,
            role,
            read: Passing::default(),
            written: Passing::default(),
            tap: Tap(Arc::new(Mutex::new(traffic))),
        }
    }

    /// What is seen, which stays when the connection is given away.
    pub fn tap(&self) -> Tap {
        self.tap.clone()
    }

    fn wrote<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        written: &Poll<io::Result<usize>>,
    ) {
        let Poll::Ready(Ok(mut left)) = *written else {
            return;
        };
        let mut traffic = self.tap.traffic();
        let now = Instant::now();
        // Questions of clients are odd (SPDY/3.1, 2.6.5); others are answers.
        let ours = u32::from(self.role == Role::Client);
        for slice in slices {
            let (some, _) = slice.split_at(left.min(slice.len()));
            left -= some.len();
            self.written.pass(some, |frame, bytes| match frame {
                Frame::Ping(id) if id % 2 == ours => traffic.pinged(now, id),
                frame => traffic.sent(now, frame, bytes),
            });
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Tapped<T> {
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
            let mut traffic = this.tap.traffic();
            traffic.heard(Instant::now());
            this.read.pass(some, |frame, _| {
                if let Frame::Ping(id) = frame {
                    traffic.is_answer(id);
                }
            });
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Tapped<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.wrote([bytes], &written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.wrote(slices.iter().map(|slice| &**slice), &written);
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
    use crate::traffic::Say;

    #[tokio::test]
    async fn all_that_a_connection_says_is_seen() {
        let pace = Pace {
            interval: Duration::from_secs(10),
            patience: Duration::from_secs(5),
        };
        let (here, there) = tokio::io::duplex(100);
        let here = Tapped::new(here, Role::Client, pace, Asked::Gently);
        let tap = here.tap();
        let (handle, _none, driver) = connection::client(here, Config::default());
        let (_there, mut incoming, pod) = connection::server(there, Config::default());
        tokio::spawn(driver);
        tokio::spawn(pod);
        let mut stream = handle.open(Headers::new()).unwrap();
        let request = incoming.next().await.unwrap();
        let mut other = request.accept(Headers::new()).unwrap();
        stream.sender.write("some".into()).await.unwrap();
        other.receiver.read().await.unwrap();

        // Something was sent, and soon asked for.
        let next = tap.traffic().next();
        assert!(next.unwrap() < Instant::now() + pace.interval / 5);
        let later = Instant::now() + pace.interval;
        assert_eq!(tap.traffic().look(later), Say::Pings);
        for _ in 0..Traffic::ROUND {
            handle.ping().await.unwrap();
        }
        // All was taken, and it was heard.
        assert_eq!(tap.traffic().death(), None);
        assert_eq!(tap.traffic().next(), Some(later + pace.interval));
    }
}

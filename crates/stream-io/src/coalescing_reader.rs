//! Fewer system calls above TLS.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// From this size on a read is bulk data, of which more may be available.
const BULK_READ_BYTES: usize = 4 * 1024;

/// Reads as much as is available. TLS yields one record at a time, and relaying each by itself
/// costs a system call for each.
#[derive(Debug)]
pub struct CoalescingReader<T> {
    io: T,
    /// An error that followed bytes that are returned first.
    deferred_error: Option<io::Error>,
}

impl<T: AsyncRead + Unpin> CoalescingReader<T> {
    /// Reads from `io`.
    pub fn new(io: T) -> Self {
        Self {
            io,
            deferred_error: None,
        }
    }

    /// Waits for some bytes, and adds those that are available without waiting; 0 is the end of the
    /// stream. If it is cancelled, no bytes were read.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(buffer, cx)).await
    }

    fn poll_read(&mut self, buffer: &mut [u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(error) = self.deferred_error.take() {
            return Poll::Ready(Err(error));
        }
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        let mut before = 0;
        while buffer.remaining() > 0 && buffer.filled().len() >= BULK_READ_BYTES.max(before + 1) {
            before = buffer.filled().len();
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    self.deferred_error = Some(error);
                    break;
                }
            }
        }
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The results of a stream, call by call; then pending.
    struct Script(VecDeque<io::Result<usize>>);

    impl AsyncRead for Script {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                None => Poll::Pending,
                Some(result) => {
                    buffer.put_slice(&vec![7; result?]);
                    Poll::Ready(Ok(()))
                }
            }
        }
    }

    /// The result of each read, until one is pending.
    fn read(script: impl IntoIterator<Item = io::Result<usize>>) -> Vec<Option<usize>> {
        let mut reader = CoalescingReader::new(Script(script.into_iter().collect()));
        let mut buffer = vec![0; 64 * 1024];
        let mut read = Vec::new();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(result) = reader.poll_read(&mut buffer, &mut cx) {
            read.push(result.ok());
        }
        read
    }

    #[test]
    fn available_bytes_are_coalesced_and_no_end_is_lost() {
        let reset = || Err(io::ErrorKind::ConnectionReset.into());
        assert_eq!(read([]), []);
        assert_eq!(
            read([Ok(1), Ok(2)]),
            [Some(1), Some(2)],
            "small reads are not coalesced"
        );
        assert_eq!(read([Ok(16 << 10), Ok(9)]), [Some((16 << 10) + 9)]);
        let full = [16 << 10; 5].map(Ok);
        assert_eq!(
            read(full),
            [Some(64 << 10), Some(16 << 10)],
            "no more than the buffer holds"
        );
        assert_eq!(read([Ok(1 << 13), Ok(0), Ok(0)]), [Some(1 << 13), Some(0)]);
        assert_eq!(
            read([Ok(1 << 13), reset(), Ok(0)]),
            [Some(1 << 13), None, Some(0)]
        );
        assert_eq!(read([reset(), Ok(0)]), [None, Some(0)]);
    }
}

//! Fewer system calls above TLS.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// From so many bytes on it is bulk, of which more may be there.
const BULK_READ_BYTES: usize = 4 * 1024;

/// Reads as much as is there. TLS gives one record at a time, and whoever passes each of
/// them on makes a system call for each.
#[derive(Debug)]
pub struct CoalescingReader<T> {
    io: T,
    /// What came behind bytes that were to be read first.
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

    /// Waits for some bytes, and takes those behind them that need not be waited for; 0 is
    /// the end. Cancelled, it has read nothing.
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

    /// What a stream says, call by call; then nothing.
    struct Script(VecDeque<io::Result<usize>>);

    impl AsyncRead for Script {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                None => Poll::Pending,
                Some(said) => {
                    buffer.put_slice(&vec![7; said?]);
                    Poll::Ready(Ok(()))
                }
            }
        }
    }

    /// What is read, call by call, until it has to be waited for.
    fn read(script: impl IntoIterator<Item = io::Result<usize>>) -> Vec<Option<usize>> {
        let mut reader = CoalescingReader::new(Script(script.into_iter().collect()));
        let mut buffer = vec![0; 64 * 1024];
        let mut read = Vec::new();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(said) = reader.poll_read(&mut buffer, &mut cx) {
            read.push(said.ok());
        }
        read
    }

    #[test]
    fn what_is_there_is_taken_and_no_end_is_lost() {
        let cut = || Err(io::ErrorKind::ConnectionReset.into());
        assert_eq!(read([]), []);
        assert_eq!(read([Ok(1), Ok(2)]), [Some(1), Some(2)], "a word at a time");
        assert_eq!(read([Ok(16 << 10), Ok(9)]), [Some((16 << 10) + 9)]);
        let full = [16 << 10; 5].map(Ok);
        assert_eq!(
            read(full),
            [Some(64 << 10), Some(16 << 10)],
            "no more than fits"
        );
        assert_eq!(read([Ok(1 << 13), Ok(0), Ok(0)]), [Some(1 << 13), Some(0)]);
        assert_eq!(
            read([Ok(1 << 13), cut(), Ok(0)]),
            [Some(1 << 13), None, Some(0)]
        );
        assert_eq!(read([cut(), Ok(0)]), [None, Some(0)]);
    }
}

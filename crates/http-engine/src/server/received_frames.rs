//! Counts received bytes of an HTTP/2 connection, and detects an open header block. The h2 crate
//! exposes neither.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ClientIo;
use crate::buffer_budget::{ClientLimits, Sample, StallGuard};

/// Length of the client preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Length of a frame header (RFC 9113, 4.1).
const FRAME_HEADER_BYTES: usize = 9;

const FRAME_HEADERS: u8 = 0x1;
const FRAME_CONTINUATION: u8 = 0x9;
const FLAG_END_HEADERS: u8 = 0x4;

/// Approximate memory of a decoded field that HPACK encodes in one byte.
const BYTES_PER_INDEXED_FIELD: usize = 100;

/// Parses the frame headers of a client.
#[derive(Debug)]
struct FrameReader {
    /// Bytes to skip: the preface, or a payload.
    skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    filled: usize,
    /// Encoded bytes of a header block that has not ended.
    open_block: Option<usize>,
}

impl FrameReader {
    fn new() -> Self {
        Self {
            skip: PREFACE_BYTES,
            header: [0; FRAME_HEADER_BYTES],
            filled: 0,
            open_block: None,
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let passed = self.skip.min(bytes.len());
            self.skip -= passed;
            bytes = &bytes[passed..];
            let taken = (FRAME_HEADER_BYTES - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == FRAME_HEADER_BYTES {
                self.filled = 0;
                self.begin_frame();
            }
        }
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.skip = length;
        if kind == FRAME_HEADERS || kind == FRAME_CONTINUATION {
            self.open_block = (flags & FLAG_END_HEADERS == 0)
                .then(|| self.open_block.unwrap_or(0) + length + FRAME_HEADER_BYTES);
        }
    }
}

/// A byte stream from a client, with counters.
#[derive(Debug)]
pub(super) struct ReceivedFrames<'a> {
    io: ClientIo,
    bytes: Arc<AtomicU64>,
    frames: FrameReader,
    /// Timeout of an open header block, the same as of an HTTP/1.1 head.
    open_block: StallGuard<'a>,
    max_block_bytes: usize,
}

impl<'a> ReceivedFrames<'a> {
    pub(super) fn new(
        io: ClientIo,
        limits: &'a ClientLimits,
        head_timeout: Duration,
        max_block_bytes: usize,
    ) -> Self {
        Self {
            io,
            bytes: Arc::default(),
            frames: FrameReader::new(),
            open_block: StallGuard::new(limits, Some(head_timeout)),
            max_block_bytes,
        }
    }

    /// How many bytes have been received so far.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }
}

impl AsyncRead for ReceivedFrames<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        let read = &buf.filled()[before..];
        if !read.is_empty() {
            // Only one task reads, so no atomic addition (a locked instruction) is needed.
            let received = this.bytes.load(Ordering::Relaxed) + read.len() as u64;
            this.bytes.store(received, Ordering::Relaxed);
            this.frames.feed(read);
        }
        let Some(encoded) = this.frames.open_block else {
            this.open_block.end_wait();
            return polled;
        };
        let sample = || Sample {
            bytes: (encoded * BYTES_PER_INDEXED_FIELD).min(this.max_block_bytes),
            waits_for_client: true,
        };
        // Further bytes do not extend the timeout.
        match this.open_block.poll_evicted(0, sample, cx) {
            Poll::Pending => polled,
            Poll::Ready(_) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncWrite for ReceivedFrames<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skewbridge_testkit::h2frames::{PREFACE, continuation, data, flag, headers, settings};

    use super::*;

    fn open_block(bytes: &[u8], chunk: usize) -> Option<usize> {
        let mut frames = FrameReader::new();
        for piece in bytes.chunks(chunk) {
            frames.feed(piece);
        }
        frames.open_block
    }

    #[test]
    fn a_header_block_is_open_until_its_last_frame() {
        let begin = [PREFACE, &settings(&[])].concat();
        let whole = headers(1, flag::END_HEADERS, &[0; 10]);
        let part = headers(3, flag::NONE, &[0; 10]);
        for (frames, open) in [
            (vec![], None),
            (vec![whole.clone()], None),
            (vec![part.clone()], Some(19)),
            (vec![whole, part.clone()], Some(19)),
            (
                vec![part.clone(), continuation(3, flag::NONE, &[0; 20])],
                Some(48),
            ),
            (
                vec![part, continuation(3, flag::END_HEADERS, &[0; 20])],
                None,
            ),
            (vec![data(1, flag::END_HEADERS, &[1; 500])], None),
        ] {
            let bytes = [begin.clone(), frames.concat()].concat();
            assert_eq!(open_block(&bytes, bytes.len()), open);
        }
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_open_block(
            lengths in proptest::collection::vec((0_usize..300, 0_u8..10, any::<bool>()), 0..20),
            chunk in 1_usize..50,
        ) {
            let mut bytes = PREFACE.to_vec();
            for (length, kind, end) in lengths {
                let flags = if end { flag::END_HEADERS } else { flag::NONE };
                let payload = vec![kind; length];
                bytes.extend(skewbridge_testkit::h2frames::frame(kind, flags, 1, &payload));
            }
            prop_assert_eq!(open_block(&bytes, chunk), open_block(&bytes, bytes.len()));
        }
    }
}

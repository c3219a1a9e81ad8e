//! A byte stream with the two buffers that a message-based reader and writer needs: bytes that
//! were read and not parsed, and bytes that were written and not sent.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

use crate::chunked_write::{CHUNK_BYTES, ChunkedSlices};

/// The source is not polled while at least this many bytes are unsent: four TLS records.
const HIGH_WATER_BYTES: usize = 64 * 1024;

/// Chunks from this size on are sent without being copied; smaller ones are coalesced.
const COPY_BELOW_BYTES: usize = 4 * 1024;

/// A byte stream with its buffers.
#[derive(Debug)]
pub struct Buffered<T> {
    /// The underlying stream.
    pub io: T,
    /// Read and not parsed.
    pub input: BytesMut,
    /// Written and not sent, before `output`.
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Written and not sent.
    pub output: BytesMut,
    /// How much is read at once.
    chunk: usize,
    flushed: bool,
    sent: u64,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Buffered<T> {
    /// Reads up to `chunk` bytes at once.
    pub fn new(io: T, chunk: usize) -> Self {
        Self {
            io,
            input: BytesMut::new(),
            queue: VecDeque::new(),
            queued: 0,
            output: BytesMut::new(),
            chunk,
            flushed: true,
            sent: 0,
        }
    }

    /// Reads some bytes into `input`; 0 is the end of the stream.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < self.chunk / 4 {
            self.input.reserve(self.chunk);
        }
        poll_read_buf(Pin::new(&mut self.io), cx, &mut self.input)
    }

    /// Writes these bytes, without copying them if there are many.
    pub fn push_data(&mut self, data: Bytes) {
        if data.len() < COPY_BELOW_BYTES {
            self.output.extend_from_slice(&data);
            return;
        }
        if !self.output.is_empty() {
            let before = self.output.split().freeze();
            self.push(before);
        }
        self.push(data);
    }

    fn push(&mut self, bytes: Bytes) {
        self.queued += bytes.len();
        self.queue.push_back(bytes);
    }

    /// How many bytes are written and not sent.
    pub fn unsent(&self) -> usize {
        self.queued + self.output.len()
    }

    /// Whether everything was sent, including TLS's own buffer.
    pub fn is_flushed(&self) -> bool {
        self.flushed && self.unsent() == 0
    }

    /// How many bytes have been sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether more may be written.
    pub fn has_room(&self) -> bool {
        self.unsent() < HIGH_WATER_BYTES
    }

    /// Sends everything that was written.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unsent() > 0 {
            self.flushed = false;
            let sent = ready!(self.poll_write(cx))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent as u64;
            self.advance(sent);
        }
        if !self.flushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let io = Pin::new(&mut self.io);
        if self.queue.is_empty() && self.output.len() <= CHUNK_BYTES {
            return io.poll_write(cx, &self.output);
        }
        let chunks = self.queue.iter().map(|chunk| &chunk[..]);
        let slices = ChunkedSlices::new(chunks.chain([&self.output[..]]));
        io.poll_write_vectored(cx, slices.as_slice())
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(front) = self.queue.front_mut() {
            let now = sent.min(front.len());
            front.advance(now);
            self.queued -= now;
            sent -= now;
            if !front.is_empty() {
                return;
            }
            self.queue.pop_front();
        }
        self.output.advance(sent);
    }

    /// Frees the buffers of an idle connection.
    pub fn release(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        if self.unsent() == 0 {
            self.output = BytesMut::new();
            self.queue = VecDeque::new();
        }
    }
}

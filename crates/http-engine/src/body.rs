//! Request and response bodies as streams of frames. Only the start of a response is buffered, while
//! the request can still be retried on another server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use tokio::time::{Instant, timeout_at};

/// A frame of a body.
#[derive(Clone)]
pub enum Frame {
    /// A part of the body.
    Data(Bytes),
    /// Fields after the last byte.
    Trailers(HeaderMap),
}

/// Bodies contain secrets: only their sizes are shown.
impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Data(data) => write!(f, "Data({} bytes)", data.len()),
            Self::Trailers(trailers) => write!(f, "Trailers({} fields)", trailers.len()),
        }
    }
}

/// Why a body is incomplete.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BodyError {
    /// The client disconnected, or sent an invalid body.
    #[error("the client's body ended early: {0}")]
    Client(String),
    /// Upstream disconnected, or sent an invalid body.
    #[error("upstream's answer ended early: {0}")]
    Upstream(String),
    /// The server sent something that is not HTTP.
    #[error("upstream's answer is not HTTP: {0}")]
    Malformed(String),
}

/// Result of polling a body; `None` is the end.
pub type PollFrame = Poll<Option<Result<Frame, BodyError>>>;

/// The next frame of an HTTP/2 stream. Releases flow-control credit, so call it only when the caller
/// has capacity.
pub(crate) fn poll_stream(
    stream: &mut RecvStream,
    cx: &mut Context<'_>,
    to_error: fn(String) -> BodyError,
) -> PollFrame {
    let failed = |error: h2::Error| Some(Err(to_error(error.to_string())));
    match stream.poll_data(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(Some(Ok(data))) => {
            let _ = stream.flow_control().release_capacity(data.len());
            Poll::Ready(Some(Ok(Frame::Data(data))))
        }
        Poll::Ready(Some(Err(error))) => Poll::Ready(failed(error)),
        Poll::Ready(None) => match stream.poll_trailers(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(None)) => Poll::Ready(None),
            Poll::Ready(Ok(Some(trailers))) => Poll::Ready(Some(Ok(Frame::Trailers(trailers)))),
            Poll::Ready(Err(error)) => Poll::Ready(failed(error)),
        },
    }
}

/// A body that arrives on a connection, from a client or from upstream.
pub trait BodySource: std::fmt::Debug + Send {
    /// The next frame.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame;

    /// Buffered bytes: received and not read yet, and of the request not sent to upstream yet.
    fn buffered(&mut self) -> usize;

    /// Whether the body is known to be complete.
    fn is_done(&self) -> bool;

    /// Continues sending the request while the response is not read, for a stream that carries both.
    fn poll_request(&mut self, _cx: &mut Context<'_>) {}
}

/// The body of a request.
pub enum RequestBody {
    /// Nothing.
    Empty,
    /// These bytes.
    Full(Bytes),
    /// From a client.
    Stream(Box<dyn BodySource + Sync>),
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// A complete body.
impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::Empty
        } else {
            Self::Full(bytes)
        }
    }
}

impl RequestBody {
    /// The next frame. The first call sends `100 Continue` to a client that waits for it.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::Data(bytes))))
            }
            Self::Stream(body) => body.poll_frame(cx),
        }
    }

    /// Bytes that have arrived and have not been read. Those of HTTP/1.1 are counted with
    /// the connection.
    pub fn buffered(&mut self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Full(bytes) => bytes.len(),
            Self::Stream(body) => body.buffered(),
        }
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(_) => false,
            Self::Stream(body) => body.is_done(),
        }
    }
}

/// The body of a response.
#[derive(Debug)]
pub struct ResponseBody {
    source: Source,
    /// Ends the body before its source does.
    early_end: Option<Box<dyn EarlyEnd>>,
}

/// Ends a body cleanly before its source ends, as for a watch when the proxy drains.
pub trait EarlyEnd: std::fmt::Debug + Send {
    /// These bytes were forwarded to the client.
    fn on_forwarded(&mut self, bytes: &[u8]);

    /// Ready when the body must end now. Polled only when the source has no data.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// Produces the chunks of a response that a server generates itself, such as a watch.
pub trait ChunkProducer: std::fmt::Debug + Send {
    /// The next chunk; `None` is the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

enum Source {
    Empty,
    Full(Bytes),
    Generated(Box<dyn ChunkProducer>),
    Stream(Box<dyn BodySource>),
    BufferedStart(Box<BufferedStart>),
    Failed(BodyError),
}

/// The buffered start of a body, and the rest.
#[derive(Debug)]
struct BufferedStart {
    frames: VecDeque<Frame>,
    rest: Source,
}

/// Maximum number of buffered frames: each has a memory overhead.
const MAX_BUFFERED_FRAMES: usize = 64;

/// Maximum time for which the start is buffered. A slower response is forwarded as it arrives.
const MAX_BUFFERING_TIME: Duration = Duration::from_secs(1);

impl ResponseBody {
    /// An empty body.
    pub fn empty() -> Self {
        Self::from(Source::Empty)
    }

    /// A body of these bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self::from(if bytes.is_empty() {
            Source::Empty
        } else {
            Source::Full(bytes)
        })
    }

    /// A body of chunks, sent as they are produced.
    pub fn generated(producer: impl ChunkProducer + 'static) -> Self {
        Self::from(Source::Generated(Box::new(producer)))
    }

    /// A body that failed.
    pub(crate) fn failed(error: BodyError) -> Self {
        Self::from(Source::Failed(error))
    }

    /// A body that arrives on a connection.
    pub fn stream(body: impl BodySource + 'static) -> Self {
        Self::from(Source::Stream(Box::new(body)))
    }

    /// Ends the body early when `end` is ready.
    pub fn end_early(&mut self, end: impl EarlyEnd + 'static) {
        self.early_end = Some(Box::new(end));
    }

    /// Buffers the start of the body until it is complete, exceeds `limit` bytes by a frame, or
    /// a second has passed.
    pub async fn buffer_start(mut self, limit: usize) -> Result<Self, BodyError> {
        let mut frames = VecDeque::new();
        let mut bytes = 0;
        let until = Instant::now() + MAX_BUFFERING_TIME;
        while bytes < limit && frames.len() < MAX_BUFFERED_FRAMES {
            let Ok(next) = timeout_at(until, poll_fn(|cx| self.poll_frame(cx))).await else {
                break;
            };
            let Some(frame) = next.transpose()? else {
                self.source = Source::Empty;
                break;
            };
            if let Frame::Data(data) = &frame {
                bytes += data.len();
            }
            frames.push_back(frame);
        }
        if !frames.is_empty() {
            let rest = std::mem::replace(&mut self.source, Source::Empty);
            self.source = Source::BufferedStart(Box::new(BufferedStart { frames, rest }));
        }
        Ok(self)
    }

    /// Collects a body of at most `limit` bytes.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, BodyError> {
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await {
            if let Frame::Data(data) = frame? {
                if whole.len() + data.len() > limit {
                    let problem = format!("the body is longer than {limit} bytes");
                    return Err(BodyError::Upstream(problem));
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok(whole.freeze())
    }

    /// Whether the buffered start contains these bytes.
    pub fn buffered_start_contains(&self, words: &[u8]) -> bool {
        let Source::BufferedStart(held) = &self.source else {
            return false;
        };
        let mut text = Vec::new();
        for frame in &held.frames {
            if let Frame::Data(data) = frame {
                text.extend_from_slice(data);
            }
        }
        text.windows(words.len()).any(|window| window == words)
    }

    /// The next frame.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let polled = self.source.poll_frame(cx);
        if let Some(end) = &mut self.early_end {
            // Received data is forwarded before an early end.
            if let Poll::Ready(Some(Ok(Frame::Data(data)))) = &polled {
                end.on_forwarded(data);
            } else if polled.is_pending() && end.poll_end(cx).is_ready() {
                self.source = Source::Empty;
                return Poll::Ready(None);
            }
        }
        polled
    }

    /// Continues sending the request while the client does not read the response. Drops the rest of the
    /// request if upstream no longer reads it.
    pub fn poll_request(&mut self, cx: &mut Context<'_>) {
        if let Source::Stream(body) = &mut self.source {
            body.poll_request(cx);
        }
    }

    /// Buffered bytes: received for the client and not read, and of the request not sent to upstream.
    pub fn buffered(&mut self) -> usize {
        self.source.buffered()
    }

    /// Whether the body is known to be complete.
    pub fn is_done(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(_)
            | Source::BufferedStart(_)
            | Source::Generated(_)
            | Source::Failed(_) => false,
            Source::Stream(body) => body.is_done(),
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Self::Generated(_) => f.write_str("Generated"),
            Self::Stream(_) => f.write_str("Stream"),
            Self::BufferedStart(held) => held.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl Source {
    fn buffered(&mut self) -> usize {
        match self {
            Self::Empty | Self::Generated(_) | Self::Failed(_) => 0,
            Self::Full(bytes) => bytes.len(),
            Self::Stream(body) => body.buffered(),
            Self::BufferedStart(held) => {
                let frames = held.frames.iter().map(|frame| match frame {
                    Frame::Data(data) => data.len(),
                    Frame::Trailers(_) => 0,
                });
                frames.sum::<usize>() + held.rest.buffered()
            }
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::Data(bytes))))
            }
            Self::Generated(producer) => producer
                .poll_chunk(cx)
                .map(|chunk| chunk.map(|data| Ok(Frame::Data(data)))),
            Self::Stream(body) => body.poll_frame(cx),
            Self::Failed(error) => Poll::Ready(Some(Err(error.clone()))),
            Self::BufferedStart(held) => {
                let frame = held.frames.pop_front();
                if held.frames.is_empty() {
                    *self = std::mem::replace(&mut held.rest, Self::Empty);
                }
                match frame {
                    Some(frame) => Poll::Ready(Some(Ok(frame))),
                    None => self.poll_frame(cx),
                }
            }
        }
    }
}

impl From<Source> for ResponseBody {
    fn from(source: Source) -> Self {
        Self {
            source,
            early_end: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(words: &[&'static str]) -> ResponseBody {
        let frames = words.iter().map(|word| Frame::Data(Bytes::from(*word)));
        ResponseBody::from(Source::BufferedStart(Box::new(BufferedStart {
            frames: frames.collect(),
            rest: Source::Full(Bytes::from("end")),
        })))
    }

    async fn read(mut body: ResponseBody) -> Vec<Bytes> {
        let mut all = Vec::new();
        while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
            match frame.unwrap() {
                Frame::Data(data) => all.push(data),
                Frame::Trailers(_) => panic!("the body has no trailers"),
            }
        }
        assert!(body.is_done());
        all
    }

    #[tokio::test]
    async fn buffered_frames_are_returned_in_order_and_once() {
        for limit in [0, 1, 3, 4, 100] {
            let body = pieces(&["one", "two"]).buffer_start(limit).await.unwrap();
            assert_eq!(read(body).await, ["one", "two", "end"], "{limit}");
        }
        let nothing = ResponseBody::empty().buffer_start(100).await.unwrap();
        assert!(nothing.is_done());
    }

    #[tokio::test]
    async fn buffering_stops_at_the_limit() {
        let held = |body: ResponseBody| match body.source {
            Source::BufferedStart(held) => held.frames.len(),
            _ => 0,
        };
        let words = vec!["x"; 2 * MAX_BUFFERED_FRAMES];
        assert_eq!(
            held(pieces(&words).buffer_start(usize::MAX).await.unwrap()),
            MAX_BUFFERED_FRAMES
        );
    }
}

//! Bodies of requests and responses: frames as they arrive, never collected. Only the beginning
//! of a response is held back where another server could still be asked for it.

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
    /// Some bytes.
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

/// Why a body did not arrive whole.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BodyError {
    /// The client went away, or sent something that is no body.
    #[error("the client's body ended early: {0}")]
    Client(String),
    /// The server went away, or sent something that is no body.
    #[error("upstream's answer ended early: {0}")]
    Upstream(String),
    /// The server sent something that is not HTTP.
    #[error("upstream's answer is not HTTP: {0}")]
    Malformed(String),
}

/// What polling a body gives: `None` is its end.
pub type PollFrame = Poll<Option<Result<Frame, BodyError>>>;

/// The next frame of an HTTP/2 stream of either side. The caller has room for it: until then
/// the sender's window is held.
pub(crate) fn poll_stream(
    stream: &mut RecvStream,
    cx: &mut Context<'_>,
    whose: fn(String) -> BodyError,
) -> PollFrame {
    let failed = |error: h2::Error| Some(Err(whose(error.to_string())));
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

    /// Bytes that this body holds: those that have arrived and have not been read, and those
    /// of the request that upstream has not taken.
    fn buffered(&mut self) -> usize;

    /// Whether it is known that nothing more is to come.
    fn is_done(&self) -> bool;

    /// Moves the rest of the request on while the response is not read, where the same stream
    /// carries both.
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

/// A body that is at hand as a whole.
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
    /// The next frame. The first call tells a client that waits for
    /// `100 Continue` to go on.
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

    /// Whether nothing more is to come.
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

/// Decides that a body ends before its source does, with a clean end: a watch does when the
/// proxy drains.
pub trait EarlyEnd: std::fmt::Debug + Send {
    /// These bytes are on their way to the client.
    fn passed(&mut self, bytes: &[u8]);

    /// Ready when the body is to end now. Polled only when the source has nothing to pass on.
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
    Held(Box<Held>),
    Failed(BodyError),
}

/// The beginning that is held back, and what follows it.
#[derive(Debug)]
struct Held {
    frames: VecDeque<Frame>,
    rest: Source,
}

/// Frames that are held back at most: each costs memory, however small it is.
const MAX_HELD_FRAMES: usize = 64;

/// How long anything is held back. A slower response is passed on as it arrives.
const MAX_HOLD_TIME: Duration = Duration::from_secs(1);

impl ResponseBody {
    /// Nothing.
    pub fn empty() -> Self {
        Self::from(Source::Empty)
    }

    /// These bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self::from(if bytes.is_empty() {
            Source::Empty
        } else {
            Source::Full(bytes)
        })
    }

    /// Chunks as they are produced.
    pub fn generated(producer: impl ChunkProducer + 'static) -> Self {
        Self::from(Source::Generated(Box::new(producer)))
    }

    /// A body that was cut.
    pub(crate) fn failed(error: BodyError) -> Self {
        Self::from(Source::Failed(error))
    }

    /// From a connection.
    pub fn stream(body: impl BodySource + 'static) -> Self {
        Self::from(Source::Stream(Box::new(body)))
    }

    /// Lets `end` end it before its source does.
    pub fn end_early(&mut self, end: impl EarlyEnd + 'static) {
        self.early_end = Some(Box::new(end));
    }

    /// Holds the beginning back until the end has arrived, or `limit` bytes and a frame more,
    /// or until [`MAX_HOLD_TIME`] has passed.
    pub async fn hold_beginning(mut self, limit: usize) -> Result<Self, BodyError> {
        let mut frames = VecDeque::new();
        let mut bytes = 0;
        let until = Instant::now() + MAX_HOLD_TIME;
        while bytes < limit && frames.len() < MAX_HELD_FRAMES {
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
            self.source = Source::Held(Box::new(Held { frames, rest }));
        }
        Ok(self)
    }

    /// All of it, if it is not longer than `limit`.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, BodyError> {
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await {
            if let Frame::Data(data) = frame? {
                if whole.len() + data.len() > limit {
                    let problem = format!("it is longer than {limit} bytes");
                    return Err(BodyError::Upstream(problem));
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok(whole.freeze())
    }

    /// Whether these words are in the beginning that is held back.
    pub fn beginning_contains(&self, words: &[u8]) -> bool {
        let Source::Held(held) = &self.source else {
            return false;
        };
        let mut text = Vec::new();
        for frame in &held.frames {
            if let Frame::Data(data) = frame {
                text.extend_from_slice(data);
            }
        }
        text.windows(words.len()).any(|it| it == words)
    }

    /// The next frame.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let polled = self.source.poll_frame(cx);
        if let Some(end) = &mut self.early_end {
            // What has arrived is passed on first.
            if let Poll::Ready(Some(Ok(Frame::Data(data)))) = &polled {
                end.passed(data);
            } else if polled.is_pending() && end.poll_end(cx).is_ready() {
                self.source = Source::Empty;
                return Poll::Ready(None);
            }
        }
        polled
    }

    /// Moves the rest of the request on while the client does not take the answer, and
    /// drops it where upstream does not want it any more.
    pub fn poll_request(&mut self, cx: &mut Context<'_>) {
        if let Source::Stream(body) = &mut self.source {
            body.poll_request(cx);
        }
    }

    /// Bytes that have arrived for the client and have not been read, and those of the
    /// request that upstream has not taken.
    pub fn buffered(&mut self) -> usize {
        self.source.buffered()
    }

    /// Whether it is known that nothing more is to come.
    pub fn is_done(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(_) | Source::Held(_) | Source::Generated(_) | Source::Failed(_) => false,
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
            Self::Held(held) => held.fmt(f),
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
            Self::Held(held) => {
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
            Self::Held(held) => {
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
        ResponseBody::from(Source::Held(Box::new(Held {
            frames: frames.collect(),
            rest: Source::Full(Bytes::from("end")),
        })))
    }

    async fn read(mut body: ResponseBody) -> Vec<Bytes> {
        let mut all = Vec::new();
        while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
            match frame.unwrap() {
                Frame::Data(data) => all.push(data),
                Frame::Trailers(_) => panic!("there are none"),
            }
        }
        assert!(body.is_done());
        all
    }

    #[tokio::test]
    async fn what_is_held_back_comes_in_order_and_once() {
        for limit in [0, 1, 3, 4, 100] {
            let body = pieces(&["one", "two"]).hold_beginning(limit).await.unwrap();
            assert_eq!(read(body).await, ["one", "two", "end"], "{limit}");
        }
        let nothing = ResponseBody::empty().hold_beginning(100).await.unwrap();
        assert!(nothing.is_done());
    }

    #[tokio::test]
    async fn no_more_is_held_back_than_allowed() {
        let held = |body: ResponseBody| match body.source {
            Source::Held(held) => held.frames.len(),
            _ => 0,
        };
        let words = vec!["x"; 2 * MAX_HELD_FRAMES];
        assert_eq!(
            held(pieces(&words).hold_beginning(usize::MAX).await.unwrap()),
            MAX_HELD_FRAMES
        );
    }
}

//! Bodies on their way through: pieces as they come, never collected.

use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;

use crate::serve::h1::WireBody;
use crate::serve::h2::StreamBody;
use crate::upstream::h1::H1Body;
use crate::upstream::h2::H2Body;
use crate::watch::WatchEnd;

/// A piece of a body.
#[derive(Debug, Clone)]
pub enum Frame {
    /// Some bytes.
    Data(Bytes),
    /// Fields after the last byte.
    Trailers(HeaderMap),
}

/// Why a body did not arrive whole.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BodyError {
    /// The client went away, or sent something that is no body.
    #[error("the client's body ended early: {0}")]
    Client(String),
    /// Upstream went away, or sent something that is no body.
    #[error("upstream's answer ended early: {0}")]
    Upstream(String),
}

/// What polling a body gives: `None` is its end.
pub type PollFrame = Poll<Option<Result<Frame, BodyError>>>;

/// The next piece of a stream of HTTP/2, whichever side it comes from. Whoever
/// asks has room for it: until then the sender's window is held.
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

/// What a client sends.
#[derive(Debug)]
pub enum RequestBody {
    /// Nothing.
    Empty,
    /// The bridge's own words.
    Full(Bytes),
    /// Over HTTP/1.1.
    H1(WireBody),
    /// Over HTTP/2.
    H2(StreamBody),
}

impl RequestBody {
    /// The next piece. The first call tells a client that waits for
    /// `100 Continue` to go on.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::Data(bytes))))
            }
            Self::H1(body) => body.poll_frame(cx),
            Self::H2(body) => body.poll_frame(cx),
        }
    }

    /// Whether nothing more is to come.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(_) => false,
            Self::H1(body) => body.is_done(),
            Self::H2(body) => body.is_done(),
        }
    }
}

/// What a client is answered.
#[derive(Debug)]
pub struct ResponseBody {
    source: Source,
    /// A watch ends when the bridge goes away, and it ends cleanly.
    until: Option<Box<WatchEnd>>,
}

#[derive(Debug)]
enum Source {
    Empty,
    Full(Bytes),
    H1(Box<H1Body>),
    H2(H2Body),
}

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

    pub(crate) fn h1(body: H1Body) -> Self {
        Self::from(Source::H1(Box::new(body)))
    }

    pub(crate) fn h2(body: H2Body) -> Self {
        Self::from(Source::H2(body))
    }

    pub(crate) fn end_with(&mut self, end: WatchEnd) {
        self.until = Some(Box::new(end));
    }

    /// The next piece.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let polled = match &mut self.source {
            Source::Empty => Poll::Ready(None),
            Source::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.source = Source::Empty;
                Poll::Ready(Some(Ok(Frame::Data(bytes))))
            }
            Source::H1(body) => body.poll_frame(cx),
            Source::H2(body) => body.poll_frame(cx),
        };
        if let Some(until) = &mut self.until {
            // What has arrived is passed on first.
            if let Poll::Ready(Some(Ok(Frame::Data(data)))) = &polled {
                until.passed(data);
            } else if polled.is_pending() && until.poll_end(cx).is_ready() {
                self.source = Source::Empty;
                return Poll::Ready(None);
            }
        }
        polled
    }

    /// Whether it is known that nothing more is to come.
    pub fn is_done(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(_) => false,
            Source::H1(body) => body.is_done(),
            Source::H2(body) => body.is_done(),
        }
    }
}

impl From<Source> for ResponseBody {
    fn from(source: Source) -> Self {
        Self {
            source,
            until: None,
        }
    }
}

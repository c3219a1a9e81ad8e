//! Bodies on their way through: pieces as they come, never collected unless a
//! modifier asks for it.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use tokio::time::timeout;

/// A piece of a body.
#[derive(Debug)]
pub(crate) enum Frame {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// Why a body did not arrive whole.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Cut(pub(crate) String);

/// What polling a body gives: `None` is its end.
pub(crate) type PollFrame = Poll<Option<Result<Frame, Cut>>>;

/// A body, whichever side it comes from.
pub(crate) trait Body: Send {
    /// The next piece. For a request's body the first call tells a client that
    /// waits for `100 Continue` to go on.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame;

    /// Whether it is known that nothing more is to come.
    fn is_done(&self) -> bool;
}

/// Any body.
pub(crate) type AnyBody = Box<dyn Body>;

/// These bytes, or none.
pub(crate) struct Whole(pub(crate) Bytes);

impl Body for Whole {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> PollFrame {
        let bytes = std::mem::take(&mut self.0);
        Poll::Ready((!bytes.is_empty()).then_some(Ok(Frame::Data(bytes))))
    }

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

/// What has been cut stays cut.
pub(crate) struct Broken(pub(crate) Cut);

impl Body for Broken {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> PollFrame {
        Poll::Ready(Some(Err(self.0.clone())))
    }

    fn is_done(&self) -> bool {
        false
    }
}

/// No body.
pub(crate) fn empty() -> AnyBody {
    Box::new(Whole(Bytes::new()))
}

/// What has come of a body, and what is still to come.
pub(crate) struct Resumed {
    pub(crate) first: Bytes,
    pub(crate) rest: AnyBody,
}

impl Body for Resumed {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let first = std::mem::take(&mut self.first);
        if first.is_empty() {
            self.rest.poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::Data(first))))
        }
    }

    fn is_done(&self) -> bool {
        self.first.is_empty() && self.rest.is_done()
    }
}

/// Why a body was not collected.
pub(crate) enum Uncollected {
    TooLong,
    /// Nothing has come for so long.
    Stalled(Resumed),
    Cut(Cut),
}

/// All of a body, if it is not longer than `limit`; as long as `expected`, as a rule.
/// Between two pieces nobody waits for longer than `idle`. Trailers are left out: what is
/// collected is sent with its length.
pub(crate) async fn collect(
    mut body: AnyBody,
    expected: usize,
    limit: usize,
    idle: Duration,
) -> Result<Bytes, Uncollected> {
    let mut whole = BytesMut::with_capacity(expected);
    loop {
        let next = timeout(idle, poll_fn(|cx| body.poll_frame(cx))).await;
        let Ok(frame) = next else {
            let first = whole.freeze();
            return Err(Uncollected::Stalled(Resumed { first, rest: body }));
        };
        let Some(frame) = frame else { break };
        if let Frame::Data(data) = frame.map_err(Uncollected::Cut)? {
            if whole.len() + data.len() > limit {
                return Err(Uncollected::TooLong);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

/// The next piece of a stream of HTTP/2. Whoever asks has room for it: until
/// then the sender's window is held.
pub(crate) fn poll_stream(stream: &mut RecvStream, cx: &mut Context<'_>) -> PollFrame {
    let failed = |error: h2::Error| Some(Err(Cut(error.to_string())));
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

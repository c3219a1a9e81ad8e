//! A request body that can be sent a second time, for as long as upstream can
//! not have acted on it.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use std::sync::Arc;

use skewbridge_api::hygiene;

use crate::body::{Frame, PollFrame, RequestBody};
use crate::caller::Trust;

/// How much of a body is kept for a second try. kube-apiserver gives a stream a
/// window of 256 KiB: of a request that it never looked at, no more than that
/// can have left.
const REPLAY_BYTES: usize = 256 * 1024;

/// Whether a request may be sent again when it is not certain that upstream has
/// not acted on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It only reads.
    Harmless,
    /// It changes something, or starts something: exec by WebSocket is a GET.
    OnlyIfCertain,
}

/// A body, and what of it has been sent so far.
#[derive(Debug)]
pub struct Replay {
    body: RequestBody,
    trust: Arc<Trust>,
    repeat: Repeat,
    /// Sent before, by reference to the same memory.
    sent: VecDeque<Frame>,
    sent_bytes: usize,
    /// How many of `sent` are to be sent again before the body goes on.
    again: usize,
    too_late: bool,
}

impl Replay {
    /// Nothing sent yet.
    pub fn new(body: RequestBody, trust: Arc<Trust>, repeat: Repeat) -> Self {
        Self {
            body,
            trust,
            repeat,
            sent: VecDeque::new(),
            sent_bytes: 0,
            again: 0,
            too_late: false,
        }
    }

    /// Nothing, for the same caller.
    pub(crate) fn empty(&self) -> Self {
        Self::new(RequestBody::Empty, self.trust.clone(), self.repeat)
    }

    /// Whether it may be sent again when in doubt.
    pub(crate) fn repeat(&self) -> Repeat {
        self.repeat
    }

    /// The next piece.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if self.again > 0 {
            let frame = self.sent[self.sent.len() - self.again].clone();
            self.again -= 1;
            return Poll::Ready(Some(Ok(frame)));
        }
        let mut polled = self.body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) = &mut polled {
            // What may not be said in a header may not be said behind the body.
            self.trust.headers().remove(trailers);
            hygiene::remove_hop_by_hop(trailers);
            hygiene::remove_peer_hop(trailers);
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && !self.too_late
        {
            // Small pieces cost more than their bytes.
            self.sent_bytes += match frame {
                Frame::Data(data) => data.len().max(size_of::<Frame>()),
                Frame::Trailers(trailers) => size_of::<Frame>() * (trailers.len() + 1),
            };
            if self.sent_bytes > REPLAY_BYTES {
                self.forget();
            } else {
                self.sent.push_back(frame.clone());
            }
        }
        polled
    }

    /// Whether nothing more is to come.
    pub fn is_done(&self) -> bool {
        self.again == 0 && self.body.is_done()
    }

    /// Goes back to the start; false where too much has been sent.
    pub fn rewind(&mut self) -> bool {
        self.again = self.sent.len();
        !self.too_late
    }

    /// Upstream has answered: there will be no second try.
    pub fn forget(&mut self) {
        self.too_late = true;
        self.sent.clear();
    }
}

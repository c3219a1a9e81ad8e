//! A request body that can be sent a second time, for as long as upstream can
//! not have acted on it.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use std::sync::Arc;

use http::StatusCode;
use skewbridge_k8s_api::forwarding_headers;

use crate::authn::TrustConfig;
use crate::body::{BodyError, Frame, PollFrame, RequestBody};
use crate::buffer_budget::Reservation;
use crate::header_bounds::list_bytes;

/// How much of a body is kept for a second try. kube-apiserver gives a stream a
/// window of 256 KiB: of a request that it never looked at, no more than that
/// can have left.
const REPLAY_BYTES: usize = 256 * 1024;

/// The largest trailers of a request, counted as headers are (RFC 9113, 6.5.2). They share
/// the connection of the request, where a receiver that refuses them may end all streams.
const MAX_TRAILERS_BYTES: usize = 8 * 1024;

/// Whether a request may be sent again when it is not certain that upstream has
/// not acted on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// It only reads.
    Idempotent,
    /// It changes something, or starts something: exec by WebSocket is a GET.
    OnlyIfUnsent,
}

/// A body, and what of it has been sent so far.
#[derive(Debug)]
pub struct Replay {
    body: RequestBody,
    trust: Arc<TrustConfig>,
    repeat: RetryClass,
    /// Sent before, by reference to the same memory.
    sent: VecDeque<Frame>,
    sent_bytes: usize,
    /// How many of `sent` are to be sent again before the body goes on.
    again: usize,
    too_late: bool,
    /// Counts what is in `sent`.
    reservation: Option<Reservation>,
    duplex: bool,
    anonymous: bool,
    header_bytes: Option<usize>,
}

impl Replay {
    /// Nothing sent yet.
    pub fn new(body: RequestBody, trust: Arc<TrustConfig>, repeat: RetryClass) -> Self {
        Self {
            body,
            trust,
            repeat,
            sent: VecDeque::new(),
            sent_bytes: 0,
            again: 0,
            too_late: false,
            reservation: None,
            duplex: false,
            anonymous: false,
            header_bytes: None,
        }
    }

    /// Counts what is kept for a second try. Without room for it there is no second try.
    pub(crate) fn charged_to(mut self, reservation: Reservation) -> Self {
        self.reservation = Some(reservation);
        self
    }

    /// Whether the server may want the rest of the body whatever it has answered.
    pub(crate) fn duplex(mut self, duplex: bool) -> Self {
        self.duplex = duplex;
        self
    }

    /// Whether the caller has no identity.
    pub(crate) fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// The size of the request's headers, so that they are counted once.
    pub(crate) fn set_header_bytes(&mut self, bytes: usize) {
        self.header_bytes = Some(bytes);
    }

    /// That size, where it is known.
    pub(crate) fn header_bytes(&self) -> Option<usize> {
        self.header_bytes
    }

    /// Whether the caller has no identity, or one that upstream does not accept.
    pub(crate) fn is_anonymous(&self, status: StatusCode) -> bool {
        self.anonymous || status == StatusCode::UNAUTHORIZED
    }

    /// Whether the server may still want the rest of the body after an answer with this
    /// status has begun. kube-apiserver reads no more of what it refuses, and never needs
    /// the body of a read.
    pub(crate) fn is_wanted_after(&self, status: StatusCode) -> bool {
        self.duplex || (self.repeat == RetryClass::OnlyIfUnsent && status.is_success())
    }

    /// Bytes that the client has sent and that have not been read.
    pub(crate) fn buffered(&mut self) -> usize {
        self.body.buffered()
    }

    /// Nothing, for the same caller.
    pub(crate) fn empty(&self) -> Self {
        Self::new(RequestBody::Empty, self.trust.clone(), self.repeat)
    }

    /// Whether it may be sent again when in doubt.
    pub(crate) fn repeat(&self) -> RetryClass {
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
            forwarding_headers::remove_hop_by_hop(trailers);
            forwarding_headers::remove_peer_hop_headers(trailers);
            if list_bytes(trailers) > MAX_TRAILERS_BYTES {
                let cause = format!("the trailers are larger than {MAX_TRAILERS_BYTES} bytes");
                return Poll::Ready(Some(Err(BodyError::Client(cause))));
            }
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && !self.too_late
        {
            // Small pieces cost more than their bytes.
            let bytes = match frame {
                Frame::Data(data) => data.len().max(size_of::<Frame>()),
                Frame::Trailers(trailers) => size_of::<Frame>() + list_bytes(trailers),
            };
            self.sent_bytes += bytes;
            let reservation = self.reservation.as_mut();
            if self.sent_bytes > REPLAY_BYTES || reservation.is_some_and(|it| !it.try_add(bytes)) {
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
        self.sent = VecDeque::new();
        self.reservation = None;
    }
}

//! A request body that can be sent again while the server cannot have processed the request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, StatusCode};
use skewbridge_k8s_api::forwarding_headers;

use crate::body::{BodyError, Frame, PollFrame, RequestBody};
use crate::buffer_budget::Reservation;
use crate::header_bounds::list_bytes;

/// How much of a body is kept for a retry: kube-apiserver's stream window of 256 KiB, the maximum that is
/// sent of a request that it never processes.
const MAX_REPLAY_BYTES: usize = 256 * 1024;

/// Maximum size of request trailers, counted like headers (RFC 9113, 6.5.2). A receiver that refuses them
/// may close the connection, with all its streams.
const MAX_TRAILERS_BYTES: usize = 8 * 1024;

/// Whether a request may be retried when it is not certain that the server has not processed
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// A read.
    Idempotent,
    /// A write, or a start of something: exec over WebSocket is a GET.
    OnlyIfUnsent,
}

/// Removes fields from the trailers of requests.
pub trait TrailerFilter: std::fmt::Debug + Send + Sync {
    /// Removes fields that clients may not set.
    fn filter(&self, trailers: &mut HeaderMap);
}

/// Removes nothing but hop-by-hop fields, which are always removed.
impl TrailerFilter for () {
    fn filter(&self, _: &mut HeaderMap) {}
}

/// A body that records what has been sent of it.
#[derive(Debug)]
pub struct ReplayBody {
    body: RequestBody,
    trailer_filter: Arc<dyn TrailerFilter>,
    retry_class: RetryClass,
    /// Sent before, by reference to the same memory.
    sent: VecDeque<Frame>,
    sent_bytes: usize,
    /// How many of `sent` are sent again before the body continues.
    to_resend: usize,
    exhausted: bool,
    /// Counts what is in `sent`.
    reservation: Option<Reservation>,
    /// Counts a body that is complete in memory.
    complete_body: Option<Reservation>,
    duplex: bool,
    anonymous: bool,
    header_bytes: Option<usize>,
}

impl ReplayBody {
    /// A body of which nothing has been sent.
    pub fn new(
        body: RequestBody,
        trailer_filter: Arc<dyn TrailerFilter>,
        retry_class: RetryClass,
    ) -> Self {
        Self {
            body,
            trailer_filter,
            retry_class,
            sent: VecDeque::new(),
            sent_bytes: 0,
            to_resend: 0,
            exhausted: false,
            reservation: None,
            complete_body: None,
            duplex: false,
            anonymous: false,
            header_bytes: None,
        }
    }

    /// Counts the bytes kept for a retry against a budget. When it is exhausted, the request is not retried.
    #[must_use]
    pub fn charged_to(mut self, reservation: Reservation) -> Self {
        self.reservation = Some(reservation);
        self
    }

    /// Counts a body that is complete in memory until it is dropped. What is kept for a retry is the same
    /// memory.
    #[must_use]
    pub fn counted_by(mut self, reservation: Reservation) -> Self {
        self.complete_body = Some(reservation);
        self.reservation = None;
        self
    }

    /// Whether the server may read the rest of the body whatever its response.
    #[must_use]
    pub fn duplex(mut self, duplex: bool) -> Self {
        self.duplex = duplex;
        self
    }

    /// Whether the caller has no identity.
    #[must_use]
    pub fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// The size of the request's headers, so that they are counted once.
    pub fn set_header_bytes(&mut self, bytes: usize) {
        self.header_bytes = Some(bytes);
    }

    /// The size of the request's headers, if it was set.
    pub fn header_bytes(&self) -> Option<usize> {
        self.header_bytes
    }

    /// Whether the caller has no identity, or one that upstream does not accept.
    pub fn is_anonymous(&self, status: StatusCode) -> bool {
        self.anonymous || status == StatusCode::UNAUTHORIZED
    }

    /// Whether the server may still read the body after it has sent this status. kube-apiserver stops reading
    /// the body of a request that it refuses, and does not read the body of a GET.
    pub fn is_wanted_after(&self, status: StatusCode) -> bool {
        self.duplex || (self.retry_class == RetryClass::OnlyIfUnsent && status.is_success())
    }

    /// Bytes that the client has sent and that have not been read.
    pub fn buffered(&mut self) -> usize {
        self.body.buffered()
    }

    /// An empty body of the same caller.
    #[must_use]
    pub fn empty(&self) -> Self {
        Self::new(
            RequestBody::Empty,
            self.trailer_filter.clone(),
            self.retry_class,
        )
    }

    /// What stays with a request while this body is sent. If the server has responded, the bytes are
    /// gone: unless there are none, it cannot be rewound.
    pub(super) fn placeholder(&self) -> Self {
        let has_bytes = !self.is_done() || !self.sent.is_empty() || self.exhausted;
        Self {
            exhausted: has_bytes,
            ..self.empty()
        }
    }

    /// The retry class of the request.
    pub fn retry_class(&self) -> RetryClass {
        self.retry_class
    }

    /// The next frame.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if self.to_resend > 0 {
            let frame = self.sent[self.sent.len() - self.to_resend].clone();
            self.to_resend -= 1;
            return Poll::Ready(Some(Ok(frame)));
        }
        let mut polled = self.body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) = &mut polled {
            // A field that is removed from headers is removed from trailers, too.
            self.trailer_filter.filter(trailers);
            forwarding_headers::remove_hop_by_hop(trailers);
            if list_bytes(trailers) > MAX_TRAILERS_BYTES {
                let cause = format!("the trailers are larger than {MAX_TRAILERS_BYTES} bytes");
                return Poll::Ready(Some(Err(BodyError::Client(cause))));
            }
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && !self.exhausted
        {
            // A small chunk costs more memory than its bytes.
            let bytes = match frame {
                Frame::Data(data) => data.len().max(size_of::<Frame>()),
                Frame::Trailers(trailers) => size_of::<Frame>() + list_bytes(trailers),
            };
            self.sent_bytes += bytes;
            let reservation = self.reservation.as_mut();
            if self.sent_bytes > MAX_REPLAY_BYTES
                || reservation.is_some_and(|it| !it.try_add(bytes))
            {
                self.stop_recording();
            } else {
                self.sent.push_back(frame.clone());
            }
        }
        polled
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.to_resend == 0 && self.body.is_done()
    }

    /// Rewinds to the start; `false` if more was sent than is kept.
    pub fn rewind(&mut self) -> bool {
        self.to_resend = self.sent.len();
        !self.exhausted
    }

    /// Drops the kept bytes: the server has responded, so there is no retry.
    pub fn stop_recording(&mut self) {
        self.exhausted = true;
        self.sent = VecDeque::new();
        self.reservation = None;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn body(request: RequestBody) -> ReplayBody {
        ReplayBody::new(request, Arc::new(()), RetryClass::OnlyIfUnsent)
    }

    #[test]
    fn what_stays_of_a_body_with_bytes_cannot_be_rewound() {
        assert!(body(RequestBody::Empty).placeholder().rewind());
        let full = body(RequestBody::Full(Bytes::from_static(b"{}")));
        assert!(!full.placeholder().rewind());
        assert!(!full.placeholder().placeholder().rewind());
    }
}

//! The body of a request on a stream, and its eviction while the response is pending.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use h2::RecvStream;
use http::{HeaderMap, Response, StatusCode};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};

use super::response::{SharedRespond, lock};
use crate::body::{BodyError, BodySource, Frame, PollFrame, poll_stream};
use crate::buffer_budget::{ClientLimits, Eviction, Sample, StallGuard};

/// Why a request has no answer.
pub(super) enum CallAborted {
    /// The client reset the stream or disconnected.
    Reset,
    /// Evicted; the client gets a Status in this format.
    Evicted(Eviction, Format),
}

/// The request body while the response is pending.
pub(super) struct Incoming<'a> {
    stream: IncomingStream,
    limits: &'a ClientLimits,
    guard: Option<StallGuard<'a>>,
    /// The negotiated format of error responses.
    format: Format,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(body: &StreamBody, limits: &'a ClientLimits, headers: &HeaderMap) -> Self {
        Self {
            stream: body.stream.clone(),
            limits,
            guard: None,
            format: negotiate_error_format(headers),
        }
    }

    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<CallAborted> {
        if self.stream.is_done() {
            self.guard = None;
            return Poll::Pending;
        }
        // Not before the caller is authenticated, by its client certificate or otherwise.
        let guard = self.guard.get_or_insert_with(|| {
            StallGuard::new(self.limits, self.limits.request_body_timeout())
        });
        let sample = || {
            let bytes = self.stream.buffered();
            Sample {
                bytes,
                // Otherwise upstream does not read the received data.
                waits_for_client: bytes == 0,
            }
        };
        let evicted = guard.poll_evicted(self.stream.bytes_read(), sample, cx);
        evicted.map(|eviction| CallAborted::Evicted(eviction, self.format))
    }
}

/// The receiving half of a stream, shared with the task that watches it.
#[derive(Clone)]
struct IncomingStream(Arc<(Mutex<RecvStream>, AtomicU64)>);

impl IncomingStream {
    fn new(stream: RecvStream) -> Self {
        Self(Arc::new((Mutex::new(stream), AtomicU64::new(0))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RecvStream> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_frame(&self, cx: &mut Context<'_>) -> PollFrame {
        let polled = poll_stream(&mut self.lock(), cx, BodyError::Client);
        if let Poll::Ready(Some(Ok(Frame::Data(data)))) = &polled {
            self.0.1.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        polled
    }

    /// Bytes that have been read.
    fn bytes_read(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }

    /// Bytes that have arrived and have not been read.
    fn buffered(&self) -> usize {
        self.lock().flow_control().used_capacity()
    }

    fn is_done(&self) -> bool {
        self.lock().is_end_stream()
    }
}

/// The body of a request on a stream.
pub(super) struct StreamBody {
    stream: IncomingStream,
    /// Sends `100 Continue` before the first byte is read.
    continues: Option<SharedRespond>,
}

impl StreamBody {
    pub(super) fn new(stream: RecvStream, continues: Option<SharedRespond>) -> Self {
        Self {
            stream: IncomingStream::new(stream),
            continues,
        }
    }
}

impl std::fmt::Debug for StreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamBody").finish_non_exhaustive()
    }
}

impl BodySource for StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if let Some(respond) = self.continues.take() {
            let mut respond = lock(&respond);
            // An interim response after the final one violates the protocol.
            if !respond.answered {
                let mut interim = Response::new(());
                *interim.status_mut() = StatusCode::CONTINUE;
                let _ = respond.send.send_informational(interim);
            }
        }
        self.stream.poll_frame(cx)
    }

    fn buffered(&mut self) -> usize {
        self.stream.buffered()
    }

    fn is_done(&self) -> bool {
        self.stream.is_done()
    }
}

//! Sends the response of a stream.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::Response;
use skewbridge_k8s_api::content_negotiation::Format;

use crate::body::{Frame, ResponseBody};
use crate::buffer_budget::{Eviction, Sample, StallGuard};
use crate::error_response;
use crate::server::ResponseRecord;

/// Memory of a stream besides its buffers: its task, its state in the h2 crate and its access log
/// entry. Stalled streams with short responses use little else.
const STREAM_STATE_BYTES: usize = 4 * 1024;

/// Send buffer of a stream.
pub(super) const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;

pub(super) type SharedRespond = Arc<Mutex<Responder>>;

/// Sends the response of a stream, and `100 Continue` before it.
pub(super) struct Responder {
    pub(super) send: SendResponse<Bytes>,
    pub(super) answered: bool,
}

pub(super) fn lock(respond: &SharedRespond) -> std::sync::MutexGuard<'_, Responder> {
    respond.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn send_head(
    respond: &SharedRespond,
    response: Response<()>,
    end: bool,
) -> Result<SendStream<Bytes>, h2::Error> {
    let mut respond = lock(respond);
    respond.answered = true;
    respond.send.send_response(response, end)
}

pub(super) struct WriteAborted;

/// Forwards a body to a stream, within the client's flow-control window.
pub(super) async fn pump(
    body: &mut ResponseBody,
    stream: &mut SendStream<Bytes>,
    record: &mut impl ResponseRecord,
    mut stall: StallGuard<'_>,
) -> Result<(), WriteAborted> {
    let mut waiting: Option<Bytes> = None;
    let mut accepted = 0;
    poll_fn(|cx| {
        loop {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(WriteAborted));
            }
            let Some(data) = &mut waiting else {
                match body.poll_frame(cx) {
                    Poll::Pending => {
                        // The client has received everything: a watch may stay idle for hours.
                        stall.end_wait();
                        return Poll::Pending;
                    }
                    Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                        record.add_bytes(data.len());
                        if !data.is_empty() {
                            stream.reserve_capacity(data.len());
                            waiting = Some(data);
                        }
                        continue;
                    }
                    Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                        return Poll::Ready(
                            stream.send_trailers(trailers).map_err(|_| WriteAborted),
                        );
                    }
                    Poll::Ready(None) => {
                        let end = stream.send_data(Bytes::new(), true);
                        return Poll::Ready(end.map_err(|_| WriteAborted));
                    }
                    Poll::Ready(Some(Err(_))) => {
                        // An end without END_STREAM: the client detects that the response is
                        // truncated.
                        stream.send_reset(Reason::INTERNAL_ERROR);
                        return Poll::Ready(Err(WriteAborted));
                    }
                }
            };
            let room = match stream.poll_capacity(cx) {
                Poll::Pending => {
                    body.poll_request(cx);
                    let sample = || Sample {
                        // At most this much of the accepted data is still unsent.
                        bytes: data.len()
                            + body.buffered()
                            + output_bytes(accepted)
                            + STREAM_STATE_BYTES,
                        waits_for_client: true,
                    };
                    return stall.poll_evicted(accepted, sample, cx).map(|eviction| {
                        stream.send_reset(match eviction {
                            Eviction::TimedOut => Reason::CANCEL,
                            Eviction::OverBudget => Reason::ENHANCE_YOUR_CALM,
                        });
                        Err(WriteAborted)
                    });
                }
                Poll::Ready(Some(Ok(room))) => room,
                Poll::Ready(_) => return Poll::Ready(Err(WriteAborted)),
            };
            let now = data.split_to(room.min(data.len()));
            accepted += now.len() as u64;
            let last = data.is_empty() && body.is_done();
            if data.is_empty() {
                waiting = None;
            }
            if stream.send_data(now, last).is_err() {
                return Poll::Ready(Err(WriteAborted));
            }
            if last {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}

/// Resets a stream, or responds with a Status, before the request is answered.
pub(super) fn evict(respond: &SharedRespond, eviction: Eviction, format: Format) {
    match eviction {
        Eviction::OverBudget => lock(respond).send.send_reset(Reason::ENHANCE_YOUR_CALM),
        Eviction::TimedOut => {
            let (head, body) = error_response::slow_body(format).into_parts();
            if let Ok(mut stream) = send_head(respond, Response::from_parts(head, ()), false) {
                let _ = stream.send_data(body, true);
            }
        }
    }
}

/// The maximum of the accepted bytes that can be unsent.
fn output_bytes(accepted: u64) -> usize {
    usize::try_from(accepted).map_or(MAX_SEND_BUFFER_BYTES, |accepted| {
        accepted.min(MAX_SEND_BUFFER_BYTES)
    })
}

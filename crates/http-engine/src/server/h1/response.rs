//! Writes a response to the connection.

use std::future::poll_fn;
use std::task::{Context, Poll};

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, StatusCode, Version};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};

use super::connection::Connection;
use crate::body::{Frame, ResponseBody};
use crate::buffer_budget::{Sample, StallGuard};
use crate::close_connection::CloseConnection;
use crate::drain::Drain;
use crate::http1::{Encoder, Framing, RequestHead, write_headers, write_status_line};
use crate::message_headers::content_length;
use crate::server::{ClientResponse, ResponseRecord, UpgradeHandler};

/// Properties of a request that determine how its response is written.
pub(super) struct RequestMeta {
    method: Method,
    version: Version,
    keep_alive: bool,
    /// The negotiated format of error responses.
    pub(super) format: Format,
    /// Whether the request is an upgrade.
    switches: bool,
}

impl RequestMeta {
    pub(super) fn of(head: &RequestHead) -> Self {
        Self {
            method: head.method.clone(),
            version: head.version,
            keep_alive: head.keep_alive,
            format: match head.framing {
                Framing::Empty => Format::Json,
                _ => negotiate_error_format(&head.headers),
            },
            switches: head.method == Method::CONNECT || head.headers.contains_key(UPGRADE),
        }
    }
}

pub(super) enum NextStep<R> {
    NextRequest,
    Close,
    Abort,
    Switch(UpgradeHandler<R>, R),
}

pub(super) async fn reply<R: ResponseRecord>(
    connection: &Connection,
    meta: &RequestMeta,
    response: ClientResponse<R>,
    drain: &Drain,
    mut stall: StallGuard<'_>,
) -> NextStep<R> {
    let ClientResponse {
        response,
        switched,
        mut record,
    } = response;
    let (mut head, mut body) = response.into_parts();
    if let Some(switched) = switched {
        write_head(connection, Version::HTTP_11, &head);
        return match poll_fn(|cx| connection.lock().stream.poll_flush(cx)).await {
            Ok(()) => NextStep::Switch(switched, record),
            Err(_) => NextStep::Abort,
        };
    }
    let mut encoder = choose_framing(&mut head, meta);
    let closes = head.extensions.remove::<CloseConnection>().is_some();
    let keep = {
        let shared = connection.lock();
        meta.keep_alive
            // Bytes after a refused upgrade, or CONNECT, are not a request.
            && !meta.switches
            // An unread body would be parsed as the next request.
            && shared.body.is_done()
            && encoder != Encoder::UntilClose
            && !drain.is_draining()
            && !closes
    };
    head.headers.remove(CONNECTION);
    if !keep {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("close"));
    } else if meta.version == Version::HTTP_10 {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    }
    connection.lock().expects_continue = false;
    write_head(connection, meta.version, &head);
    let sent = poll_fn(|cx| {
        let sent = poll_send(connection, &mut body, &mut encoder, &mut record, cx);
        let shared = connection.lock();
        if sent.is_ready() || shared.stream.is_flushed() {
            stall.end_wait();
            return sent;
        }
        let sample = || Sample {
            bytes: shared.stream.unsent() + shared.stream.input.len() + body.buffered(),
            waits_for_client: true,
        };
        let evicted = stall.poll_evicted(shared.stream.sent(), sample, cx);
        evicted.map(|_| Err(WriteAborted))
    })
    .await;
    match sent {
        Ok(()) => {
            record.complete();
            if keep {
                NextStep::NextRequest
            } else {
                NextStep::Close
            }
        }
        // Without its framed end the client detects that the response is truncated.
        Err(WriteAborted) => NextStep::Abort,
    }
}

pub(super) fn write_head(connection: &Connection, version: Version, head: &http::response::Parts) {
    let output = &mut connection.lock().stream.output;
    write_status_line(output, version, head.status);
    write_headers(output, &head.headers);
    output.extend_from_slice(b"\r\n");
}

struct WriteAborted;

/// Forwards the response body to the client: received data is sent at once.
fn poll_send(
    connection: &Connection,
    body: &mut ResponseBody,
    encoder: &mut Encoder,
    record: &mut impl ResponseRecord,
    cx: &mut Context<'_>,
) -> Poll<Result<(), WriteAborted>> {
    loop {
        let mut ended = false;
        let mut pending = false;
        let mut cut = false;
        while connection.lock().stream.has_room() {
            match body.poll_frame(cx) {
                Poll::Pending => {
                    pending = true;
                    break;
                }
                Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                    record.add_bytes(data.len());
                    // A response to HEAD has no body, whatever arrives.
                    if *encoder == Encoder::Empty {
                        continue;
                    }
                    if encoder
                        .queue_data(&mut connection.lock().stream, data)
                        .is_err()
                    {
                        return Poll::Ready(Err(WriteAborted));
                    }
                }
                Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                    let output = &mut connection.lock().stream.output;
                    if encoder.finish(output, Some(&trailers)).is_err() {
                        return Poll::Ready(Err(WriteAborted));
                    }
                    ended = true;
                    break;
                }
                Poll::Ready(None) => {
                    let output = &mut connection.lock().stream.output;
                    if encoder.finish(output, None).is_err() {
                        return Poll::Ready(Err(WriteAborted));
                    }
                    ended = true;
                    break;
                }
                Poll::Ready(Some(Err(error))) => {
                    // Data received before the failure is still sent to the client.
                    *body = ResponseBody::failed(error);
                    cut = true;
                    break;
                }
            }
        }
        let mut shared = connection.lock();
        match shared.stream.poll_flush(cx) {
            Poll::Ready(Ok(())) if ended => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) if cut => return Poll::Ready(Err(WriteAborted)),
            Poll::Ready(Ok(())) if !pending => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(WriteAborted)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                if shared.poll_disconnect(cx).is_ready() {
                    return Poll::Ready(Err(WriteAborted));
                }
                if ended {
                    // The body has ended and must not be polled again; only the rest of the
                    // output is waited for.
                    *encoder = Encoder::Empty;
                    *body = ResponseBody::empty();
                }
                return Poll::Pending;
            }
        }
    }
}

/// Chooses the framing of the response body.
fn choose_framing(head: &mut http::response::Parts, meta: &RequestMeta) -> Encoder {
    head.headers.remove(TRANSFER_ENCODING);
    if meta.method == Method::HEAD
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED
    {
        return Encoder::Empty;
    }
    if let Some(length) = content_length(&head.headers) {
        return Encoder::Length(length);
    }
    head.headers.remove(CONTENT_LENGTH);
    if meta.version == Version::HTTP_10 {
        return Encoder::UntilClose;
    }
    head.headers
        .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    Encoder::Chunked
}

//! Sends one request: its head, and its body as far as the server reads it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::HeaderValue;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use skewbridge_stream_io::Buffered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Duration, Sleep, sleep};

use crate::body::{BodyError, Frame};
use crate::client::{ProtocolPreference, ReplayBody};
use crate::http1::{Encoder, write_headers, write_request_line};
use crate::message_headers::{content_length, expects_continue};

/// The plaintext of one TLS record (RFC 8446, 5.1).
const TLS_RECORD_BYTES: usize = 16 * 1024;

/// Timeout for a reaction to `Expect: 100-continue`, after which the body is sent (RFC 9110, 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends a request: the part that has not been sent yet.
#[derive(Debug)]
pub(super) struct RequestSender {
    encoder: Encoder,
    /// The whole body has been written.
    pub(super) done: bool,
    /// The server no longer reads; a response may still arrive.
    pub(super) failed: Option<String>,
    /// Plaintext bytes written to TLS. If 0, the server has received nothing.
    pub(super) started: bool,
    /// The server has sent something.
    pub(super) response_begun: bool,
    /// Reading the client's body failed: the request must not appear complete.
    pub(super) client: Option<String>,
    /// The body waits for `100 Continue`.
    pub(super) awaiting_continue: Option<Pin<Box<Sleep>>>,
}

impl RequestSender {
    pub(super) fn begin<Io: AsyncRead + AsyncWrite + Unpin>(
        stream: &mut Buffered<Io>,
        head: &Parts,
        body: &ReplayBody,
    ) -> Self {
        let output = &mut stream.output;
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        write_request_line(output, &head.method, target);
        write_headers(output, &head.headers);
        let encoder = write_framing(output, head, body);
        output.extend_from_slice(b"\r\n");
        Self {
            done: encoder == Encoder::Empty,
            awaiting_continue: (encoder != Encoder::Empty && expects_continue(&head.headers))
                .then(|| Box::pin(sleep(CONTINUE_TIMEOUT))),
            encoder,
            failed: None,
            started: false,
            response_begun: false,
            client: None,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.done || self.failed.is_some() || self.client.is_some()
    }

    /// Sends as much of the body as possible.
    pub(super) fn poll<Io: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut Buffered<Io>,
        body: &mut ReplayBody,
        cx: &mut Context<'_>,
    ) {
        loop {
            if let Some(timer) = &mut self.awaiting_continue
                && timer.as_mut().poll(cx).is_ready()
            {
                self.awaiting_continue = None;
            }
            while !self.is_complete() && self.awaiting_continue.is_none() && stream.has_room() {
                match body.poll_frame(cx) {
                    Poll::Pending => break,
                    Poll::Ready(frame) => self.write(stream, frame),
                }
            }
            if self.failed.is_some() || self.client.is_some() {
                return;
            }
            let full = !stream.has_room();
            let before = stream.unsent();
            let flushed = stream.poll_flush(cx);
            self.started |= match &flushed {
                // A partial TLS record cannot be decrypted; of several records the first may have been sent.
                Poll::Ready(Err(_)) => before > TLS_RECORD_BYTES || stream.unsent() < before,
                Poll::Ready(Ok(())) => true,
                Poll::Pending => stream.unsent() < before,
            };
            match flushed {
                // The output has capacity again, and the body has not been polled since.
                Poll::Ready(Ok(())) if full => {}
                Poll::Ready(Err(error)) => {
                    self.failed = Some(error.to_string());
                    return;
                }
                Poll::Ready(Ok(())) | Poll::Pending => return,
            }
        }
    }

    fn write<Io: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut Buffered<Io>,
        frame: Option<Result<Frame, BodyError>>,
    ) {
        let written = match frame {
            Some(Ok(Frame::Data(data))) => self.encoder.queue_data(stream, data),
            Some(Ok(Frame::Trailers(trailers))) => {
                self.done = true;
                self.encoder.finish(&mut stream.output, Some(&trailers))
            }
            None => {
                self.done = true;
                self.encoder.finish(&mut stream.output, None)
            }
            Some(Err(error)) => {
                self.client = Some(error.to_string());
                Ok(())
            }
        };
        if let Err(error) = written {
            self.client = Some(error.to_string());
        }
    }
}

/// Writes the body framing headers, as in the client's request.
fn write_framing(output: &mut BytesMut, head: &Parts, body: &ReplayBody) -> Encoder {
    if let Some(length) = content_length(&head.headers) {
        return if length == 0 {
            Encoder::Empty
        } else {
            Encoder::Length(length)
        };
    }
    if body.is_done() {
        return Encoder::Empty;
    }
    output.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    Encoder::Chunked
}

/// Prepares headers for HTTP/1.1: framing is written by [`RequestSender`].
pub(in crate::client) fn headers_for_h1(head: &mut Parts, prefer: ProtocolPreference) {
    head.headers.remove(TRANSFER_ENCODING);
    if prefer == ProtocolPreference::Upgrade {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    } else {
        head.headers.remove(CONNECTION);
    }
    if let Some(authority) = head.uri.authority()
        && !head.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(HOST, host);
    }
}

//! HTTP/1.1 towards upstream: one request at a time on a connection, in the
//! task of the client that asked.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use skewbridge_h1::{
    Decoder, Encoder, Framing, HeadEnd, Piece, ResponseHead, parse_response, write_headers,
    write_request_line,
};
use skewbridge_stream_io::Buffered;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, Sleep, sleep};

use super::pool::{Pool, Slot};
use super::{ProtocolPreference, Replay, RetryClass, SendError, UpstreamIo, UpstreamResponse};
use crate::body::{BodyError, BodySource, Frame, PollFrame, ResponseBody};
use crate::http_message::expects_continue;

/// Answers are larger than requests: two TLS records at once.
const READ_CHUNK: usize = 32 * 1024;

/// The plaintext of one TLS record (RFC 8446, 5.1).
const TLS_RECORD: usize = 16 * 1024;

/// How long upstream may stay silent on `Expect: 100-continue` before the body
/// is sent all the same (RFC 9110, 10.1.1: not indefinitely).
const CONTINUE_PATIENCE: Duration = Duration::from_secs(1);

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(crate) struct H1Connection {
    stream: Buffered<UpstreamIo>,
    /// Whether it has carried a request before.
    pub(crate) used: bool,
    /// Counted in the pool's metrics while it lives.
    pub(crate) slot: Slot,
    /// Held while it carries a request with large headers.
    permit: Option<OwnedSemaphorePermit>,
}

/// A connection after 101.
#[derive(Debug)]
pub struct Upgraded {
    /// The byte stream.
    pub(crate) io: UpstreamIo,
    /// What upstream sent right behind its 101.
    pub(crate) input: BytesMut,
    pub(crate) slot: Slot,
}

impl H1Connection {
    pub(crate) fn new(io: UpstreamIo, slot: Slot) -> Self {
        Self {
            stream: Buffered::new(io, READ_CHUNK),
            used: false,
            slot,
            permit: None,
        }
    }

    /// Holds this for as long as its request lasts.
    pub(crate) fn holding(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Whether upstream has closed it, or said something that nobody asked,
    /// since it was last used.
    pub(crate) fn is_stale(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream.io)
            .poll_read(&mut cx, &mut ReadBuf::new(&mut byte))
            .is_ready()
    }

    /// Lies in the pool from now on.
    pub(crate) fn rest(&mut self) {
        self.used = true;
        self.permit = None;
        self.stream.release();
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        mut self,
        head: &Parts,
        body: &mut Replay,
        pool: &Arc<Pool>,
    ) -> Result<Answered, SendError> {
        let mut sending = Sending::begin(&mut self.stream, head, body);
        let mut waiting = HeadEnd::default();
        let answer = poll_fn(|cx| {
            sending.poll(&mut self.stream, body, cx);
            poll_answer(
                &mut self.stream,
                &mut sending,
                &mut waiting,
                &head.method,
                cx,
            )
        })
        .await;
        let answer = answer.map_err(|broken| broken.judge(self.used, body.repeat(), &sending))?;
        if answer.status == StatusCode::SWITCHING_PROTOCOLS {
            let cause = if !head.headers.contains_key(UPGRADE) {
                Some("it switches protocols, and nobody asked it to")
            } else if !sending.done || self.stream.unsent() > 0 {
                // The rest of the body would be taken for the new protocol.
                Some("it switches protocols before it has read the request")
            } else {
                None
            };
            if let Some(cause) = cause {
                return Err(SendError::BadAnswer(cause.to_owned()));
            }
        }
        if sending.holding.take().is_some() {
            // It has answered without asking for the body: nobody sends it now.
            sending.failed = Some("answered without the body".to_owned());
        }
        let keep = answer.keep_alive;
        let response = response_of(answer, |framing| H1Body {
            connection: Some(self),
            decoder: framing.decoder(),
            keep,
            sending: Some(sending),
            request: None,
            pool: pool.clone(),
        });
        Ok(response)
    }
}

/// An answer's head with its connection.
pub(crate) struct Answered {
    status: StatusCode,
    headers: http::HeaderMap,
    body: H1Body,
}

fn response_of(head: ResponseHead, body: impl FnOnce(Framing) -> H1Body) -> Answered {
    Answered {
        status: head.status,
        headers: head.headers,
        body: body(head.framing),
    }
}

impl Answered {
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn headers(&self) -> &http::HeaderMap {
        &self.headers
    }

    /// Whether upstream ends the connection after this answer.
    pub(crate) fn closes(&self) -> bool {
        !self.body.keep
    }

    /// The reply, which from here on also carries the rest of the request.
    pub(crate) fn into_reply(self, request: Replay) -> UpstreamResponse {
        let Self {
            status,
            headers,
            mut body,
        } = self;
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(connection) = body.connection.take()
        {
            let upgraded = Upgraded {
                io: connection.stream.io,
                input: connection.stream.input,
                slot: connection.slot,
            };
            return UpstreamResponse::Upgraded(response, upgraded);
        }
        if request.is_wanted_after(status) {
            body.request = Some(request);
        } else {
            body.drop_request();
        }
        let body = if body.decoder.is_done() {
            body.settle();
            ResponseBody::empty()
        } else {
            ResponseBody::stream(body)
        };
        UpstreamResponse::Response(response.map(|()| body))
    }
}

/// The part of a request that has not left yet.
#[derive(Debug)]
struct Sending {
    encoder: Encoder,
    /// The body has been handed over.
    done: bool,
    /// Upstream takes no more; its answer may still come.
    failed: Option<String>,
    /// Plaintext handed to TLS: while it is none, upstream has seen nothing.
    started: bool,
    /// Upstream has said something.
    heard: bool,
    /// The client's own body failed: the request must not look complete.
    client: Option<String>,
    /// The body waits for `100 Continue`.
    holding: Option<Pin<Box<Sleep>>>,
}

impl Sending {
    fn begin(stream: &mut Buffered<UpstreamIo>, head: &Parts, body: &Replay) -> Self {
        let output = &mut stream.output;
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        write_request_line(output, &head.method, target);
        write_headers(output, &head.headers);
        let encoder = frame(output, head, body);
        output.extend_from_slice(b"\r\n");
        Self {
            done: encoder == Encoder::Empty,
            holding: (encoder != Encoder::Empty && expects_continue(&head.headers))
                .then(|| Box::pin(sleep(CONTINUE_PATIENCE))),
            encoder,
            failed: None,
            started: false,
            heard: false,
            client: None,
        }
    }

    fn is_over(&self) -> bool {
        self.done || self.failed.is_some() || self.client.is_some()
    }

    /// Moves the body on, as far as it goes now.
    fn poll(&mut self, stream: &mut Buffered<UpstreamIo>, body: &mut Replay, cx: &mut Context<'_>) {
        loop {
            if let Some(holding) = &mut self.holding
                && holding.as_mut().poll(cx).is_ready()
            {
                self.holding = None;
            }
            while !self.is_over() && self.holding.is_none() && stream.has_room() {
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
                // A record that did not leave whole cannot be read; of several,
                // the first may have left.
                Poll::Ready(Err(_)) => before > TLS_RECORD || stream.unsent() < before,
                Poll::Ready(Ok(())) => true,
                Poll::Pending => stream.unsent() < before,
            };
            match flushed {
                // There is room again, and the body has not been asked since.
                Poll::Ready(Ok(())) if full => {}
                Poll::Ready(Err(error)) => {
                    self.failed = Some(error.to_string());
                    return;
                }
                Poll::Ready(Ok(())) | Poll::Pending => return,
            }
        }
    }

    fn write(
        &mut self,
        stream: &mut Buffered<UpstreamIo>,
        frame: Option<Result<Frame, BodyError>>,
    ) {
        let written = match frame {
            Some(Ok(Frame::Data(data))) => stream.write_data(&mut self.encoder, data),
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

/// Says how long the body is, as the client said it.
fn frame(output: &mut BytesMut, head: &Parts, body: &Replay) -> Encoder {
    if let Some(length) = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok())
    {
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

/// Why there is no answer.
enum Broken {
    Closed(String),
    NotHttp(String),
    Client(String),
}

impl Broken {
    fn judge(self, used: bool, repeat: RetryClass, sending: &Sending) -> SendError {
        match self {
            Self::Client(cause) => SendError::Client(cause),
            Self::NotHttp(cause) => SendError::BadAnswer(cause),
            Self::Closed(cause) if !sending.started => SendError::NotProcessed(cause),
            // A connection that lay in the pool and ends without a byte of an
            // answer was most likely closed while the request was under way.
            // It cannot be known, so only a request that changes nothing is
            // repeated (RFC 9112, 9.3.1).
            Self::Closed(cause) if used && !sending.heard && repeat == RetryClass::Idempotent => {
                SendError::NotProcessed(cause)
            }
            Self::Closed(cause) => SendError::CutOff(cause),
        }
    }
}

/// Waits for the head of the final answer; interim ones are acted on.
fn poll_answer(
    stream: &mut Buffered<UpstreamIo>,
    sending: &mut Sending,
    waiting: &mut HeadEnd,
    method: &Method,
    cx: &mut Context<'_>,
) -> Poll<Result<ResponseHead, Broken>> {
    loop {
        if let Some(cause) = sending.client.take() {
            return Poll::Ready(Err(Broken::Client(cause)));
        }
        while waiting.reached(&stream.input) {
            *waiting = HeadEnd::default();
            match parse_response(&mut stream.input, method) {
                Ok(None) => break,
                Ok(Some(head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    return Poll::Ready(Ok(head));
                }
                Ok(Some(head)) if head.status.is_informational() => {
                    if head.status == StatusCode::CONTINUE && sending.holding.take().is_some() {
                        // The body may go now; the caller's next turn sends it.
                        cx.waker().wake_by_ref();
                    }
                }
                Ok(Some(head)) => return Poll::Ready(Ok(head)),
                Err(error) => return Poll::Ready(Err(Broken::NotHttp(error.to_string()))),
            }
        }
        match stream.poll_fill(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(0)) => {
                let cause = sending.failed.take();
                let cause = cause.unwrap_or_else(|| "end of stream".to_owned());
                return Poll::Ready(Err(Broken::Closed(cause)));
            }
            Poll::Ready(Ok(_)) => sending.heard = true,
            Poll::Ready(Err(error)) => {
                return Poll::Ready(Err(Broken::Closed(error.to_string())));
            }
        }
    }
}

/// The body of an answer, and what of the request is still on its way.
#[derive(Debug)]
pub struct H1Body {
    /// Given back to the pool at the end.
    connection: Option<H1Connection>,
    decoder: Decoder,
    keep: bool,
    sending: Option<Sending>,
    request: Option<Replay>,
    pool: Arc<Pool>,
}

impl BodySource for H1Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        let stream = &mut connection.stream;
        if let (Some(sending), Some(request)) = (&mut self.sending, &mut self.request)
            && !sending.is_over()
        {
            sending.poll(stream, request, cx);
            if let Some(cause) = sending.client.take() {
                // Whoever left in the midst of a request waits for no answer.
                self.connection = None;
                return Poll::Ready(Some(Err(BodyError::Client(cause))));
            }
        }
        loop {
            match self.decoder.decode(&mut stream.input) {
                Ok(Some(Piece::Data(data))) => {
                    if self.decoder.is_done() {
                        self.settle();
                    }
                    return Poll::Ready(Some(Ok(Frame::Data(data))));
                }
                Ok(Some(Piece::Trailers(trailers))) => {
                    self.settle();
                    return Poll::Ready(Some(Ok(Frame::Trailers(trailers))));
                }
                Ok(Some(Piece::End)) => {
                    self.settle();
                    return Poll::Ready(None);
                }
                Ok(None) => {}
                Err(error) => return self.broken(error.to_string()),
            }
            match stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => match self.decoder.end_of_input() {
                    Ok(()) => {
                        self.connection = None;
                        return Poll::Ready(None);
                    }
                    Err(error) => return self.broken(error.to_string()),
                },
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return self.broken(error.to_string()),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.connection.is_none()
    }

    fn buffered(&mut self) -> usize {
        let stream = self.connection.as_ref().map(|it| &it.stream);
        stream.map_or(0, |stream| stream.input.len() + stream.unsent())
            + self.request.as_mut().map_or(0, Replay::buffered)
    }
}

impl H1Body {
    /// The rest of the request is not sent. What follows on the connection would be taken
    /// for it, so the connection is not used again.
    fn drop_request(&mut self) {
        self.keep &= self.sending.as_ref().is_none_or(|sending| sending.done);
        self.sending = None;
        self.request = None;
    }

    fn broken(&mut self, cause: String) -> PollFrame {
        self.connection = None;
        self.keep = false;
        self.drop_request();
        Poll::Ready(Some(Err(BodyError::Upstream(cause))))
    }

    /// The answer is complete: the connection goes back to the pool if it can
    /// carry another request.
    fn settle(&mut self) {
        self.drop_request();
        if let Some(connection) = self.connection.take()
            && self.keep
            && connection.stream.input.is_empty()
            && connection.stream.unsent() == 0
        {
            self.pool.give_back(connection);
        }
    }
}

/// Prepares headers for HTTP/1.1: framing is written by [`Sending`].
pub(crate) fn headers_for_h1(head: &mut Parts, prefer: ProtocolPreference) {
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

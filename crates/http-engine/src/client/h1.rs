//! HTTP/1.1 client connection: one request at a time, driven by the task of the client's request.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use skewbridge_k8s_api::forwarding_headers;
use skewbridge_stream_io::Buffered;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, Sleep, sleep};

use super::connector::{ConnectionCredential, ConnectionGuard};
use super::{ProtocolPreference, ReplayBody, RetryClass, SendError, UpstreamResponse};
use crate::body::{BodyError, BodySource, Frame, PollFrame, ResponseBody};
use crate::http1::{
    BodyEvent, Decoder, Encoder, Framing, HeadTerminator, ResponseHead, parse_response,
    write_headers, write_request_line,
};
use crate::message_headers::{content_length, expects_continue};

/// Read size: two TLS records.
const READ_CHUNK_BYTES: usize = 32 * 1024;

/// The plaintext of one TLS record (RFC 8446, 5.1).
const TLS_RECORD_BYTES: usize = 16 * 1024;

/// Timeout for a reaction to `Expect: 100-continue`, after which the body is sent (RFC 9110, 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interim responses (such as 100 Continue) before the final one.
const MAX_INTERIM_RESPONSES: usize = 16;

/// The start of every response. A server that speaks another protocol is detected at once, not after a
/// blank line that may never arrive.
const RESPONSE_BEGINNING: &[u8] = b"HTTP/1.";

/// Receives connections that can be reused, when their response is complete.
pub trait ConnectionReturn<Io>: std::fmt::Debug + Send + Sync {
    /// Takes the connection back.
    fn return_connection(&self, connection: H1Connection<Io>);
}

/// A connection that carries one request at a time.
pub struct H1Connection<Io> {
    stream: Buffered<Io>,
    /// Whether the connection has been used before.
    used: bool,
    credential: Option<Arc<dyn ConnectionCredential>>,
    /// Counts the connection in the pool's metrics until it is dropped.
    guard: Option<ConnectionGuard>,
    /// Held while it carries a request with large headers.
    permit: Option<OwnedSemaphorePermit>,
}

/// A connection after 101.
pub struct Upgraded<Io> {
    /// The byte stream.
    pub io: Io,
    /// Bytes received after the 101 response head.
    pub input: BytesMut,
    /// Counts the connection while it is open.
    pub guard: Option<ConnectionGuard>,
}

impl<Io> std::fmt::Debug for H1Connection<Io> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("H1Connection")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl<Io> std::fmt::Debug for Upgraded<Io> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgraded").finish_non_exhaustive()
    }
}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin + 'static> H1Connection<Io> {
    /// A connection that was just opened.
    pub fn new(
        io: Io,
        credential: Option<Arc<dyn ConnectionCredential>>,
        guard: Option<ConnectionGuard>,
    ) -> Self {
        Self {
            stream: Buffered::new(io, READ_CHUNK_BYTES),
            used: false,
            credential,
            guard,
            permit: None,
        }
    }

    /// Sets bytes that were read already.
    #[must_use]
    pub fn with_input(mut self, input: BytesMut) -> Self {
        self.stream.input = input;
        self
    }

    /// Whether the credential it was opened with is valid.
    pub(super) fn is_valid(&self) -> bool {
        self.credential.as_ref().is_none_or(|it| it.is_valid())
    }

    /// The credential it was opened with.
    pub(super) fn credential(&self) -> Option<Arc<dyn ConnectionCredential>> {
        self.credential.clone()
    }

    /// The byte stream, and the bytes that were read from it already.
    pub fn into_parts(self) -> (Io, BytesMut) {
        (self.stream.io, self.stream.input)
    }

    /// Keeps the permit until the request is complete.
    pub(super) fn with_permit(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Whether the server closed the connection, or sent unsolicited data, while it was idle.
    pub(super) fn is_stale(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream.io)
            .poll_read(&mut cx, &mut ReadBuf::new(&mut byte))
            .is_ready()
    }

    /// The connection is idle from now on.
    pub fn park(&mut self) {
        self.used = true;
        self.permit = None;
        self.stream.release();
    }

    /// Sends a request and waits for the head of the response.
    pub async fn send(
        mut self,
        head: &Parts,
        body: &mut ReplayBody,
        pool: Arc<dyn ConnectionReturn<Io>>,
    ) -> Result<H1Response<Io>, SendError> {
        let mut sender = RequestSender::begin(&mut self.stream, head, body);
        let mut waiting = ResponseReader::default();
        let response_head = poll_fn(|cx| {
            sender.poll(&mut self.stream, body, cx);
            waiting.poll(&mut self.stream, &mut sender, &head.method, cx)
        })
        .await;
        let response_head = response_head
            .map_err(|broken| broken.into_error(self.used, body.retry_class(), &sender))?;
        if response_head.status == StatusCode::SWITCHING_PROTOCOLS {
            let cause = if !head.headers.contains_key(UPGRADE) {
                Some("the server switches protocols, and the request is not an upgrade")
            } else if !sender.done || self.stream.unsent() > 0 {
                // The rest of the body would be interpreted as the new protocol.
                Some("the server switches protocols before it has read the request")
            } else {
                None
            };
            if let Some(cause) = cause {
                return Err(SendError::InvalidResponse(cause.to_owned()));
            }
        }
        if sender.awaiting_continue.take().is_some() {
            // The server has answered without requesting the body, which is not sent now.
            sender.failed = Some("answered without the body".to_owned());
        }
        let keep = response_head.keep_alive;
        let response = response_of(response_head, |framing| H1Body {
            connection: Some(self),
            decoder: framing.decoder(),
            keep,
            sender: Some(sender),
            request: None,
            pool,
        });
        Ok(response)
    }
}

/// The head of a response, with its connection.
pub struct H1Response<Io> {
    status: StatusCode,
    headers: http::HeaderMap,
    body: H1Body<Io>,
}

fn response_of<Io>(head: ResponseHead, body: impl FnOnce(Framing) -> H1Body<Io>) -> H1Response<Io> {
    H1Response {
        status: head.status,
        headers: head.headers,
        body: body(head.framing),
    }
}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin + 'static> H1Response<Io> {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// All header fields.
    pub fn headers(&self) -> &http::HeaderMap {
        &self.headers
    }

    /// Whether the server ends the connection after this response.
    pub fn closes(&self) -> bool {
        !self.body.keep
    }

    /// The response, whose body from here on also sends the rest of the request.
    pub fn into_response(self, request: ReplayBody) -> UpstreamResponse<Io> {
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
                guard: connection.guard,
            };
            return UpstreamResponse::Upgraded(response, upgraded);
        }
        if request.is_wanted_after(status) {
            body.request = Some(request);
        } else {
            body.drop_request();
        }
        let body = if body.decoder.is_done() {
            body.finish();
            ResponseBody::empty()
        } else {
            ResponseBody::stream(body)
        };
        UpstreamResponse::Response(response.map(|()| body))
    }
}

/// Sends a request: the part that has not been sent yet.
#[derive(Debug)]
struct RequestSender {
    encoder: Encoder,
    /// The whole body has been written.
    done: bool,
    /// The server no longer reads; a response may still arrive.
    failed: Option<String>,
    /// Plaintext bytes written to TLS. If 0, the server has received nothing.
    started: bool,
    /// The server has sent something.
    response_begun: bool,
    /// Reading the client's body failed: the request must not appear complete.
    client: Option<String>,
    /// The body waits for `100 Continue`.
    awaiting_continue: Option<Pin<Box<Sleep>>>,
}

impl RequestSender {
    fn begin<Io: AsyncRead + AsyncWrite + Unpin>(
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
        let encoder = frame(output, head, body);
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

    fn is_complete(&self) -> bool {
        self.done || self.failed.is_some() || self.client.is_some()
    }

    /// Sends as much of the body as possible.
    fn poll<Io: AsyncRead + AsyncWrite + Unpin>(
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
fn frame(output: &mut BytesMut, head: &Parts, body: &ReplayBody) -> Encoder {
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

/// Why there is no response.
enum NoResponse {
    Closed(String),
    NotHttp(String),
    Client(String),
}

impl NoResponse {
    fn into_error(self, used: bool, retry_class: RetryClass, sender: &RequestSender) -> SendError {
        match self {
            Self::Client(cause) => SendError::Client(cause),
            Self::NotHttp(cause) => SendError::InvalidResponse(cause),
            Self::Closed(cause) if !sender.started => SendError::NotProcessed(cause),
            // A reused connection that ends without a byte of a response was most likely closed while the
            // request was in transit. That is uncertain, so only idempotent requests are retried (RFC 9112,
            // 9.3.1).
            Self::Closed(cause)
                if used && !sender.response_begun && retry_class == RetryClass::Idempotent =>
            {
                SendError::NotProcessed(cause)
            }
            Self::Closed(cause) => SendError::ConnectionLost(cause),
        }
    }
}

/// Reads until the head of the final response.
#[derive(Default)]
struct ResponseReader {
    end: HeadTerminator,
    interim: usize,
}

impl ResponseReader {
    /// Waits for the head of the final response. Interim responses are acted on.
    fn poll<Io: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut Buffered<Io>,
        sender: &mut RequestSender,
        method: &Method,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, NoResponse>> {
        let not_http = |cause: String| Poll::Ready(Err(NoResponse::NotHttp(cause)));
        loop {
            if let Some(cause) = sender.client.take() {
                return Poll::Ready(Err(NoResponse::Client(cause)));
            }
            while self.end.reached(&stream.input) {
                self.end = HeadTerminator::default();
                match parse_response(&mut stream.input, method) {
                    Ok(None) => break,
                    Ok(Some(head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                        return Poll::Ready(Ok(head));
                    }
                    Ok(Some(head)) if head.status.is_informational() => {
                        self.interim += 1;
                        if self.interim > MAX_INTERIM_RESPONSES {
                            return not_http("too many interim responses".to_owned());
                        }
                        if head.status == StatusCode::CONTINUE
                            && sender.awaiting_continue.take().is_some()
                        {
                            // The body may be sent now, at the caller's next poll.
                            cx.waker().wake_by_ref();
                        }
                    }
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Err(error) => return not_http(error.to_string()),
                }
            }
            let beginning = RESPONSE_BEGINNING.iter().zip(&stream.input);
            if beginning
                .into_iter()
                .any(|(expected, byte)| expected != byte)
            {
                return not_http("the response does not begin with HTTP/1.".to_owned());
            }
            match stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    let cause = sender.failed.take();
                    let cause = cause.unwrap_or_else(|| "no response came".to_owned());
                    return Poll::Ready(Err(NoResponse::Closed(cause)));
                }
                Poll::Ready(Ok(_)) => sender.response_begun = true,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(NoResponse::Closed(error.to_string())));
                }
            }
        }
    }
}

/// The response body, which also sends the rest of the request.
pub struct H1Body<Io> {
    /// Returned to the pool at the end.
    connection: Option<H1Connection<Io>>,
    decoder: Decoder,
    keep: bool,
    sender: Option<RequestSender>,
    request: Option<ReplayBody>,
    pool: Arc<dyn ConnectionReturn<Io>>,
}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin + 'static> BodySource for H1Body<Io> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        let stream = &mut connection.stream;
        // The last bytes of the body may still wait when all of it has been handed over.
        if let (Some(sender), Some(request)) = (&mut self.sender, &mut self.request)
            && (!sender.is_complete() || (sender.failed.is_none() && !stream.is_flushed()))
        {
            sender.poll(stream, request, cx);
            if let Some(cause) = sender.client.take() {
                // A client that disconnected before its request was complete does not read a response.
                self.connection = None;
                return Poll::Ready(Some(Err(BodyError::Client(cause))));
            }
        }
        loop {
            match self.decoder.decode(&mut stream.input) {
                Ok(Some(BodyEvent::Data(data))) => {
                    if self.decoder.is_done() {
                        self.finish();
                    }
                    return Poll::Ready(Some(Ok(Frame::Data(data))));
                }
                Ok(Some(BodyEvent::Trailers(mut trailers))) => {
                    self.finish();
                    forwarding_headers::remove_hop_by_hop(&mut trailers);
                    trailers.remove(CONTENT_LENGTH);
                    return Poll::Ready(Some(Ok(Frame::Trailers(trailers))));
                }
                Ok(Some(BodyEvent::End)) => {
                    self.finish();
                    return Poll::Ready(None);
                }
                Ok(None) => {}
                Err(error) => return self.fail(BodyError::Malformed(error.to_string())),
            }
            match stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => match self.decoder.end_of_input() {
                    Ok(()) => {
                        self.connection = None;
                        return Poll::Ready(None);
                    }
                    Err(error) => return self.fail(BodyError::Upstream(error.to_string())),
                },
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    return self.fail(BodyError::Upstream(error.to_string()));
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.connection.is_none()
    }

    fn buffered(&mut self) -> usize {
        let stream = self.connection.as_ref().map(|it| &it.stream);
        stream.map_or(0, |stream| stream.input.len() + stream.unsent())
            + self.request.as_mut().map_or(0, ReplayBody::buffered)
    }
}

impl<Io> std::fmt::Debug for H1Body<Io> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("H1Body").finish_non_exhaustive()
    }
}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin + 'static> H1Body<Io> {
    /// Stops sending the request. The connection is not reused: later bytes would be interpreted as the
    /// rest of this request.
    fn drop_request(&mut self) {
        self.keep &= self.sender.as_ref().is_none_or(|sender| sender.done);
        self.sender = None;
        self.request = None;
    }

    fn fail(&mut self, error: BodyError) -> PollFrame {
        self.connection = None;
        self.keep = false;
        self.drop_request();
        Poll::Ready(Some(Err(error)))
    }

    /// The response is complete: the connection goes back to the pool if it can carry another
    /// request.
    fn finish(&mut self) {
        self.drop_request();
        if let Some(connection) = self.connection.take()
            && self.keep
            && connection.stream.input.is_empty()
            && connection.stream.unsent() == 0
        {
            self.pool.return_connection(connection);
        }
    }
}

/// Prepares headers for HTTP/1.1: framing is written by [`RequestSender`].
pub(super) fn headers_for_h1(head: &mut Parts, prefer: ProtocolPreference) {
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

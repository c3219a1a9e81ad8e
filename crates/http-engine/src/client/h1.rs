//! HTTP/1.1 client connection: one request at a time, driven by the task of the client's request.

mod request_sender;
mod response_reader;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, UPGRADE};
use http::request::Parts;
use http::{Response, StatusCode};
use skewbridge_k8s_api::forwarding_headers;
use skewbridge_stream_io::Buffered;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use self::request_sender::RequestSender;
pub(super) use self::request_sender::headers_for_h1;
use self::response_reader::ResponseReader;
use super::connector::{ConnectionCredential, ConnectionGuard};
use super::{ReplayBody, SendError, UpstreamResponse};
use crate::body::{BodyError, BodySource, Frame, PollFrame, ResponseBody};
use crate::http1::{BodyEvent, Decoder, Framing, ResponseHead};

/// Read size: two TLS records.
const READ_CHUNK_BYTES: usize = 32 * 1024;

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
        let mut reader = ResponseReader::default();
        let response_head = poll_fn(|cx| {
            sender.poll(&mut self.stream, body, cx);
            reader.poll(&mut self.stream, &mut sender, &head.method, cx)
        })
        .await;
        let response_head = response_head
            .map_err(|failure| failure.into_error(self.used, body.retry_class(), &sender))?;
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

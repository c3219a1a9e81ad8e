//! HTTP/2 towards a client: a task per stream, ended with the connection.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use skewbridge_client::Stream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::body::{AnyBody, Body, Frame, PollFrame, empty, poll_stream};
use super::refusal::Refusal;
use super::{Answer, Forwarder, expects_continue};

/// What a client may send on one stream before upstream has taken it:
/// kube-apiserver's own window.
const STREAM_WINDOW: u32 = 256 * 1024;

/// What a client may send on all streams together.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// What waits in one stream for the client to take it.
const SEND_BUFFER: usize = 64 * 1024;

/// Streams at one time on a connection: what kube-apiserver allows.
const MAX_STREAMS: u32 = 250;

/// Header lists as large as Go's server takes them.
const MAX_HEADER_LIST: u32 = 1 << 20;

/// How long the preface may take: the client is on this machine.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(30);

/// Serves one connection to its end.
pub(crate) async fn serve(io: Stream, forwarder: Arc<Forwarder>) {
    let handshake = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake::<_, Bytes>(io);
    let Ok(Ok(mut connection)) = timeout(HANDSHAKE_PATIENCE, handshake).await else {
        return;
    };
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = poll_fn(|cx| connection.poll_accept(cx)) => {
                let Some(Ok((request, respond))) = accepted else { return };
                streams.spawn(answer(request, respond, forwarder.clone()));
            }
            Some(_) = streams.join_next() => {}
        }
    }
}

/// Answers one stream.
async fn answer(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    forwarder: Arc<Forwarder>,
) {
    let respond = Responder::new(respond);
    let (mut head, stream) = request.into_parts();
    let bodiless = head.method == Method::HEAD;
    let checked = one_authority(&mut head).and_then(|()| one_length(&head));
    head.version = Version::HTTP_2;
    let body: AnyBody = if stream.is_end_stream() {
        empty()
    } else {
        Box::new(StreamBody {
            stream,
            continues: expects_continue(&head.headers).then(|| respond.clone()),
        })
    };
    let answered = if let Err(cause) = checked {
        let refusal = Refusal::NotARequest(cause.to_owned());
        Some(Answer::refused(&refusal, &head.headers))
    } else {
        // Boxed: what it takes to get an answer is not kept while it lasts.
        let mut call = Box::pin(forwarder.call(Request::from_parts(head, body)));
        poll_fn(|cx| {
            // The client reset the stream, or left altogether: looked at first, or
            // the end of its body would be answered as a mistake.
            if respond.lock().send.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            call.as_mut().poll(cx).map(Some)
        })
        .await
    };
    let Some(Answer {
        mut response,
        mut body,
        busy: _busy,
        ..
    }) = answered
    else {
        return;
    };
    *response.version_mut() = Version::HTTP_2;
    for name in [CONNECTION, TRANSFER_ENCODING] {
        response.headers_mut().remove(name);
    }
    let status = response.status();
    let end = bodiless
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || body.is_done();
    if let Ok(mut stream) = respond.head(response, end)
        && !end
    {
        let _ = pump(&mut body, &mut stream).await;
    }
}

/// A request for one host: `:authority`, and a Host that says the same. Cookies
/// come in pieces (RFC 9113, 8.2.3).
fn one_authority(head: &mut http::request::Parts) -> Result<(), &'static str> {
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next(), head.uri.authority()) {
        (_, Some(_), _) => return Err("more than one Host"),
        (Some(host), None, Some(authority))
            if !host
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            return Err("Host and :authority differ");
        }
        _ => {}
    }
    if head.headers.get_all(COOKIE).iter().nth(1).is_some() {
        let pieces = head.headers.get_all(COOKIE).iter();
        let joined = pieces
            .map(HeaderValue::as_bytes)
            .collect::<Vec<_>>()
            .join(&b"; "[..]);
        let joined = HeaderValue::from_bytes(&joined).map_err(|_| "invalid Cookie")?;
        head.headers.insert(COOKIE, joined);
    }
    Ok(())
}

/// The library lets pass what the HTTP/1.1 behind us might read otherwise: the
/// same length twice, and an empty one for 0.
fn one_length(head: &http::request::Parts) -> Result<(), &'static str> {
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (_, Some(_)) => Err("more than one Content-Length"),
        (Some(length), None) if length.is_empty() => Err("invalid Content-Length"),
        _ => Ok(()),
    }
}

/// A stream's answer, which its body may precede with `100 Continue`.
#[derive(Clone)]
struct Responder(Arc<Mutex<Respond>>);

struct Respond {
    send: SendResponse<Bytes>,
    answered: bool,
}

impl Responder {
    fn new(send: SendResponse<Bytes>) -> Self {
        Self(Arc::new(Mutex::new(Respond {
            send,
            answered: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Respond> {
        // A panic while the lock is held ends the stream's task anyway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self, response: Response<()>, end: bool) -> Result<SendStream<Bytes>, h2::Error> {
        let mut respond = self.lock();
        respond.answered = true;
        respond.send.send_response(response, end)
    }
}

struct Unsent;

/// Moves a body into a stream, no faster than the client takes it.
async fn pump(body: &mut AnyBody, stream: &mut SendStream<Bytes>) -> Result<(), Unsent> {
    let mut waiting: Option<Bytes> = None;
    poll_fn(|cx| {
        loop {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Unsent));
            }
            let Some(data) = &mut waiting else {
                match body.poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                        if !data.is_empty() {
                            stream.reserve_capacity(data.len());
                            waiting = Some(data);
                        }
                        continue;
                    }
                    Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                        return Poll::Ready(stream.send_trailers(trailers).map_err(|_| Unsent));
                    }
                    Poll::Ready(None) => {
                        let end = stream.send_data(Bytes::new(), true);
                        return Poll::Ready(end.map_err(|_| Unsent));
                    }
                    Poll::Ready(Some(Err(cut))) => {
                        tracing::debug!(%cut, "an answer was cut");
                        // An end that is not END_STREAM: the client knows that
                        // the answer is not whole.
                        stream.send_reset(Reason::INTERNAL_ERROR);
                        return Poll::Ready(Err(Unsent));
                    }
                }
            };
            let room = match stream.poll_capacity(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(room))) => room,
                Poll::Ready(_) => return Poll::Ready(Err(Unsent)),
            };
            let now = data.split_to(room.min(data.len()));
            let last = data.is_empty() && body.is_done();
            if data.is_empty() {
                waiting = None;
            }
            if stream.send_data(now, last).is_err() {
                return Poll::Ready(Err(Unsent));
            }
            if last {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}

/// The body of a request on a stream.
struct StreamBody {
    stream: RecvStream,
    /// Who is to be told `100 Continue` before the first byte is asked for.
    continues: Option<Responder>,
}

impl Body for StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if let Some(respond) = self.continues.take() {
            let mut respond = respond.lock();
            // An interim answer behind the final one breaks the protocol.
            if !respond.answered {
                let mut interim = Response::new(());
                *interim.status_mut() = StatusCode::CONTINUE;
                let _ = respond.send.send_informational(interim);
            }
        }
        poll_stream(&mut self.stream, cx)
    }

    fn is_done(&self) -> bool {
        self.stream.is_end_stream()
    }
}

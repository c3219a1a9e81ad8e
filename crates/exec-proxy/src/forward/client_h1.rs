//! HTTP/1.1 towards a client: one request after the other, each answered before
//! the next is looked at.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use skewbridge_client::Stream;
use skewbridge_h1::{
    Decoder, Encoder, Framing, HeadEnd, HeadError, Piece, RequestHead, parse_request,
    write_headers, write_status_line,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::body::{AnyBody, Body, Broken, Cut, Frame, PollFrame, empty};
use super::refusal::Refusal;
use super::wire::Wire;
use super::{Answer, Forwarder, expects_continue, tunnel};

/// From a request's first byte to the end of its head: the client is on this
/// machine.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// What a client may send ahead while its request is being answered. More than
/// that waits in the kernel.
const MAX_PIPELINED: usize = 64 * 1024;

/// After an answer that ends the connection, so much of what the client still
/// sends is read and thrown away, so that a reset does not destroy the answer on
/// its way (RFC 9112, 9.6).
const LINGER_BYTES: usize = 256 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Serves one connection to its end.
pub(crate) async fn serve(io: Stream, forwarder: Arc<Forwarder>) {
    let client = Client::new(io);
    loop {
        let head = match next_head(&client).await {
            Ok(Some(head)) => head,
            Ok(None) => return farewell(&client).await,
            Err(refusal) => return refuse(&client, &refusal).await,
        };
        let asks = Asks::of(&head);
        let request = client.begin(head);
        // Boxed: what it takes to get an answer is not kept while it lasts.
        let call = Box::pin(forwarder.call(request));
        let Some(mut answer) = answer_or_gone(&client, call).await else {
            return;
        };
        if let Some(upgraded) = answer.upgraded.take() {
            write_head(&client, Version::HTTP_11, &answer.response);
            if poll_fn(|cx| client.lock().wire.poll_flush(cx))
                .await
                .is_err()
            {
                return;
            }
            let _busy = answer.busy.take();
            drop(answer);
            if let Some(wire) = client.into_wire() {
                let (io, input) = wire.into_parts();
                tunnel::run(io, input, upgraded).await;
            }
            return;
        }
        match reply(&client, &asks, answer).await {
            After::NextRequest => {}
            After::Close => return linger(&client).await,
            After::Cut => return,
        }
    }
}

/// The connection, shared between the loop above and the body of the request that
/// it is answering; both run in one task, so the lock is never contended.
#[derive(Clone)]
struct Client(Arc<Mutex<Shared>>);

struct Shared {
    wire: Wire,
    body: Decoder,
    /// The client waits for `100 Continue` before it sends its body.
    expects_continue: bool,
    /// The client left in the midst of its body.
    gone: bool,
}

impl Client {
    fn new(io: Stream) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            wire: Wire::new(io),
            body: Framing::Empty.decoder(),
            expects_continue: false,
            gone: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic while the lock is held ends the connection's task anyway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, head: RequestHead) -> Request<AnyBody> {
        let mut shared = self.lock();
        shared.body = head.framing.decoder();
        shared.expects_continue = head.version == Version::HTTP_11
            && head.framing != Framing::Empty
            && expects_continue(&head.headers);
        let body: AnyBody = if head.framing == Framing::Empty {
            empty()
        } else {
            Box::new(ClientBody(self.clone()))
        };
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = head.uri;
        *request.version_mut() = head.version;
        *request.headers_mut() = head.headers;
        request
    }

    /// The stream itself, once nothing else uses it.
    fn into_wire(self) -> Option<Wire> {
        let shared = Arc::into_inner(self.0)?;
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some(shared.wire)
    }
}

impl Shared {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if std::mem::take(&mut self.expects_continue) {
            self.wire
                .output
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        let failed = |error: String| Poll::Ready(Some(Err(Cut(error))));
        loop {
            match self.body.decode(&mut self.wire.input) {
                Ok(Some(Piece::Data(data))) => return Poll::Ready(Some(Ok(Frame::Data(data)))),
                Ok(Some(Piece::Trailers(map))) => {
                    return Poll::Ready(Some(Ok(Frame::Trailers(map))));
                }
                Ok(Some(Piece::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return failed(error.to_string()),
            }
            // The interim answer has to leave before the client sends more.
            if let Poll::Ready(Err(error)) = self.wire.poll_flush(cx) {
                return failed(error.to_string());
            }
            match self.wire.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.gone = true;
                    return failed("the connection was closed".to_owned());
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    self.gone = true;
                    return failed(error.to_string());
                }
            }
        }
    }

    /// Ready when the client has left while its request is being answered.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.wire.input.len() < MAX_PIPELINED {
            match self.wire.poll_fill(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                // Who waits for more of the body has not seen these yet.
                Poll::Ready(Ok(_)) if !self.body.is_done() => cx.waker().wake_by_ref(),
                Poll::Ready(Ok(_)) => {}
            }
        }
        Poll::Pending
    }
}

/// The body of the request that is being answered.
struct ClientBody(Client);

impl Body for ClientBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        self.0.lock().poll_body(cx)
    }

    fn is_done(&self) -> bool {
        self.0.lock().body.is_done()
    }
}

async fn fill(client: &Client) -> io::Result<usize> {
    poll_fn(|cx| client.lock().wire.poll_fill(cx)).await
}

/// The next request's head; `None` where the client is done.
async fn next_head(client: &Client) -> Result<Option<RequestHead>, Refusal> {
    let idle = {
        let mut shared = client.lock();
        shared.wire.release();
        shared.wire.input.is_empty()
    };
    if idle && !matches!(fill(client).await, Ok(1..)) {
        return Ok(None);
    }
    let deadline = Instant::now() + HEAD_PATIENCE;
    let mut end = HeadEnd::default();
    loop {
        {
            let mut shared = client.lock();
            if end.reached(&shared.wire.input) {
                match parse_request(&mut shared.wire.input) {
                    Ok(Some(head)) => return Ok(Some(head)),
                    Ok(None) => end = HeadEnd::default(),
                    Err(error @ HeadError::TargetTooLong) => {
                        return Err(Refusal::TargetTooLong(error.to_string()));
                    }
                    Err(error @ HeadError::TooLarge) => {
                        return Err(Refusal::HeadTooLarge(error.to_string()));
                    }
                    Err(error) => return Err(Refusal::NotARequest(error.to_string())),
                }
            }
        }
        match timeout_at(deadline, fill(client)).await {
            Ok(Ok(0) | Err(_)) => return Ok(None),
            Ok(Ok(_)) => {}
            Err(_) => return Err(Refusal::SlowHead),
        }
    }
}

/// What of the request decides how its answer is written.
struct Asks {
    method: Method,
    version: Version,
    keep_alive: bool,
    /// The client may go on in another protocol.
    switches: bool,
}

impl Asks {
    fn of(head: &RequestHead) -> Self {
        Self {
            method: head.method.clone(),
            version: head.version,
            keep_alive: head.keep_alive,
            switches: head.method == Method::CONNECT || head.headers.contains_key(UPGRADE),
        }
    }
}

/// The answer, or `None` if the client left before there was one; then the
/// request is dropped, which cancels it upstream.
async fn answer_or_gone(
    client: &Client,
    mut call: Pin<Box<impl Future<Output = Answer>>>,
) -> Option<Answer> {
    poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready((!client.lock().gone).then_some(answer));
        }
        client.lock().poll_gone(cx).map(|()| None)
    })
    .await
}

enum After {
    NextRequest,
    Close,
    Cut,
}

async fn reply(client: &Client, asks: &Asks, answer: Answer) -> After {
    let Answer {
        mut response,
        mut body,
        busy: _busy,
        upgraded: _,
    } = answer;
    let mut encoder = frame(&mut response, asks);
    let keep = asks.keep_alive
        // What follows a refused upgrade, or CONNECT, is not a request.
        && !asks.switches
        // A body that nobody read would be taken for the next request.
        && client.lock().body.is_done()
        && encoder != Encoder::UntilClose;
    response.headers_mut().remove(CONNECTION);
    if !keep {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    } else if asks.version == Version::HTTP_10 {
        let keep_alive = HeaderValue::from_static("keep-alive");
        response.headers_mut().insert(CONNECTION, keep_alive);
    }
    client.lock().expects_continue = false;
    write_head(client, asks.version, &response);
    let sent = poll_fn(|cx| poll_send(client, &mut body, &mut encoder, cx)).await;
    match sent {
        Ok(()) if keep => After::NextRequest,
        Ok(()) => After::Close,
        // Without the end that was announced the client knows that the answer is
        // not whole.
        Err(Unsent) => After::Cut,
    }
}

fn write_head(client: &Client, version: Version, response: &Response<()>) {
    let output = &mut client.lock().wire.output;
    write_status_line(output, version, response.status());
    write_headers(output, response.headers());
    output.extend_from_slice(b"\r\n");
}

struct Unsent;

/// Moves the answer's body to the client: as much as has arrived goes out at once,
/// and nothing waits for more to come.
fn poll_send(
    client: &Client,
    body: &mut AnyBody,
    encoder: &mut Encoder,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Unsent>> {
    loop {
        let mut ended = false;
        let mut pending = false;
        let mut cut = false;
        while client.lock().wire.has_room() {
            let frame = match body.poll_frame(cx) {
                Poll::Pending => {
                    pending = true;
                    break;
                }
                Poll::Ready(frame) => frame,
            };
            let output = &mut client.lock().wire.output;
            let written = match frame {
                // An answer to HEAD has no body, whatever arrives.
                Some(Ok(Frame::Data(_))) if *encoder == Encoder::Empty => continue,
                Some(Ok(Frame::Data(data))) => encoder.write_data(output, &data),
                Some(Ok(Frame::Trailers(trailers))) => {
                    ended = true;
                    encoder.finish(output, Some(&trailers))
                }
                None => {
                    ended = true;
                    encoder.finish(output, None)
                }
                Some(Err(why)) => {
                    // What came before the cut still belongs to the client.
                    *body = Box::new(Broken(why));
                    cut = true;
                    break;
                }
            };
            if written.is_err() {
                return Poll::Ready(Err(Unsent));
            }
            if ended {
                break;
            }
        }
        let mut shared = client.lock();
        match shared.wire.poll_flush(cx) {
            Poll::Ready(Ok(())) if ended => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) if cut => return Poll::Ready(Err(Unsent)),
            Poll::Ready(Ok(())) if !pending => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Unsent)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                if shared.poll_gone(cx).is_ready() {
                    return Poll::Ready(Err(Unsent));
                }
                if ended {
                    // The body is finished and must not be asked again; only the
                    // rest of the output is waited for.
                    *encoder = Encoder::Empty;
                    *body = empty();
                }
                return Poll::Pending;
            }
        }
    }
}

/// Chooses how the client is told where the body ends.
fn frame(response: &mut Response<()>, asks: &Asks) -> Encoder {
    let status = response.status();
    let headers = response.headers_mut();
    headers.remove(TRANSFER_ENCODING);
    if asks.method == Method::HEAD
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
    {
        return Encoder::Empty;
    }
    if let Some(length) = super::content_length(headers) {
        return Encoder::Length(length);
    }
    headers.remove(CONTENT_LENGTH);
    if asks.version == Version::HTTP_10 {
        return Encoder::UntilClose;
    }
    headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    Encoder::Chunked
}

/// Answers what was not a request, and ends the connection.
async fn refuse(client: &Client, refusal: &Refusal) {
    let (mut response, body) = refusal.response(&http::HeaderMap::new());
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    write_head(client, Version::HTTP_11, &response);
    client.lock().wire.output.extend_from_slice(&body);
    let flush = poll_fn(|cx| client.lock().wire.poll_flush(cx));
    if matches!(timeout(LINGER_TIME, flush).await, Ok(Ok(()))) {
        linger(client).await;
    }
}

/// Ends a connection between two requests: without TLS's farewell the client
/// would have to take it for cut.
async fn farewell(client: &Client) {
    let shutdown = poll_fn(|cx| client.lock().wire.poll_shutdown(cx));
    let _ = timeout(LINGER_TIME, shutdown).await;
}

/// Ends a connection so that the client can still read its last answer.
async fn linger(client: &Client) {
    let ended = async {
        poll_fn(|cx| client.lock().wire.poll_shutdown(cx)).await?;
        let mut left = LINGER_BYTES;
        loop {
            client.lock().wire.input = BytesMut::new();
            match fill(client).await? {
                read if read > 0 && read < left => left -= read,
                _ => return io::Result::Ok(()),
            }
        }
    };
    let _ = timeout(LINGER_TIME, ended).await;
}

//! HTTP/1.1 towards upstream: one request at a time on a connection, in the task
//! of the client that asked.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use skewbridge_client::Stream;
use skewbridge_h1::{
    Decoder, Encoder, HeadEnd, Piece, ResponseHead, parse_response, write_headers,
    write_request_line,
};

use super::body::{AnyBody, Body, Cut, Frame, PollFrame, empty};
use super::pool::{OpenedWith, Pool};
use super::refusal::Refusal;
use super::tunnel::Upgraded;
use super::wire::Wire;
use super::{Repeat, Reply, content_length};

/// Interim answers before the answer; nobody sends more than one or two.
const MAX_INTERIM: usize = 16;

/// A connection that carries one request at a time.
pub(crate) struct H1Connection {
    wire: Wire,
    standing: OpenedWith,
    /// Whether it has carried a request before.
    used: bool,
}

impl H1Connection {
    pub(crate) fn new(io: Stream, standing: OpenedWith) -> Self {
        Self {
            wire: Wire::new(io),
            standing,
            used: false,
        }
    }

    /// What it was opened with.
    pub(crate) fn standing(&self) -> &OpenedWith {
        &self.standing
    }

    /// Lies in the pool from now on.
    pub(crate) fn rest(&mut self) {
        self.used = true;
        self.wire.release();
    }

    pub(crate) fn is_stale(&mut self) -> bool {
        self.wire.is_stale()
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        mut self,
        head: &Parts,
        body: AnyBody,
        repeat: Repeat,
        pool: &Arc<Pool>,
    ) -> Result<Reply, Refusal> {
        let before = self.wire.handed();
        let mut sending = Sending::begin(&mut self.wire, head, body);
        let mut waiting = Waiting::default();
        let answer = poll_fn(|cx| {
            sending.poll(&mut self.wire, cx);
            waiting.poll(&mut self.wire, &mut sending, &head.method, cx)
        })
        .await;
        let answer = answer.map_err(|broken| match broken {
            Lost::Client(cause) => Refusal::Body(cause),
            Lost::NotHttp(cause) => Refusal::BadAnswer(cause),
            // TLS has been handed nothing, so nothing can have left.
            Lost::Closed(cause) if self.wire.handed() == before => Refusal::NotProcessed(cause),
            // A connection that lay in the pool and ends without a byte of an
            // answer was most likely closed while the request was under way. It
            // cannot be known, so only what changes nothing is repeated (RFC
            // 9112, 9.3.1).
            Lost::Closed(cause) if self.used && !waiting.heard && repeat == Repeat::Harmless => {
                Refusal::NotProcessed(cause)
            }
            Lost::Closed(cause) => Refusal::CutOff(cause),
        })?;
        let mut response = Response::new(());
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        if answer.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(head, response, &sending);
        }
        let mut body = H1Body {
            connection: Some(self),
            decoder: answer.framing.decoder(),
            keep: answer.keep_alive,
            sending,
            pool: pool.clone(),
        };
        let body = if body.decoder.is_done() {
            body.settle();
            empty()
        } else {
            Box::new(body)
        };
        Ok(Reply::Response(response, body))
    }

    fn switch(
        self,
        head: &Parts,
        response: Response<()>,
        sending: &Sending,
    ) -> Result<Reply, Refusal> {
        let bad = |cause: &str| Err(Refusal::BadAnswer(cause.to_owned()));
        if !head.headers.contains_key(UPGRADE) {
            return bad("it switches protocols, and nobody asked it to");
        }
        // The rest of the body would be taken for the new protocol.
        if !sending.done || !self.wire.output.is_empty() {
            return bad("it switches protocols before it has read the request");
        }
        let (io, input) = self.wire.into_parts();
        Ok(Reply::Upgraded(response, Upgraded { io, input }))
    }
}

/// The part of a request that has not left yet.
struct Sending {
    encoder: Encoder,
    body: AnyBody,
    /// All of it has been handed over.
    done: bool,
    /// Upstream takes no more; its answer may still come.
    failed: Option<String>,
    /// The client's own body failed: the request must not look complete.
    client: Option<String>,
}

impl Sending {
    fn begin(wire: &mut Wire, head: &Parts, body: AnyBody) -> Self {
        let target = head.uri.path_and_query();
        let target = target.map_or("/", |target| target.as_str());
        let output = &mut wire.output;
        write_request_line(output, &head.method, target);
        write_headers(output, &head.headers);
        let encoder = match content_length(&head.headers) {
            Some(0) => Encoder::Empty,
            Some(length) => Encoder::Length(length),
            None if body.is_done() => Encoder::Empty,
            None => {
                output.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                Encoder::Chunked
            }
        };
        output.extend_from_slice(b"\r\n");
        Self {
            done: encoder == Encoder::Empty,
            encoder,
            body,
            failed: None,
            client: None,
        }
    }

    fn is_over(&self) -> bool {
        self.done || self.failed.is_some() || self.client.is_some()
    }

    /// Moves the body on, as far as it goes now.
    fn poll(&mut self, wire: &mut Wire, cx: &mut Context<'_>) {
        loop {
            while !self.is_over() && wire.has_room() {
                match self.body.poll_frame(cx) {
                    Poll::Pending => break,
                    Poll::Ready(frame) => self.write(wire, frame),
                }
            }
            if self.failed.is_some() || self.client.is_some() {
                return;
            }
            let full = !wire.has_room();
            match wire.poll_flush(cx) {
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

    fn write(&mut self, wire: &mut Wire, frame: Option<Result<Frame, Cut>>) {
        let output = &mut wire.output;
        let written = match frame {
            Some(Ok(Frame::Data(data))) => self.encoder.write_data(output, &data),
            Some(Ok(Frame::Trailers(trailers))) => {
                self.done = true;
                self.encoder.finish(output, Some(&trailers))
            }
            None => {
                self.done = true;
                self.encoder.finish(output, None)
            }
            Some(Err(cut)) => {
                self.client = Some(cut.to_string());
                return;
            }
        };
        if let Err(error) = written {
            self.done = false;
            self.client = Some(error.to_string());
        }
    }
}

/// Why there is no answer.
enum Lost {
    Closed(String),
    NotHttp(String),
    Client(String),
}

/// For the head of the answer.
#[derive(Default)]
struct Waiting {
    end: HeadEnd,
    interim: usize,
    /// Upstream has said something.
    heard: bool,
}

impl Waiting {
    fn poll(
        &mut self,
        wire: &mut Wire,
        sending: &mut Sending,
        method: &Method,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, Lost>> {
        loop {
            if let Some(cause) = sending.client.take() {
                return Poll::Ready(Err(Lost::Client(cause)));
            }
            while self.end.reached(&wire.input) {
                self.end = HeadEnd::default();
                match parse_response(&mut wire.input, method) {
                    Ok(None) => break,
                    Ok(Some(head))
                        if head.status.is_informational()
                            && head.status != StatusCode::SWITCHING_PROTOCOLS =>
                    {
                        self.interim += 1;
                        if self.interim > MAX_INTERIM {
                            let cause = "it never comes to an answer".to_owned();
                            return Poll::Ready(Err(Lost::NotHttp(cause)));
                        }
                    }
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Err(error) => return Poll::Ready(Err(Lost::NotHttp(error.to_string()))),
                }
            }
            match wire.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    let cause = sending.failed.take();
                    let cause = cause.unwrap_or_else(|| "end of stream".to_owned());
                    return Poll::Ready(Err(Lost::Closed(cause)));
                }
                Poll::Ready(Ok(_)) => self.heard = true,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Lost::Closed(error.to_string())));
                }
            }
        }
    }
}

/// The body of an answer, and what of the request is still on its way.
struct H1Body {
    /// Given back to the pool at the end.
    connection: Option<H1Connection>,
    decoder: Decoder,
    keep: bool,
    sending: Sending,
    pool: Arc<Pool>,
}

impl H1Body {
    /// The answer is complete: the connection may carry another request, if this
    /// one has been sent as a whole.
    fn settle(&mut self) {
        if let Some(connection) = self.connection.take()
            && self.keep
            && self.sending.done
            && self.sending.failed.is_none()
            && connection.wire.output.is_empty()
            && connection.wire.input.is_empty()
        {
            self.pool.give_back(connection);
        }
    }
}

impl Body for H1Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        let wire = &mut connection.wire;
        if !self.sending.is_over() || !wire.output.is_empty() {
            self.sending.poll(wire, cx);
        }
        let cut = |cause: String| Poll::Ready(Some(Err(Cut(cause))));
        loop {
            match self.decoder.decode(&mut wire.input) {
                Ok(Some(Piece::Data(data))) => {
                    if self.decoder.is_done() {
                        self.settle();
                    }
                    return Poll::Ready(Some(Ok(Frame::Data(data))));
                }
                Ok(Some(Piece::Trailers(mut trailers))) => {
                    self.settle();
                    skewbridge_k8s_api::forwarding_headers::remove_hop_by_hop(&mut trailers);
                    trailers.remove(CONTENT_LENGTH);
                    trailers.remove(TRANSFER_ENCODING);
                    return Poll::Ready(Some(Ok(Frame::Trailers(trailers))));
                }
                Ok(Some(Piece::End)) => {
                    self.settle();
                    return Poll::Ready(None);
                }
                Ok(None) => {}
                Err(error) => return cut(error.to_string()),
            }
            match wire.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    return match self.decoder.end_of_input() {
                        Ok(()) => {
                            self.connection = None;
                            Poll::Ready(None)
                        }
                        Err(error) => cut(error.to_string()),
                    };
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return cut(error.to_string()),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.connection.is_none()
    }
}

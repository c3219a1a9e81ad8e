//! HTTP/2 of the well-behaved fake server.

use std::future::poll_fn;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response, Version};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

use super::conn_context::{ConnContext, RespondWhen};
use super::recorded_request::{Body, Entry};
use super::reply::{BodyPart, BodyStream, Payload};
use super::{RecordedRequest, Reply};
use crate::h2io;

/// Serves streams until the connection ends.
pub(super) async fn serve(
    tls: TlsStream<TcpStream>,
    mut context: ConnContext,
    max_concurrent_streams: Option<u32>,
) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    if let Some(max) = max_concurrent_streams {
        builder.max_concurrent_streams(max);
    }
    let mut connection = builder.handshake(tls).await?;
    let mut responding = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(stream) => {
                    let (request, respond) = stream?;
                    let context = context.clone();
                    responding.spawn(async move {
                        // An error means that the client has disconnected, which the record
                        // shows.
                        let _ = serve_stream(request, respond, &context).await;
                    });
                }
                None => return Ok(()),
            },
            () = context.goaway_requested() => connection.graceful_shutdown(),
            Some(_) = responding.join_next() => {}
        }
    }
}

async fn serve_stream(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    context: &ConnContext,
) -> Result<(), h2::Error> {
    let (head, body) = request.into_parts();
    let entry = context.record.enter(recorded(&head, context));
    match context.respond_when {
        RespondWhen::Complete => {
            let request = read_body(body, entry).await?;
            send(respond, context.handle(request)).await
        }
        RespondWhen::AtHead => {
            let reply = context.handle(entry.snapshot());
            let (read, sent) = tokio::join!(read_body(body, entry), send(respond, reply));
            read.and(sent)
        }
    }
}

fn recorded(head: &http::request::Parts, context: &ConnContext) -> RecordedRequest {
    let target = head.uri.path_and_query();
    RecordedRequest {
        ordinal: 0,
        connection: context.connection,
        client: context.client.clone(),
        version: Version::HTTP_2,
        method: head.method.clone(),
        target: target.map(ToString::to_string).unwrap_or_default(),
        authority: head.uri.authority().map(ToString::to_string),
        headers: h2io::fields(&head.headers),
        body: Bytes::new(),
        body_len: 0,
        body_state: Body::Receiving,
        trailers: Vec::new(),
    }
}

async fn read_body(mut body: RecvStream, mut entry: Entry) -> Result<RecordedRequest, h2::Error> {
    while let Some(part) = h2io::next_data(&mut body).await {
        entry.push(&part?);
    }
    Ok(entry.complete(h2io::trailers(&mut body).await?))
}

async fn send(mut respond: SendResponse<Bytes>, reply: Reply) -> Result<(), h2::Error> {
    if let Some(notify) = &reply.after {
        tokio::select! {
            () = notify.notified() => {}
            reset = poll_fn(|cx| respond.poll_reset(cx)) => return reset.map(drop),
        }
    }
    let mut head = Response::new(());
    *head.status_mut() = http::StatusCode::from_u16(reply.status).expect("a status code");
    *head.headers_mut() = h2io::header_map(&reply.headers);
    match reply.payload {
        Payload::Whole(body) => {
            let end = body.is_empty() && reply.trailers.is_empty();
            let mut sending = respond.send_response(head, end)?;
            if end {
                return Ok(());
            }
            h2io::send_body(&mut sending, body).await?;
            finish(&mut sending, &reply.trailers)
        }
        Payload::Stream(body) => stream(respond.send_response(head, false)?, body).await,
        Payload::Reset(reason) => {
            respond.send_reset(reason);
            Ok(())
        }
        // RFC 9113, section 8.6: there is no 101 in HTTP/2.
        Payload::Upgrade(_) => {
            respond.send_reset(Reason::HTTP_1_1_REQUIRED);
            Ok(())
        }
    }
}

/// Sends the parts as they arrive, and fails if the client resets the stream before the last.
async fn stream(mut sending: SendStream<Bytes>, mut body: BodyStream) -> Result<(), h2::Error> {
    loop {
        let part = tokio::select! {
            biased;
            part = body.parts.recv() => part,
            reset = h2io::reset(&mut sending) => return reset.map(drop),
        };
        match part {
            Some(BodyPart::Data(data)) => h2io::send_body(&mut sending, data).await?,
            Some(BodyPart::End(trailers)) => {
                finish(&mut sending, &trailers)?;
                body.finished();
                return Ok(());
            }
            None => {
                sending.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
        }
    }
}

fn finish(sending: &mut SendStream<Bytes>, trailers: &[(String, String)]) -> Result<(), h2::Error> {
    match trailers {
        [] => sending.send_data(Bytes::new(), true),
        _ => sending.send_trailers(h2io::header_map(trailers)),
    }
}

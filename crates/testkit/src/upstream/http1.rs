//! HTTP/1.1 of the well-behaved fake server.

use std::io;

use bytes::Bytes;
use http::{Method, Version};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::conn_context::{ConnContext, RespondWhen};
use super::recorded_request::{Body, Entry};
use super::reply::{BodyPart, BodyStream, Payload};
use super::{RecordedRequest, Reply};
use crate::Connection;
use crate::h1_codec::{self, BodyReader, Fields, Framing, Head, invalid};

/// Serves requests until one side closes the connection.
pub(super) async fn serve(tls: TlsStream<TcpStream>, mut context: ConnContext) -> io::Result<()> {
    let mut io = BufReader::new(tls);
    loop {
        // Waiting for bytes can be cancelled without losing any; reading a head cannot.
        tokio::select! {
            ready = io.fill_buf() => if ready?.is_empty() { break },
            () = context.goaway_requested() => break,
        }
        let Some(head) = Head::read(&mut io).await? else {
            break;
        };
        let recorded = request(&head, &context)?;
        let method = recorded.method.clone();
        let entry = context.record.enter(recorded);

        let (reply, unread) = match context.respond_when {
            RespondWhen::Complete => {
                if head.lists("expect", "100-continue") {
                    io.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                    io.flush().await?;
                }
                (
                    context.handle(read_body(&mut io, &head, entry).await?),
                    None,
                )
            }
            RespondWhen::AtHead => (context.handle(entry.snapshot()), Some(entry)),
        };
        if let Some(notify) = &reply.after {
            notify.notified().await;
        }
        let last = head.lists("connection", "close")
            || head.start_line.ends_with("HTTP/1.0")
            || h1_codec::find(&reply.headers, "connection") == Some("close")
            || context.is_goaway_requested();

        match reply.payload {
            Payload::Reset(_) => return Ok(()),
            Payload::Upgrade(taker) => {
                write_head(&mut io, reply.status, &reply.headers).await?;
                // If the test has dropped its end, the connection closes here.
                let _ = taker.send(io);
                return Ok(());
            }
            _ => respond(&mut io, reply, &method, last).await?,
        }
        if let Some(entry) = unread {
            read_body(&mut io, &head, entry).await?;
        }
        if last {
            break;
        }
    }
    io.shutdown().await
}

fn request(head: &Head, context: &ConnContext) -> io::Result<RecordedRequest> {
    let words: Vec<&str> = head.start_line.split(' ').collect();
    let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else {
        return Err(invalid("not a request line"));
    };
    Ok(RecordedRequest {
        ordinal: 0,
        connection: context.connection,
        client: context.client.clone(),
        version: Version::HTTP_11,
        method: Method::from_bytes(method.as_bytes()).map_err(|_| invalid("not a method"))?,
        target: target.to_owned(),
        authority: head.header("host").map(str::to_owned),
        headers: head.headers.clone(),
        body: Bytes::new(),
        body_len: 0,
        body_state: Body::Receiving,
        trailers: Vec::new(),
    })
}

async fn read_body(
    io: &mut Connection,
    head: &Head,
    mut entry: Entry,
) -> io::Result<RecordedRequest> {
    let framing = Framing::declared(head)?.unwrap_or(Framing::Length(0));
    let mut body = BodyReader::new(framing);
    while let Some(part) = body.next(io).await? {
        entry.push(&part);
    }
    Ok(entry.complete(body.into_trailers()))
}

async fn respond(io: &mut Connection, reply: Reply, method: &Method, last: bool) -> io::Result<()> {
    let Reply {
        status,
        mut headers,
        trailers,
        payload,
        ..
    } = reply;
    if last && h1_codec::find(&headers, "connection").is_none() {
        headers.push(("Connection".to_owned(), "close".to_owned()));
    }
    let chunked = matches!(payload, Payload::Stream(_)) || !trailers.is_empty();
    if chunked {
        headers.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
    } else if let Payload::Whole(body) = &payload
        && !matches!(status, 100..=199 | 204 | 304)
        && h1_codec::find(&headers, "content-length").is_none()
    {
        headers.push(("Content-Length".to_owned(), body.len().to_string()));
    }
    write_head(io, status, &headers).await?;
    match payload {
        _ if method == Method::HEAD => Ok(()),
        Payload::Stream(body) => stream(io, body).await,
        Payload::Whole(body) if chunked => {
            write_chunk(io, &body).await?;
            write_last_chunk(io, &trailers).await
        }
        Payload::Whole(body) => {
            io.write_all(&body).await?;
            io.flush().await
        }
        Payload::Upgrade(_) | Payload::Reset(_) => Ok(()),
    }
}

/// Writes the parts as they arrive, and fails if the client disconnects before the last.
async fn stream(io: &mut Connection, mut body: BodyStream) -> io::Result<()> {
    // Until the client sends more bytes, readability means that it has disconnected.
    let mut awaits_bytes = true;
    loop {
        let part = tokio::select! {
            biased;
            part = body.parts.recv() => part,
            read = io.fill_buf(), if awaits_bytes => {
                if read?.is_empty() {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                awaits_bytes = false;
                continue;
            }
        };
        match part {
            Some(BodyPart::Data(data)) => write_chunk(io, &data).await?,
            Some(BodyPart::End(trailers)) => {
                write_last_chunk(io, &trailers).await?;
                body.finished();
                return Ok(());
            }
            None => return Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

async fn write_head(io: &mut Connection, status: u16, headers: &Fields) -> io::Result<()> {
    let reason = http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();
    let head = h1_codec::encode_head(&format!("HTTP/1.1 {status} {reason}"), headers);
    io.write_all(head.as_bytes()).await?;
    io.flush().await
}

async fn write_chunk(io: &mut Connection, data: &[u8]) -> io::Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    io.write_all(format!("{:x}\r\n", data.len()).as_bytes())
        .await?;
    io.write_all(data).await?;
    io.write_all(b"\r\n").await?;
    io.flush().await
}

async fn write_last_chunk(io: &mut Connection, trailers: &Fields) -> io::Result<()> {
    // The last chunk has the form of a head: its size line and the trailers.
    io.write_all(h1_codec::encode_head("0", trailers).as_bytes())
        .await?;
    io.flush().await
}

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use super::Response;
use crate::Connection;
use crate::wire::{self, BodyReader, Fields, Framing, invalid};

/// HTTP/1.1 by hand: bytes out, answers in.
#[derive(Debug)]
pub struct H1Client {
    io: Connection,
    /// The body of the answer whose head was read last.
    body: Option<BodyReader>,
}

/// The head of an answer, headers in the order and case of the wire.
#[derive(Clone, Debug)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// The words after it.
    pub reason: String,
    /// The headers.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The first value of a header, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        wire::find(&self.headers, name)
    }
}

impl H1Client {
    /// Speaks over a connection that is open already.
    pub fn over(io: Connection) -> Self {
        Self { io, body: None }
    }

    /// Sends these bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.io.write_all(bytes.as_ref()).await?;
        self.io.flush().await
    }

    /// Reads the next head, also one of an interim (1xx) answer.
    pub async fn read_head(&mut self) -> io::Result<Head> {
        let head = wire::Head::read(&mut self.io)
            .await?
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut words = head.start_line.splitn(3, ' ');
        let (version, status) = (words.next(), words.next());
        let status = status
            .filter(|_| version == Some("HTTP/1.1"))
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| invalid(&format!("not a status line: {:?}", head.start_line)))?;
        let reason = words.next().unwrap_or_default().to_owned();
        let framing = match status {
            100..=199 | 204 | 304 => Framing::Length(0),
            _ => Framing::declared(&head)?.unwrap_or(Framing::UntilClose),
        };
        self.body = Some(BodyReader::new(framing));
        Ok(Head {
            status,
            reason,
            headers: head.headers,
        })
    }

    /// Reads the next chunk as the server framed it, or what has arrived of a body that is not
    /// chunked; `None` at the end of the body.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        match &mut self.body {
            Some(body) => body.next(&mut self.io).await,
            None => Ok(None),
        }
    }

    /// The trailers of a body that was read to its end.
    pub fn trailers(&self) -> &[(String, String)] {
        self.body
            .as_ref()
            .map_or(&[], |body| body.trailers().as_slice())
    }

    /// Reads a whole answer to a request other than HEAD; interim answers before it, except
    /// 101, are skipped.
    pub async fn read_response(&mut self) -> io::Result<Response> {
        let head = self.read_final_head().await?;
        let mut body = BytesMut::new();
        while let Some(chunk) = self.read_chunk().await? {
            body.extend_from_slice(&chunk);
        }
        let trailers = self
            .body
            .take()
            .map_or_else(Fields::new, BodyReader::into_trailers);
        Ok(response(head, body.freeze(), trailers))
    }

    /// Reads a whole answer to a HEAD request, which has no body whatever its headers say.
    pub async fn read_response_to_head(&mut self) -> io::Result<Response> {
        let head = self.read_final_head().await?;
        self.body = None;
        Ok(response(head, Bytes::new(), Vec::new()))
    }

    /// Whether the server has closed: waits for its end of stream, and fails when bytes come
    /// instead.
    pub async fn read_close(&mut self) -> io::Result<()> {
        match wire::Head::read(&mut self.io).await {
            Ok(None) => Ok(()),
            Ok(Some(head)) => Err(invalid(&format!("an answer: {:?}", head.start_line))),
            Err(error) => Err(error),
        }
    }

    /// The connection, after an upgrade for instance; nothing read ahead is lost.
    pub fn into_connection(self) -> Connection {
        self.io
    }

    async fn read_final_head(&mut self) -> io::Result<Head> {
        loop {
            let head = self.read_head().await?;
            if head.status >= 200 || head.status == 101 {
                return Ok(head);
            }
        }
    }
}

fn response(head: Head, body: Bytes, trailers: Fields) -> Response {
    Response {
        version: http::Version::HTTP_11,
        status: head.status,
        headers: head.headers,
        body,
        trailers,
    }
}

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use super::Response;
use crate::Connection;
use crate::h1_codec::{self, BodyReader, Fields, Framing, invalid};

/// An HTTP/1.1 client that sends raw bytes and parses responses.
#[derive(Debug)]
pub struct H1Client {
    io: Connection,
    /// The body of the response whose head was read last.
    body: Option<BodyReader>,
}

/// The head of a response, with headers in wire order and case.
#[derive(Clone, Debug)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// The headers.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The first value of a header, case-insensitively.
    pub fn header(&self, name: &str) -> Option<&str> {
        h1_codec::find(&self.headers, name)
    }
}

impl H1Client {
    /// Uses a connection that is already open.
    pub fn over(io: Connection) -> Self {
        Self { io, body: None }
    }

    /// Sends these bytes unchanged.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.io.write_all(bytes.as_ref()).await?;
        self.io.flush().await
    }

    /// Reads the next head, including an interim (1xx) one.
    pub async fn read_head(&mut self) -> io::Result<Head> {
        let head = h1_codec::Head::read(&mut self.io)
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

    /// Reads the next chunk as the server framed it, or the available part of a body that
    /// is not chunked; `None` at the end of the body.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        match &mut self.body {
            Some(body) => body.next(&mut self.io).await,
            None => Ok(None),
        }
    }

    /// The trailers of a body that was read completely.
    pub fn trailers(&self) -> &[(String, String)] {
        self.body
            .as_ref()
            .map_or(&[], |body| body.trailers().as_slice())
    }

    /// Reads a complete response to a request other than HEAD; interim responses before it,
    /// except 101, are skipped.
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

    /// Reads a complete response to a HEAD request, which has no body regardless of its
    /// headers.
    pub async fn read_response_to_head(&mut self) -> io::Result<Response> {
        let head = self.read_final_head().await?;
        self.body = None;
        Ok(response(head, Bytes::new(), Vec::new()))
    }

    /// Waits until the server closes the connection, and fails if it sends bytes instead.
    pub async fn read_close(&mut self) -> io::Result<()> {
        match h1_codec::Head::read(&mut self.io).await {
            Ok(None) => Ok(()),
            Ok(Some(head)) => Err(invalid(&format!("a response: {:?}", head.start_line))),
            Err(error) => Err(error),
        }
    }

    /// Returns the connection, for example after an upgrade; no buffered bytes are lost.
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

//! A strict HTTP/1.1 parser that preserves the order and case of headers. It is independent
//! of the gateway's own parser, in order to verify it.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Headers or trailers in wire order and wire case.
pub(crate) type Fields = Vec<(String, String)>;

/// More than any test sends in a head; an endless head fails the test instead of filling
/// the memory.
const MAX_HEAD_BYTES: usize = 1 << 20;

/// The maximum number of bytes read at once from a body that is not chunked.
const MAX_PART_BYTES: usize = 64 << 10;

/// A start line and its headers.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) start_line: String,
    pub(crate) headers: Fields,
}

impl Head {
    /// Reads a head; `None` if the connection was closed before its first byte.
    pub(crate) async fn read(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        if io.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let start_line = read_line(io).await?;
        let headers = read_fields(io).await?;
        Ok(Some(Self {
            start_line,
            headers,
        }))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Whether a comma-separated header lists `token`.
    pub(crate) fn lists(&self, name: &str, token: &str) -> bool {
        self.headers
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .flat_map(|(_, value)| value.split(','))
            .any(|item| item.trim().eq_ignore_ascii_case(token))
    }
}

/// The first value of a header, case-insensitively.
pub(crate) fn find<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields
        .iter()
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

impl Framing {
    /// The framing that the headers declare, if any.
    pub(crate) fn declared(head: &Head) -> io::Result<Option<Self>> {
        if head.lists("transfer-encoding", "chunked") {
            return Ok(Some(Self::Chunked));
        }
        head.header("content-length")
            .map(|value| value.parse().map(Self::Length))
            .transpose()
            .map_err(|_| invalid("content-length is not a number"))
    }
}

/// Reads one body in parts.
#[derive(Debug)]
pub(crate) struct BodyReader {
    framing: Framing,
    ended: bool,
    trailers: Fields,
}

impl BodyReader {
    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            framing,
            ended: framing == Framing::Length(0),
            trailers: Vec::new(),
        }
    }

    /// The next chunk, or the available part of a body that is not chunked; `None` at its end.
    pub(crate) async fn next(
        &mut self,
        io: &mut (impl AsyncBufRead + Unpin),
    ) -> io::Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        match self.framing {
            Framing::Chunked => self.next_chunk(io).await,
            Framing::UntilClose => {
                let part = read_some(io, MAX_PART_BYTES).await?;
                self.ended = part.is_empty();
                Ok((!self.ended).then_some(part))
            }
            Framing::Length(left) => {
                let limit = usize::try_from(left)
                    .unwrap_or(MAX_PART_BYTES)
                    .min(MAX_PART_BYTES);
                let part = read_some(io, limit).await?;
                if part.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let left = left - part.len() as u64;
                self.framing = Framing::Length(left);
                self.ended = left == 0;
                Ok(Some(part))
            }
        }
    }

    async fn next_chunk(
        &mut self,
        io: &mut (impl AsyncBufRead + Unpin),
    ) -> io::Result<Option<Bytes>> {
        let line = read_line(io).await?;
        let digits = line.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(digits, 16)
            .map_err(|_| invalid(&format!("not a chunk size: {line:?}")))?;
        if size == 0 {
            self.trailers = read_fields(io).await?;
            self.ended = true;
            return Ok(None);
        }
        let mut chunk = vec![0; size];
        io.read_exact(&mut chunk).await?;
        let mut end = [0; 2];
        io.read_exact(&mut end).await?;
        if end != *b"\r\n" {
            return Err(invalid("a chunk does not end where its size says"));
        }
        Ok(Some(chunk.into()))
    }

    /// The trailers, once the body has ended.
    pub(crate) fn into_trailers(self) -> Fields {
        self.trailers
    }

    pub(crate) fn trailers(&self) -> &Fields {
        &self.trailers
    }
}

/// Encodes the head of a request or response, including the blank line.
pub(crate) fn encode_head(start_line: &str, headers: &[(String, String)]) -> String {
    let lines = headers
        .iter()
        .flat_map(|(name, value)| [name, ": ", value, "\r\n"]);
    [start_line, "\r\n"]
        .into_iter()
        .chain(lines)
        .chain(["\r\n"])
        .collect()
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Reads a head as sent, including the blank line.
pub(crate) async fn read_raw_head(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX_HEAD_BYTES {
            return Err(invalid("a head without end"));
        }
        head.push(io.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn read_fields(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Fields> {
    let mut fields = Vec::new();
    let mut size = 0;
    loop {
        let line = read_line(io).await?;
        if line.is_empty() {
            return Ok(fields);
        }
        size += line.len();
        if size > MAX_HEAD_BYTES {
            return Err(invalid("a head without end"));
        }
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| invalid(&format!("not a header: {line:?}")))?;
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// Reads a line up to CRLF, which is removed; a bare LF is an error.
async fn read_line(io: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    let mut limited = io.take(MAX_HEAD_BYTES as u64);
    limited.read_until(b'\n', &mut line).await?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None if line.ends_with(b"\n") => Err(invalid("a line ends without CR")),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

async fn read_some(io: &mut (impl AsyncBufRead + Unpin), limit: usize) -> io::Result<Bytes> {
    let available = io.fill_buf().await?;
    let part = Bytes::copy_from_slice(&available[..available.len().min(limit)]);
    io.consume(part.len());
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn body(framing: Framing, mut wire: &[u8]) -> io::Result<(Vec<Bytes>, Fields)> {
        let mut reader = BodyReader::new(framing);
        let mut parts = Vec::new();
        while let Some(part) = reader.next(&mut wire).await? {
            parts.push(part);
        }
        Ok((parts, reader.into_trailers()))
    }

    #[tokio::test]
    async fn chunks_are_read_one_by_one_and_trailers_keep_their_case() {
        let wire = b"3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n";
        let (parts, trailers) = body(Framing::Chunked, wire).await.unwrap();
        assert_eq!(parts, [&b"abc"[..], b"0123456789"]);
        assert_eq!(trailers, [("X-Sum".to_owned(), "1".to_owned())]);
    }

    #[tokio::test]
    async fn a_truncated_body_is_an_error_unless_close_delimits_it() {
        assert!(body(Framing::Length(5), b"1234").await.is_err());
        assert!(body(Framing::Chunked, b"3\r\nabc\r\n").await.is_err());
        assert!(
            body(Framing::Chunked, b"3\nabc\r\n0\r\n\r\n")
                .await
                .is_err()
        );
        assert!(body(Framing::UntilClose, b"1234").await.is_ok());
    }
}

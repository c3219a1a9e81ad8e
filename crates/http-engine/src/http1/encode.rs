//! Encodes message heads and bodies.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, Version};
use skewbridge_stream_io::Buffered;
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::FramingError;

/// Writes `GET /path HTTP/1.1`.
pub fn write_request_line(out: &mut BytesMut, method: &Method, target: &str) {
    out.reserve(method.as_str().len() + target.len() + 16);
    out.put_slice(method.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(target.as_bytes());
    out.put_slice(b" HTTP/1.1\r\n");
}

/// Writes `HTTP/1.1 200 OK`, in the version that the client spoke.
pub fn write_status_line(out: &mut BytesMut, version: Version, status: StatusCode) {
    out.reserve(64);
    out.put_slice(if version == Version::HTTP_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    out.put_slice(status.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.put_slice(b"\r\n");
}

/// Writes all fields, without the final blank line. Names are capitalized like Go's (`Audit-Id`),
/// so that clients that compare names case-sensitively get what kube-apiserver sends.
pub fn write_headers(out: &mut BytesMut, headers: &HeaderMap) {
    for (name, value) in headers {
        out.reserve(name.as_str().len() + value.len() + 4);
        let mut upper = true;
        for byte in name.as_str().bytes() {
            out.put_u8(if upper {
                byte.to_ascii_uppercase()
            } else {
                byte
            });
            upper = byte == b'-';
        }
        out.put_slice(b": ");
        out.put_slice(value.as_bytes());
        out.put_slice(b"\r\n");
    }
}

/// Encodes a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Encoder {
    /// No body may be written.
    Empty,
    /// This many bytes are still to be written.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Unframed; the end of the connection ends it.
    UntilClose,
}

impl Encoder {
    /// Writes the framing before `length` bytes of data.
    ///
    /// Fails if the body exceeds its Content-Length: the excess would be parsed as the next
    /// message.
    pub fn write_data_prefix(
        &mut self,
        out: &mut BytesMut,
        length: usize,
    ) -> Result<(), FramingError> {
        match self {
            Self::Empty => Err(FramingError::Incomplete),
            Self::Length(left) => {
                *left = left
                    .checked_sub(length as u64)
                    .ok_or(FramingError::Incomplete)?;
                Ok(())
            }
            Self::Chunked => {
                let mut digits = [0; 16];
                let mut at = digits.len();
                let mut rest = length;
                loop {
                    at -= 1;
                    digits[at] = b"0123456789abcdef"[rest & 15];
                    rest >>= 4;
                    if rest == 0 {
                        break;
                    }
                }
                out.reserve(20);
                out.put_slice(&digits[at..]);
                out.put_slice(b"\r\n");
                Ok(())
            }
            Self::UntilClose => Ok(()),
        }
    }

    /// Writes the framing after data.
    pub fn write_data_suffix(&self, out: &mut BytesMut) {
        if *self == Self::Chunked {
            out.put_slice(b"\r\n");
        }
    }

    /// Writes a part of the body.
    pub fn write_data(&mut self, out: &mut BytesMut, data: &[u8]) -> Result<(), FramingError> {
        if data.is_empty() {
            return Ok(());
        }
        self.write_data_prefix(out, data.len())?;
        out.extend_from_slice(data);
        self.write_data_suffix(out);
        Ok(())
    }

    /// Queues a chunk of the body on a stream, without copying it if it is large.
    pub fn queue_data<T: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut Buffered<T>,
        data: Bytes,
    ) -> Result<(), FramingError> {
        if data.is_empty() {
            return Ok(());
        }
        self.write_data_prefix(&mut stream.output, data.len())?;
        stream.push_data(data);
        self.write_data_suffix(&mut stream.output);
        Ok(())
    }

    /// Ends the body. Fails if it is shorter than its Content-Length: the connection must then be
    /// aborted, so that the receiver detects the truncation.
    pub fn finish(
        &mut self,
        out: &mut BytesMut,
        trailers: Option<&HeaderMap>,
    ) -> Result<(), FramingError> {
        match self {
            Self::Length(0) | Self::Empty | Self::UntilClose => Ok(()),
            Self::Length(_) => Err(FramingError::Incomplete),
            Self::Chunked => {
                out.put_slice(b"0\r\n");
                if let Some(trailers) = trailers {
                    write_headers(out, trailers);
                }
                out.put_slice(b"\r\n");
                *self = Self::Empty;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_go_writes_them() {
        let mut headers = HeaderMap::new();
        headers.insert("audit-id", "1".parse().unwrap());
        headers.insert("x-kubernetes-pf-flowschema-uid", "2".parse().unwrap());
        let mut out = BytesMut::new();
        write_headers(&mut out, &headers);
        assert_eq!(
            &out[..],
            b"Audit-Id: 1\r\nX-Kubernetes-Pf-Flowschema-Uid: 2\r\n"
        );
    }

    #[test]
    fn a_body_longer_or_shorter_than_announced_is_an_error() {
        let mut out = BytesMut::new();
        assert!(Encoder::Length(1).write_data(&mut out, b"ab").is_err());
        assert!(Encoder::Length(1).finish(&mut out, None).is_err());
        assert!(Encoder::Empty.write_data(&mut out, b"a").is_err());
        assert!(out.is_empty());
    }

    #[test]
    fn trailers_follow_the_last_chunk() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let mut out = BytesMut::new();
        let mut encoder = Encoder::Chunked;
        encoder.write_data(&mut out, &[b'x'; 17]).unwrap();
        encoder.finish(&mut out, Some(&trailers)).unwrap();
        assert_eq!(
            &out[..],
            b"11\r\nxxxxxxxxxxxxxxxxx\r\n0\r\nGrpc-Status: 0\r\n\r\n"
        );
    }
}

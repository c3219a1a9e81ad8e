//! HTTP CONNECT (RFC 9110, 9.3.6): requests a tunnel from a proxy.

use std::io;

use bytes::BytesMut;
use http::{Method, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::http1::{HeadError, HeadTerminator, parse_response};

/// Maximum size of the response head. A server that is not a proxy may send a large one.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Read size for the response.
const READ_CHUNK_BYTES: usize = 1024;

/// How each response begins. Anything else is detected at once, and not after a blank line
/// that may never arrive.
const BEGINNING: &[u8] = b"HTTP/1.";

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The connection to the proxy failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The proxy closed the connection before its response was complete.
    #[error("the proxy closed the connection")]
    Closed,
    /// The proxy refused.
    #[error("the proxy answered {}", .0.as_u16())]
    Refused(StatusCode),
    /// The response is not HTTP/1.1.
    #[error(transparent)]
    InvalidResponse(#[from] InvalidResponse),
}

/// Why a response is not HTTP/1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResponse {
    /// The response is of another protocol.
    #[error("it does not begin with HTTP/1.")]
    NotHttp1,
    /// Its head exceeds the maximum size.
    #[error("its head is longer than {MAX_HEAD_BYTES} bytes")]
    TooLong,
    /// Its head is malformed.
    #[error(transparent)]
    Head(HeadError),
}

/// Requests a tunnel to `to` (`host:port`) from the proxy at the other end of `io`, with this value
/// of `Proxy-Authorization`. Returns the tunnel bytes that followed the response head. The caller
/// sets a timeout.
pub async fn http_connect(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    to: &str,
    proxy_authorization: Option<&[u8]>,
) -> Result<BytesMut, TunnelError> {
    let mut request = BytesMut::from(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n").as_str());
    if let Some(authorization) = proxy_authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(authorization);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    io.write_all(&request).await?;
    io.flush().await?;
    let mut response = Response::default();
    loop {
        match response.parse()? {
            None => {}
            Some((StatusCode::OK, rest)) => return Ok(rest),
            Some((status, _)) => return Err(TunnelError::Refused(status)),
        }
        response.bytes.reserve(READ_CHUNK_BYTES);
        if io.read_buf(&mut response.bytes).await? == 0 {
            return Err(TunnelError::Closed);
        }
    }
}

/// The response to CONNECT, as far as it has arrived.
#[derive(Debug, Default)]
struct Response {
    bytes: BytesMut,
    end: HeadTerminator,
}

impl Response {
    /// The status and the bytes after the head, once the head is complete.
    fn parse(&mut self) -> Result<Option<(StatusCode, BytesMut)>, InvalidResponse> {
        let before = self.bytes.len();
        if !(BEGINNING.iter().zip(&self.bytes)).all(|(expected, byte)| expected == byte) {
            return Err(InvalidResponse::NotHttp1);
        }
        if self.end.reached(&self.bytes) {
            // No body follows, as after HEAD: a 200 is followed by the tunnel, whatever length
            // it claims (RFC 9110, 9.3.6), and after any other status the connection is
            // dropped.
            let head =
                parse_response(&mut self.bytes, &Method::HEAD).map_err(InvalidResponse::Head)?;
            if let Some(head) = head
                && before - self.bytes.len() <= MAX_HEAD_BYTES
            {
                return Ok(Some((head.status, self.bytes.split())));
            }
        }
        if before > MAX_HEAD_BYTES {
            return Err(InvalidResponse::TooLong);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    /// The result for bytes that arrive in these pieces.
    fn read(pieces: &[&[u8]]) -> Result<Option<(StatusCode, Vec<u8>)>, InvalidResponse> {
        let mut response = Response::default();
        for (at, piece) in pieces.iter().enumerate() {
            response.bytes.extend_from_slice(piece);
            if let Some((status, rest)) = response.parse()? {
                let mut rest = rest.to_vec();
                // Later bytes are read from the tunnel.
                rest.extend(pieces[at + 1..].iter().copied().flatten());
                return Ok(Some((status, rest)));
            }
        }
        Ok(None)
    }

    /// Cuts bytes into pieces of these lengths and a last one.
    fn split_at_lengths<'a>(mut bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        for length in lengths {
            let (piece, rest) = bytes.split_at((*length).min(bytes.len()));
            pieces.push(piece);
            bytes = rest;
        }
        pieces.push(bytes);
        pieces
    }

    fn responses() -> impl Strategy<Value = Vec<u8>> {
        let status = prop_oneof![Just(200_u16), 200_u16..600];
        let field = "[A-Z][a-z-]{0,20}: [ -~]{0,30}\r\n";
        let fields = prop::collection::vec(field, 0..8);
        let padding = prop_oneof![Just(0), 0..2 * MAX_HEAD_BYTES];
        let rest = prop::collection::vec(any::<u8>(), 0..64);
        let good = (status, fields, padding, rest).prop_map(|(status, fields, padding, rest)| {
            let (fields, padding) = (fields.concat(), "x".repeat(padding));
            let head = format!("HTTP/1.1 {status} Reason\r\n{fields}Pad: {padding}\r\n\r\n");
            [head.as_bytes(), &rest].concat()
        });
        let noise = prop::collection::vec(any::<u8>(), 0..64);
        let nearly = prop::collection::vec(any::<u8>(), 0..64)
            .prop_map(|rest| [b"HTTP/1.", rest.as_slice()].concat());
        prop_oneof![6 => good, 1 => noise, 1 => nearly]
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_result(
            bytes in responses(),
            lengths in prop::collection::vec(0_usize..3000, 0..20),
        ) {
            prop_assert_eq!(read(&split_at_lengths(&bytes, &lengths)), read(&[&bytes]));
        }

        #[test]
        fn bytes_behind_the_response_belong_to_the_tunnel(
            rest in prop::collection::vec(any::<u8>(), 0..64),
            lengths in prop::collection::vec(1_usize..40, 0..8),
        ) {
            let head = b"HTTP/1.1 200 Connection established\r\nContent-Length: 3\r\n\r\n";
            let bytes = [head.as_slice(), &rest].concat();
            prop_assert_eq!(read(&split_at_lengths(&bytes, &lengths)), Ok(Some((StatusCode::OK, rest))));
        }
    }

    #[test]
    fn responses_that_are_not_http_are_refused() {
        let long = format!(
            "HTTP/1.1 200 OK\r\nPad: {}\r\n\r\n",
            "x".repeat(MAX_HEAD_BYTES)
        );
        let table: [(&[u8], _); 7] = [
            (b"", Ok(None)),
            (b"HTT", Ok(None)),
            (b"HTTP/1.1 200 OK\r\n", Ok(None)),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Err(InvalidResponse::NotHttp1)),
            // An alert of TLS.
            (
                b"\x15\x03\x01\x00\x02\x02\x46",
                Err(InvalidResponse::NotHttp1),
            ),
            (b"HTTP/2 200\r\n\r\n", Err(InvalidResponse::NotHttp1)),
            (long.as_bytes(), Err(InvalidResponse::TooLong)),
        ];
        for (bytes, expected) in table {
            assert_eq!(read(&[bytes]), expected, "{}", bytes.escape_ascii());
        }
        let malformed = read(&[b"HTTP/1.1 2x0 OK\r\n\r\n"]);
        assert!(
            matches!(malformed, Err(InvalidResponse::Head(_))),
            "{malformed:?}"
        );
        let http10 = read(&[b"HTTP/1.0 200 OK\r\n\r\n"]);
        assert_eq!(http10, Ok(Some((StatusCode::OK, Vec::new()))));
    }

    /// The request that a proxy gets, and the result of its response.
    async fn exchange(
        authorization: Option<&[u8]>,
        response: &[u8],
    ) -> (String, Result<BytesMut, TunnelError>) {
        let (mut client, mut proxy) = duplex(4096);
        proxy.write_all(response).await.unwrap();
        proxy.shutdown().await.unwrap();
        let result = http_connect(&mut client, "k.example:6443", authorization).await;
        drop(client);
        let mut request = String::new();
        proxy.read_to_string(&mut request).await.unwrap();
        (request, result)
    }

    #[tokio::test]
    async fn the_request_names_the_target_and_carries_the_credential() {
        let (request, result) = exchange(None, b"HTTP/1.1 200 OK\r\n\r\nrest").await;
        let expected = "CONNECT k.example:6443 HTTP/1.1\r\nHost: k.example:6443\r\n\r\n";
        assert_eq!(request, expected);
        assert_eq!(result.unwrap(), "rest");
        let (request, _) = exchange(Some(b"Basic bWU6"), b"HTTP/1.1 200 OK\r\n\r\n").await;
        assert!(request.ends_with("\r\nProxy-Authorization: Basic bWU6\r\n\r\n"));
    }

    #[tokio::test]
    async fn a_refusal_is_distinguished_from_a_closed_connection() {
        let (_, result) = exchange(None, b"HTTP/1.1 407 Who?\r\n\r\n").await;
        let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
        assert!(matches!(result, Err(TunnelError::Refused(found)) if found == status));
        for part in [&b""[..], b"HTTP/1.1 200 OK\r\n"] {
            let (_, result) = exchange(None, part).await;
            assert!(matches!(result, Err(TunnelError::Closed)), "{result:?}");
        }
        let (_, result) = exchange(None, b"SSH-2.0-OpenSSH_9.6\r\n").await;
        assert!(matches!(
            result,
            Err(TunnelError::InvalidResponse(InvalidResponse::NotHttp1))
        ));
    }
}

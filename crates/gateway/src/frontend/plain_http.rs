//! HTTP without TLS on the TLS port, answered as Go's `net/http` answers it.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The same bytes as Go.
const RESPONSE: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// The size of a TLS record header.
const RECORD_HEADER_BYTES: usize = 5;

/// Enough for a usual `ClientHello`, which is read together with its header.
const FIRST_READ_BYTES: usize = 2048;

/// Data that the client still sends is read, so that a reset does not discard the response.
const LINGER_BYTES: usize = 64 * 1024;
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the first bytes of a connection, after those that have been read; fewer than a record header
/// only at its end.
pub(crate) async fn first_bytes(tcp: &mut TcpStream, mut bytes: BytesMut) -> io::Result<BytesMut> {
    bytes.reserve(FIRST_READ_BYTES);
    while bytes.len() < RECORD_HEADER_BYTES && tcp.read_buf(&mut bytes).await? > 0 {}
    Ok(bytes)
}

/// Whether a connection begins with a request instead of a TLS record.
pub(crate) fn is_request(bytes: &[u8]) -> bool {
    matches!(
        bytes.get(..RECORD_HEADER_BYTES),
        Some(b"GET /" | b"HEAD " | b"POST " | b"PUT /" | b"OPTIO" | b"PATCH" | b"DELET")
    )
}

/// Sends the response and closes the connection.
pub(crate) async fn reject(mut tcp: TcpStream) {
    let ended = async {
        tcp.write_all(RESPONSE).await?;
        tcp.shutdown().await?;
        let mut rest = tcp.take(LINGER_BYTES as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(LINGER_TIMEOUT, ended).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_distinguished_from_tls_records() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], true),
            (b"POST /api", true),
            (b"DELETE /api", true),
            (b"GET", false),
            (b"", false),
            (b"\x16\x03\x01\x02\x00\x01", false),
            (b"SSH-2.0-Go", false),
            (b"PRI * HTTP/2.0", false),
        ] {
            assert_eq!(is_request(bytes), expected, "{bytes:?}");
        }
    }
}

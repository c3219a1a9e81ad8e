//! The end of a connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Version};
use tokio::io::AsyncWrite;
use tokio::time::timeout;

use super::connection::{Connection, fill};
use super::response::write_head;

/// After a response that closes the connection, this much further input is read and discarded, so
/// that a TCP reset does not destroy the response in transit (RFC 9112, 9.6).
const MAX_LINGER_BYTES: usize = 256 * 1024;
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Responds to an invalid request, and closes the connection.
pub(super) async fn refuse(connection: &Connection, response: http::Response<bytes::Bytes>) {
    let (mut head, body) = response.into_parts();
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("close"));
    write_head(connection, Version::HTTP_11, &head);
    connection.lock().stream.output.extend_from_slice(&body);
    let flush = poll_fn(|cx| connection.lock().stream.poll_flush(cx));
    if matches!(timeout(LINGER_TIMEOUT, flush).await, Ok(Ok(()))) {
        linger(connection).await;
    }
}

/// Closes a connection between two requests, with `close_notify`: without it the client would treat
/// the close as a truncation.
pub(super) async fn close(connection: &Connection) {
    let shutdown = poll_fn(|cx| Pin::new(&mut connection.lock().stream.io).poll_shutdown(cx));
    let _ = timeout(LINGER_TIMEOUT, shutdown).await;
}

/// Closes a connection so that the client can still read the last response.
pub(super) async fn linger(connection: &Connection) {
    let ended = async {
        poll_fn(|cx| Pin::new(&mut connection.lock().stream.io).poll_shutdown(cx)).await?;
        let mut left = MAX_LINGER_BYTES;
        loop {
            connection.lock().stream.input.clear();
            match fill(connection).await? {
                read if read > 0 && read < left => left -= read,
                _ => return io::Result::Ok(()),
            }
        }
    };
    let _ = timeout(LINGER_TIMEOUT, ended).await;
}

//! Request bodies that are buffered for modifiers.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_http_engine::body::{BodyError, Frame, RequestBody};
use tokio::time::timeout;

/// How long a modifier that needs the whole body waits for the next part of it. Memory is
/// reserved for it meanwhile, and the client is on this machine.
pub(super) const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a body was not collected.
pub(super) enum CollectError {
    TooLong,
    Stalled,
    Body(BodyError),
}

/// Buffers a body of at most `limit` bytes. Trailers are dropped: the body is sent with
/// Content-Length.
pub(super) async fn collect(
    mut body: RequestBody,
    expected: usize,
    limit: usize,
) -> Result<Bytes, CollectError> {
    let mut collected = BytesMut::with_capacity(expected);
    loop {
        let next = timeout(BODY_IDLE_TIMEOUT, poll_fn(|cx| body.poll_frame(cx))).await;
        let Some(frame) = next.map_err(|_| CollectError::Stalled)? else {
            return Ok(collected.freeze());
        };
        if let Frame::Data(data) = frame.map_err(CollectError::Body)? {
            if collected.len() + data.len() > limit {
                return Err(CollectError::TooLong);
            }
            collected.extend_from_slice(&data);
        }
    }
}

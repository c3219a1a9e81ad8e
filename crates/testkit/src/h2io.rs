//! Body and header helpers for both sides of an `h2` connection.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::h1_codec::Fields;

/// Sends `body` as the receiver's windows allow, without ending the stream.
pub(crate) async fn send_body(
    stream: &mut SendStream<Bytes>,
    mut body: Bytes,
) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let capacity = poll_fn(|cx| match stream.poll_reset(cx) {
            Poll::Ready(reset) => Poll::Ready(reset.and_then(|reason| Err(reason.into()))),
            Poll::Pending => stream
                .poll_capacity(cx)
                .map(|capacity| capacity.unwrap_or_else(|| Err(Reason::CANCEL.into()))),
        })
        .await?;
        stream.send_data(body.split_to(capacity.min(body.len())), false)?;
    }
    Ok(())
}

/// Resolves when the other end resets the stream or the connection fails.
pub(crate) async fn reset(stream: &mut SendStream<Bytes>) -> Result<Reason, h2::Error> {
    poll_fn(|cx| stream.poll_reset(cx)).await
}

/// The next DATA; its window is released immediately.
pub(crate) async fn next_data(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let data = body.data().await?;
    Some(data.and_then(|bytes| {
        body.flow_control().release_capacity(bytes.len())?;
        Ok(bytes)
    }))
}

pub(crate) async fn trailers(body: &mut RecvStream) -> Result<Fields, h2::Error> {
    let trailers = body.trailers().await?;
    Ok(trailers.as_ref().map(fields).unwrap_or_default())
}

/// The headers in the map's order: wire order, except that repeated values of a name follow
/// its first one.
pub(crate) fn fields(headers: &HeaderMap) -> Fields {
    headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.to_string(), value)
        })
        .collect()
}

pub(crate) fn header_map(fields: &[(String, String)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        })
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

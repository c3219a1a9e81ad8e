//! Bodies that are held until all of them is here: only then can it be told whether
//! it is what was signed, and nothing may be acted upon before.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use skewbridge_http_signature::{ExpectedDigest, VerifyError};
use tokio::time::timeout;

use super::error::Rejected;
use skewbridge_http_engine::body::{Frame, RequestBody};

/// The longest body that is held: what kube-apiserver takes of an object.
pub(super) const MAX_BODY: usize = 3 * 1024 * 1024;

/// What is held of all bodies, until the last byte of each has left for upstream. Only
/// who has a key comes so far.
const MAX_HELD: usize = 256 * 1024 * 1024;

/// Whether a body says of itself that it is longer.
pub(super) fn is_too_long(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|it| it > MAX_BODY as u64)
}

/// Counts what is held.
#[derive(Debug, Default)]
pub(super) struct Room {
    held: Arc<AtomicUsize>,
}

/// A part of the room, given back when it is dropped.
struct Part {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl Part {
    fn grow(&mut self, bytes: usize) -> Result<(), Rejected> {
        if self.bytes + bytes > MAX_BODY {
            return Err(Rejected::TooLarge);
        }
        self.bytes += bytes;
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_HELD {
            return Err(Rejected::NoRoom);
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A whole body and its part of the room, for as long as anybody has some of it.
struct Held {
    bytes: BytesMut,
    _part: Part,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Room {
    /// The same body, whole, if it is what was signed. Trailers are not: they are
    /// left behind.
    pub(super) async fn whole(
        &self,
        body: RequestBody,
        digest: &ExpectedDigest,
        patience: Duration,
    ) -> Result<RequestBody, Rejected> {
        let collected = timeout(patience, self.collect(body)).await;
        let whole = collected.map_err(|_| Rejected::BodySlow)??;
        if !digest.matches(&whole) {
            return Err(VerifyError::WrongDigest.into());
        }
        Ok(if whole.is_empty() {
            RequestBody::Empty
        } else {
            RequestBody::Full(whole)
        })
    }

    async fn collect(&self, mut body: RequestBody) -> Result<Bytes, Rejected> {
        let mut part = Part {
            held: self.held.clone(),
            bytes: 0,
        };
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
            match frame.map_err(|_| Rejected::BodyLost)? {
                Frame::Data(data) => {
                    part.grow(data.len())?;
                    whole.extend_from_slice(&data);
                }
                Frame::Trailers(_) => {}
            }
        }
        Ok(Bytes::from_owner(Held {
            bytes: whole,
            _part: part,
        }))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use skewbridge_http_signature::DigestAlgorithm;

    use super::*;

    fn digest_of(body: &[u8]) -> ExpectedDigest {
        let mut headers = HeaderMap::new();
        let name = HeaderName::from_static("content-digest");
        headers.insert(name, DigestAlgorithm::Sha256.header(body));
        ExpectedDigest::of(&headers).unwrap().unwrap()
    }

    async fn whole(room: &Room, body: &[u8], signed: &[u8]) -> Result<(), Rejected> {
        let body = RequestBody::Full(Bytes::copy_from_slice(body));
        let patience = Duration::from_secs(30);
        room.whole(body, &digest_of(signed), patience)
            .await
            .map(|_| ())
    }

    #[tokio::test]
    async fn only_what_was_signed_is_passed_on_and_only_if_it_fits() {
        let room = Room::default();
        assert_eq!(whole(&room, b"a", b"a").await, Ok(()));
        let wrong = Err(Rejected::Refused(VerifyError::WrongDigest));
        assert_eq!(whole(&room, b"a", b"b").await, wrong);
        let most = vec![1; MAX_BODY];
        assert_eq!(whole(&room, &most, &most).await, Ok(()));
        let more = vec![1; MAX_BODY + 1];
        assert_eq!(whole(&room, &more, &more).await, Err(Rejected::TooLarge));
        // Full: told, and given back.
        room.held.store(MAX_HELD, Ordering::Relaxed);
        assert_eq!(whole(&room, b"a", b"a").await, Err(Rejected::NoRoom));
        assert_eq!(room.held.load(Ordering::Relaxed), MAX_HELD);
        room.held.store(MAX_HELD - 1, Ordering::Relaxed);
        assert_eq!(whole(&room, b"a", b"a").await, Ok(()));
        assert_eq!(room.held.load(Ordering::Relaxed), MAX_HELD - 1);
    }

    #[tokio::test]
    async fn a_whole_body_counts_until_the_last_of_it_is_gone() {
        let room = Room::default();
        let (body, digest) = (
            RequestBody::Full(Bytes::from_static(b"abc")),
            digest_of(b"abc"),
        );
        let patience = Duration::from_secs(30);
        let RequestBody::Full(whole) = room.whole(body, &digest, patience).await.unwrap() else {
            panic!("it is whole");
        };
        let piece = whole.slice(1..);
        drop(whole);
        assert_eq!(room.held.load(Ordering::Relaxed), 3);
        drop(piece);
        assert_eq!(room.held.load(Ordering::Relaxed), 0);
    }
}

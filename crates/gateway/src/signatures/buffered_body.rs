//! Buffers the bodies of signed requests until they are complete: only then can the digest be
//! verified, and nothing may be forwarded before.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use skewbridge_http_engine::body::{Frame, RequestBody};
use skewbridge_http_signature::{ExpectedDigest, VerifyError};
use tokio::time::timeout;

use super::error::{MAX_BODY_BYTES, SignatureError};

/// The budget of all buffered bodies. A body counts until its last byte has been sent upstream.
/// Only bodies of requests with a valid signature are buffered.
const MAX_BUFFERED_BYTES: usize = 256 * 1024 * 1024;

/// Whether `Content-Length` exceeds the limit.
pub(super) fn is_too_long(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|it| it > MAX_BODY_BYTES as u64)
}

/// Counts the buffered bytes.
#[derive(Debug, Default)]
pub(super) struct BodyBudget {
    buffered: Arc<AtomicUsize>,
}

/// A part of the budget, released on drop.
struct BudgetPermit {
    buffered: Arc<AtomicUsize>,
    bytes: usize,
}

impl BudgetPermit {
    fn grow(&mut self, bytes: usize) -> Result<(), SignatureError> {
        if self.bytes + bytes > MAX_BODY_BYTES {
            return Err(SignatureError::TooLarge);
        }
        self.bytes += bytes;
        let before = self.buffered.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_BUFFERED_BYTES {
            return Err(SignatureError::BodyBudgetExhausted);
        }
        Ok(())
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.buffered.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A complete body and its permit, which is released with the last reference to the body.
struct BufferedBody {
    bytes: BytesMut,
    _permit: BudgetPermit,
}

impl AsRef<[u8]> for BufferedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyBudget {
    /// Buffers the body and verifies its digest. Trailers are not signed: they are dropped.
    pub(super) async fn verify(
        &self,
        body: RequestBody,
        digest: &ExpectedDigest,
        body_timeout: Duration,
    ) -> Result<RequestBody, SignatureError> {
        let collected = timeout(body_timeout, self.collect(body)).await;
        let body = collected.map_err(|_| SignatureError::BodySlow)??;
        if !digest.matches(&body) {
            return Err(VerifyError::WrongDigest.into());
        }
        Ok(if body.is_empty() {
            RequestBody::Empty
        } else {
            RequestBody::Full(body)
        })
    }

    async fn collect(&self, mut body: RequestBody) -> Result<Bytes, SignatureError> {
        let mut permit = BudgetPermit {
            buffered: self.buffered.clone(),
            bytes: 0,
        };
        let mut bytes = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
            match frame.map_err(|_| SignatureError::BodyLost)? {
                Frame::Data(data) => {
                    permit.grow(data.len())?;
                    bytes.extend_from_slice(&data);
                }
                Frame::Trailers(_) => {}
            }
        }
        Ok(Bytes::from_owner(BufferedBody {
            bytes,
            _permit: permit,
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

    const BODY_TIMEOUT: Duration = Duration::from_secs(30);

    async fn verify(budget: &BodyBudget, body: &[u8], signed: &[u8]) -> Result<(), SignatureError> {
        let body = RequestBody::Full(Bytes::copy_from_slice(body));
        let digest = digest_of(signed);
        let verified = budget.verify(body, &digest, BODY_TIMEOUT).await;
        verified.map(|_| ())
    }

    #[tokio::test]
    async fn only_the_signed_body_within_the_limits_is_accepted() {
        let budget = BodyBudget::default();
        assert_eq!(verify(&budget, b"a", b"a").await, Ok(()));
        let wrong = Err(SignatureError::Invalid(VerifyError::WrongDigest));
        assert_eq!(verify(&budget, b"a", b"b").await, wrong);
        let most = vec![1; MAX_BODY_BYTES];
        assert_eq!(verify(&budget, &most, &most).await, Ok(()));
        let more = vec![1; MAX_BODY_BYTES + 1];
        assert_eq!(
            verify(&budget, &more, &more).await,
            Err(SignatureError::TooLarge)
        );
        // A rejected body releases its permit.
        budget.buffered.store(MAX_BUFFERED_BYTES, Ordering::Relaxed);
        assert_eq!(
            verify(&budget, b"a", b"a").await,
            Err(SignatureError::BodyBudgetExhausted)
        );
        assert_eq!(budget.buffered.load(Ordering::Relaxed), MAX_BUFFERED_BYTES);
        budget
            .buffered
            .store(MAX_BUFFERED_BYTES - 1, Ordering::Relaxed);
        assert_eq!(verify(&budget, b"a", b"a").await, Ok(()));
        assert_eq!(
            budget.buffered.load(Ordering::Relaxed),
            MAX_BUFFERED_BYTES - 1
        );
    }

    #[tokio::test]
    async fn a_body_counts_until_its_last_reference_is_dropped() {
        let budget = BodyBudget::default();
        let (body, digest) = (
            RequestBody::Full(Bytes::from_static(b"abc")),
            digest_of(b"abc"),
        );
        let verified = budget.verify(body, &digest, BODY_TIMEOUT).await.unwrap();
        let RequestBody::Full(bytes) = verified else {
            panic!("the body is not complete");
        };
        let piece = bytes.slice(1..);
        drop(bytes);
        assert_eq!(budget.buffered.load(Ordering::Relaxed), 3);
        drop(piece);
        assert_eq!(budget.buffered.load(Ordering::Relaxed), 0);
    }
}

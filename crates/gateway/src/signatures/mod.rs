//! Verifies signed requests (RFC 9421): the key, the coverage and the time of the signature, that
//! it is not a replay, and that the body is the signed one. The rules are in
//! `skewbridge_http_signature`; this module adds the clock, the replay cache and the body.

mod buffered_body;
mod error;
pub mod keys;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::request::Parts;
use skewbridge_http_engine::body::RequestBody;
use skewbridge_http_signature::Request;
use skewbridge_http_signature::{
    ExpectedDigest, HasBody, ReplayCache, ReplayCheck, Verifier, VerifyError, Window, is_signed,
    remove_signatures,
};

use self::buffered_body::BodyBudget;
pub(crate) use self::error::SignatureError;
use self::keys::SignatureKeys;
use crate::authn::{Caller, SignedUser};
use crate::config;
use crate::metrics::signatures::SignatureMetrics;

/// The size of the replay cache, with up to about 100 bytes an entry. This allows for 3,000 requests
/// a second if signatures are valid for five and a half minutes, and a quarter of that for one
/// key. Signatures that are valid for one minute allow four times as many.
const MAX_REPLAY_ENTRIES: usize = 1 << 20;

/// Verifies signed requests.
#[derive(Debug)]
pub(crate) struct Signatures {
    verifier: Verifier,
    replays: Mutex<ReplayCache>,
    bodies: BodyBudget,
    body_timeout: Duration,
    started: Instant,
}

impl Signatures {
    /// `None` without `--http-signature-keys`.
    pub(crate) fn of(config: &config::Config, metrics: &SignatureMetrics) -> Option<Self> {
        let config_signatures = config.callers.signatures.as_ref()?;
        metrics.create_series(SignatureError::ALL.iter().map(|it| it.as_str()));
        let seconds = |it: Duration| u32::try_from(it.as_secs()).unwrap_or(u32::MAX);
        Some(Self {
            verifier: Verifier {
                authorities: config_signatures.authorities.clone(),
                window: Window {
                    max_age: seconds(config_signatures.max_age),
                    skew: seconds(config_signatures.clock_skew),
                    since: 0,
                },
            },
            replays: Mutex::new(ReplayCache::new(MAX_REPLAY_ENTRIES)),
            bodies: BodyBudget::default(),
            body_timeout: config.limits.request_timeout,
            started: Instant::now(),
        })
    }

    /// The user that signed the request, and the complete body, if both are valid.
    pub(crate) async fn verify(
        &self,
        keys: &SignatureKeys,
        caller: &Caller,
        head: &mut Parts,
        body: RequestBody,
        metrics: &SignatureMetrics,
    ) -> Result<(Arc<SignedUser>, RequestBody), SignatureError> {
        let result = async {
            let (user, digest) = self.verify_head(keys, caller, head, &body)?;
            let body = match digest {
                None => body,
                Some(digest) => {
                    let body = self.bodies.verify(body, &digest, self.body_timeout);
                    body.await?
                }
            };
            Ok((user, body))
        };
        let result = result.await;
        metrics.verified(result.as_ref().err().map(|it: &SignatureError| it.as_str()));
        remove_signatures(&mut head.headers);
        result
    }

    fn verify_head(
        &self,
        keys: &SignatureKeys,
        caller: &Caller,
        head: &Parts,
        body: &RequestBody,
    ) -> Result<(Arc<SignedUser>, Option<ExpectedDigest>), SignatureError> {
        // The body of a request that exceeds the limit is not read.
        if buffered_body::is_too_long(&head.headers) {
            return Err(SignatureError::TooLarge);
        }
        // Only upstream can determine the user of a token, which could be another user.
        if matches!(caller, Caller::Bearer) {
            return Err(SignatureError::OtherCredential);
        }
        let request = Request::of("https", &head.method, &head.uri, &head.headers)
            .ok_or(VerifyError::WrongAuthority)?;
        let has_body = if body.is_done() {
            HasBody::No
        } else {
            HasBody::Yes
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let key = |id: &str| keys.get(id).map(|it| &it.key);
        let verifier_now = self.verifier(now);
        let now = now.as_secs();
        let verified = verifier_now.verify(&request, has_body, now, key);
        let verified = verified.map_err(|error| match error {
            VerifyError::BeforeStart => {
                SignatureError::BeforeStart(retry_after_seconds(&verifier_now.window, now))
            }
            error => error.into(),
        })?;
        let user = keys.get(&verified.key_id).ok_or(VerifyError::UnknownKey)?;
        if matches!(caller, Caller::Certificate(other) if other.user.name != user.name) {
            return Err(SignatureError::OtherCredential);
        }
        let mut replays = self.replays.lock().unwrap_or_else(PoisonError::into_inner);
        match replays.insert(verified.fingerprint, verified.until, now) {
            ReplayCheck::New => Ok((user.clone(), verified.digest)),
            ReplayCheck::Replayed => Err(VerifyError::Replayed.into()),
            ReplayCheck::Full => Err(SignatureError::ReplayCacheFull),
            ReplayCheck::Evicted => Err(VerifyError::Expired.into()),
        }
    }

    /// The verifier for this time. The start of the process is computed back from now, so that it
    /// moves with a clock that is corrected later.
    fn verifier(&self, now: Duration) -> Verifier {
        let mut verifier = self.verifier.clone();
        let start = now.saturating_sub(self.started.elapsed());
        // A previous process may have accepted signatures until the end of that second.
        verifier.window.since = start.as_secs() + u64::from(start.subsec_nanos() > 0);
        verifier
    }
}

/// The seconds until a signature can be known not to be a replay.
fn retry_after_seconds(window: &Window, now: u64) -> u32 {
    let from = window.is_unknown_until().saturating_add(1);
    u32::try_from(from.saturating_sub(now)).map_or(u32::MAX, |seconds| seconds.max(1))
}

/// Whether the signature of a request has to be verified: the request is signed, and no front
/// proxy has asserted its user. The signature of a request with an asserted user was meant for
/// the front proxy. Signatures are not forwarded.
pub(crate) fn must_verify(caller: &Caller, head: &mut Parts) -> bool {
    if !is_signed(&head.headers) {
        return false;
    }
    let is_asserted = matches!(caller, Caller::Asserted(_));
    if is_asserted {
        remove_signatures(&mut head.headers);
    }
    !is_asserted
}

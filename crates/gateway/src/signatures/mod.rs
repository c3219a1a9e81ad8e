//! Callers who sign their requests (RFC 9421): whose key it is, whether the
//! signature is over this request, of now, and new, and whether the body is the one
//! that was signed. What is judged how is in `skewbridge_http_signature`; here it meets
//! clocks, memory and bodies.

mod buffered_body;
mod error;
pub mod keys;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::request::Parts;
use skewbridge_http_signature::Request;
use skewbridge_http_signature::{
    ExpectedDigest, HasBody, ReplayCache, ReplayCheck, Verifier, VerifyError, Window, is_signed,
    remove_signatures,
};

use self::buffered_body::Room;
pub(crate) use self::error::Rejected;
use self::keys::SignatureKeys;
use crate::authn::{Caller, SignedUser};
use crate::config;
use crate::metrics::signatures::SignatureMetrics;
use skewbridge_http_engine::body::RequestBody;

/// Accepted signatures that are remembered: about 100 bytes each at worst. That is
/// 3,000 requests a second, if signatures are good for five minutes and a half; of
/// one key a quarter. Whoever signs for a minute has four times that.
const MAX_REMEMBERED: usize = 1 << 20;

/// Judges signatures.
#[derive(Debug)]
pub(crate) struct Signatures {
    verifier: Verifier,
    replays: Mutex<ReplayCache>,
    room: Room,
    patience: Duration,
    started: Instant,
}

impl Signatures {
    /// Where signatures are to be judged.
    pub(crate) fn of(config: &config::Config, metrics: &SignatureMetrics) -> Option<Self> {
        let told = config.callers.signatures.as_ref()?;
        metrics.will_judge(Rejected::ALL.iter().map(|it| it.as_str()));
        let seconds = |it: Duration| u32::try_from(it.as_secs()).unwrap_or(u32::MAX);
        Some(Self {
            verifier: Verifier {
                authorities: told.authorities.clone(),
                window: Window {
                    max_age: seconds(told.max_age),
                    skew: seconds(told.clock_skew),
                    since: 0,
                },
            },
            replays: Mutex::new(ReplayCache::new(MAX_REMEMBERED)),
            room: Room::default(),
            patience: config.limits.request_timeout,
            started: Instant::now(),
        })
    }

    /// Who signed it, and its body when all of it is here and is what was signed.
    pub(crate) async fn judge(
        &self,
        keys: &SignatureKeys,
        caller: &Caller,
        head: &mut Parts,
        body: RequestBody,
        metrics: &SignatureMetrics,
    ) -> Result<(Arc<SignedUser>, RequestBody), Rejected> {
        let judged = async {
            let (user, digest) = self.recognise(keys, caller, head, &body)?;
            let body = match digest {
                None => body,
                Some(digest) => self.room.whole(body, &digest, self.patience).await?,
            };
            Ok((user, body))
        };
        let judged = judged.await;
        metrics.judged(judged.as_ref().err().map(|it: &Rejected| it.as_str()));
        remove_signatures(&mut head.headers);
        judged
    }

    fn recognise(
        &self,
        keys: &SignatureKeys,
        caller: &Caller,
        head: &Parts,
        body: &RequestBody,
    ) -> Result<(Arc<SignedUser>, Option<ExpectedDigest>), Rejected> {
        // Nothing is read that is too long anyway.
        if buffered_body::is_too_long(&head.headers) {
            return Err(Rejected::TooLarge);
        }
        // Who a token is, only upstream can tell: it might be somebody else.
        if matches!(caller, Caller::Bearer) {
            return Err(Rejected::OtherCredential);
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
        let judge = self.verifier(now);
        let now = now.as_secs();
        let verified = judge.verify(&request, has_body, now, key);
        let verified = verified.map_err(|refusal| match refusal {
            VerifyError::BeforeStart => Rejected::BeforeStart(wait(&judge.window, now)),
            refusal => refusal.into(),
        })?;
        let user = keys.get(&verified.key_id).ok_or(VerifyError::UnknownKey)?;
        if matches!(caller, Caller::Certificate(other) if other.name != user.name) {
            return Err(Rejected::OtherCredential);
        }
        let mut replays = self.replays.lock().unwrap_or_else(PoisonError::into_inner);
        match replays.insert(verified.fingerprint, verified.until, now) {
            ReplayCheck::New => Ok((user.clone(), verified.digest)),
            ReplayCheck::Replayed => Err(VerifyError::Replayed.into()),
            ReplayCheck::Full => Err(Rejected::NoMemory),
            ReplayCheck::Evicted => Err(VerifyError::Expired.into()),
        }
    }

    /// The start is counted back from now: a clock that is set right later takes it
    /// along.
    fn verifier(&self, now: Duration) -> Verifier {
        let mut verifier = self.verifier.clone();
        let start = now.saturating_sub(self.started.elapsed());
        // Whoever was here before may have used all of the second.
        verifier.window.since = start.as_secs() + u64::from(start.subsec_nanos() > 0);
        verifier
    }
}

/// After how many seconds a signature of then is known to be new.
fn wait(window: &Window, now: u64) -> u32 {
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
    let spoken_for = matches!(caller, Caller::Peer(_));
    if spoken_for {
        remove_signatures(&mut head.headers);
    }
    !spoken_for
}

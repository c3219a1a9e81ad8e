//! Verifies the signature of a request.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::base::signature_base;
use super::component::{Component, FieldForm};
use super::{CONTENT_DIGEST, ExpectedDigest, Fingerprint, SIGNATURE, SIGNATURE_INPUT};
use super::{SignatureInput, VerifyingKey};
use crate::structured::{BareItem, Dictionary, Item, ListEntry, parse_dictionary};
use crate::{Error, Request};

/// The longest signature header. Parsing takes time in proportion to the length, and the client
/// is not authenticated yet.
const MAX_FIELD_BYTES: usize = 16 * 1024;

/// The requirements on a signature.
#[derive(Debug, Clone)]
pub struct Verifier {
    /// The authorities that signatures may be for, as [`Request::normalized_authority`] returns
    /// them.
    pub authorities: Vec<String>,
    /// When signatures may have been created.
    pub window: Window,
}

/// When a signature may have been created.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Seconds for which a signature is valid.
    pub max_age: u32,
    /// Seconds by which clocks may differ.
    pub skew: u32,
    /// The time from which on accepted signatures are remembered, in seconds since 1970. A
    /// signature that was created before, or later by less than the skew of clocks, may have been
    /// accepted by a previous process: it is unknown whether it is new.
    pub since: u64,
}

/// A valid signature. Whether it is a replay is still to be checked.
#[derive(Debug)]
pub struct Verified {
    /// The identifier of its key.
    pub key_id: String,
    /// Identifies the signature in the replay cache.
    pub fingerprint: Fingerprint,
    /// The time until which the signature has to be remembered, in seconds since 1970.
    pub until: u64,
    /// The digests that the body must have; `None` if there is no body.
    pub digest: Option<ExpectedDigest>,
}

/// Why a signature is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyError {
    /// The headers cannot be parsed, or lack required parameters.
    Malformed,
    /// No key has this identifier.
    UnknownKey,
    /// Several signatures are of known keys.
    Ambiguous,
    /// A required component is not covered.
    NotCovered,
    /// The signature is for another server.
    WrongAuthority,
    /// The signature has expired.
    Expired,
    /// The signature was created in the future.
    NotYetValid,
    /// The signature may have been created before this verifier started, so that it is unknown
    /// whether it is a replay.
    BeforeStart,
    /// The signature does not match the request or the key.
    Mismatch,
    /// The signature has been used before.
    Replayed,
    /// The body does not match the digest.
    WrongDigest,
}

impl VerifyError {
    /// The value of metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown-key",
            Self::Ambiguous => "ambiguous",
            Self::NotCovered => "not-covered",
            Self::WrongAuthority => "wrong-authority",
            Self::Expired => "late",
            Self::NotYetValid => "early",
            Self::BeforeStart => "before-start",
            Self::Mismatch => "mismatch",
            Self::Replayed => "replayed",
            Self::WrongDigest => "wrong-digest",
        }
    }

    /// The message for clients: the general reason, and nothing that helps a forger.
    pub fn message(self) -> &'static str {
        match self {
            Self::Malformed => {
                "the request's signature cannot be read, or has no created or keyid parameter"
            }
            Self::UnknownKey => "the request is signed with a key that is not known here",
            Self::Ambiguous => "the request has several signatures of keys that are known here",
            Self::NotCovered => {
                "the request's signature does not cover all required components: \
                 @method, @authority, @path, @query, content-digest, content-type and \
                 content-encoding of a body, and impersonation headers"
            }
            Self::WrongAuthority => "the request is signed for another server",
            Self::Expired => "the request's signature has expired",
            Self::NotYetValid => "the request's signature was made in the future: clocks differ",
            Self::BeforeStart => {
                "the request was signed before this server started, or so shortly after that \
                 clock differences matter: it has to be signed again"
            }
            Self::Mismatch => "the request's signature does not match the request and its key",
            Self::Replayed => "the request's signature has been used before",
            Self::WrongDigest => "the request's body does not match its signed digest",
        }
    }
}

/// Whether a request has signature headers.
pub fn is_signed(headers: &HeaderMap) -> bool {
    headers.contains_key(SIGNATURE) || headers.contains_key(SIGNATURE_INPUT)
}

/// Removes signatures: they are not meant for the next server.
pub fn remove_signatures(headers: &mut HeaderMap) {
    headers.remove(SIGNATURE);
    headers.remove(SIGNATURE_INPUT);
}

/// Whether a header must be covered if it is present, because it changes the meaning of a
/// request: impersonation headers. With a body, also `Content-Type` and `Content-Encoding`, which
/// determine the meaning of the signed bytes.
pub(super) fn must_be_covered(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate")
}

struct SignatureCandidate {
    input: SignatureInput,
    key_id: String,
    signature: Vec<u8>,
}

impl Verifier {
    /// Verifies that a request is signed by one of these keys at this time (seconds since 1970).
    pub fn verify<'k>(
        &self,
        request: &Request<'_>,
        body: HasBody,
        now: u64,
        key: impl Fn(&str) -> Option<&'k VerifyingKey>,
    ) -> Result<Verified, VerifyError> {
        let mut known = candidates(request.headers)?
            .into_iter()
            .filter_map(|candidates| Some((key(&candidates.key_id)?, candidates)));
        let (key, candidates) = known.next().ok_or(VerifyError::UnknownKey)?;
        if known.next().is_some() {
            return Err(VerifyError::Ambiguous);
        }
        let SignatureCandidate {
            input,
            key_id,
            signature,
        } = candidates;
        // RFC 9421, 3.2: the key determines the algorithm; a different `alg` is refused.
        let named = input.algorithm.as_deref();
        if named.is_some_and(|it| it != key.algorithm().as_str()) {
            return Err(VerifyError::Mismatch);
        }
        covers(&input, request, body)?;
        if !self.authorities.contains(&request.normalized_authority()) {
            return Err(VerifyError::WrongAuthority);
        }
        let until = self.window.check(&input, now)?;
        let base = signature_base(request, &input).map_err(|_| VerifyError::Mismatch)?;
        if !key.verify(base.as_bytes(), &signature) {
            return Err(VerifyError::Mismatch);
        }
        let digest = ExpectedDigest::of(request.headers).map_err(|_| VerifyError::Malformed)?;
        Ok(Verified {
            // For each ECDSA signature there is a second valid one: the signed text is
            // remembered, not the signature.
            fingerprint: match &input.nonce {
                Some(nonce) => Fingerprint::of_nonce(&key_id, nonce),
                None => Fingerprint::of_base(&key_id, &base),
            },
            key_id,
            until,
            digest: digest.filter(|_| input.covers_digest()),
        })
    }
}

/// Whether a request has a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HasBody {
    /// The request has a body.
    Yes,
    /// The request has no body.
    No,
}

fn candidates(headers: &HeaderMap) -> Result<Vec<SignatureCandidate>, VerifyError> {
    let inputs = dictionary(headers, SIGNATURE_INPUT)?;
    let signatures = dictionary(headers, SIGNATURE)?;
    let mut all = Vec::new();
    for (label, signature) in &signatures {
        let ListEntry::Item(Item {
            bare_item: BareItem::ByteSequence(signature),
            ..
        }) = signature
        else {
            return Err(VerifyError::Malformed);
        };
        let Some(ListEntry::InnerList(input)) = inputs.get(label) else {
            return Err(VerifyError::Malformed);
        };
        let key_id = match input.params.get("keyid") {
            Some(BareItem::String(key_id)) => key_id.as_str().to_owned(),
            // It may be for another verifier.
            _ => continue,
        };
        let input =
            SignatureInput::from_list(input.clone().into()).map_err(|error| match error {
                Error::Component { .. } => VerifyError::NotCovered,
                _ => VerifyError::Malformed,
            })?;
        all.push(SignatureCandidate {
            input,
            key_id,
            signature: signature.clone(),
        });
    }
    if all.is_empty() {
        return Err(VerifyError::Malformed);
    }
    Ok(all)
}

fn dictionary(headers: &HeaderMap, name: HeaderName) -> Result<Dictionary, VerifyError> {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let text = lines.join(&b", "[..]);
    if text.len() > MAX_FIELD_BYTES {
        return Err(VerifyError::Malformed);
    }
    parse_dictionary(&text).map_err(|_| VerifyError::Malformed)
}

impl SignatureInput {
    /// Whether all of a header is covered.
    fn covers_field(&self, name: &HeaderName) -> bool {
        use FieldForm::{Bytes, Joined, Strict};
        [Joined, Strict, Bytes]
            .into_iter()
            .any(|form| self.covers(&Component::Field(name.clone(), form)))
    }

    fn covers_digest(&self) -> bool {
        self.covers_field(&CONTENT_DIGEST)
    }
}

/// Checks that all components that determine the meaning of a request are covered.
fn covers(input: &SignatureInput, request: &Request<'_>, body: HasBody) -> Result<(), VerifyError> {
    use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
    let covered = |component| input.covers(&component);
    let whole = covered(Component::TargetUri);
    let authority = whole || covered(Component::Authority);
    // A query that was added on the way is not covered.
    let query = request.query.is_none() || covered(Component::Query);
    let target = whole || (covered(Component::Path) && query);
    let headers = request.headers.keys().all(|name| {
        let describes_body = *name == CONTENT_TYPE || *name == CONTENT_ENCODING;
        let matters = must_be_covered(name) || (describes_body && body == HasBody::Yes);
        !matters || input.covers_field(name)
    });
    let digest = body == HasBody::No || input.covers_digest();
    if covered(Component::Method) && authority && target && headers && digest {
        Ok(())
    } else {
        Err(VerifyError::NotCovered)
    }
}

impl Window {
    /// Signatures that were created at this time (seconds since 1970) or before may have been
    /// accepted before this process started.
    pub fn is_unknown_until(&self) -> u64 {
        self.since.saturating_add(self.skew.into())
    }

    /// Until when a signature has to be remembered, if it is valid now.
    fn check(&self, input: &SignatureInput, now: u64) -> Result<u64, VerifyError> {
        let second = |at: Option<i64>| at.and_then(|it| u64::try_from(it).ok());
        let created = second(input.created).ok_or(VerifyError::Malformed)?;
        let mut end = created.saturating_add(self.max_age.into());
        if let Some(expires) = input.expires {
            let expires = u64::try_from(expires).map_err(|_| VerifyError::Malformed)?;
            end = end.min(expires);
        }
        let skew = u64::from(self.skew);
        let until = end.saturating_add(skew);
        if created > now.saturating_add(skew) {
            Err(VerifyError::NotYetValid)
        } else if now > until {
            Err(VerifyError::Expired)
        } else if created <= self.is_unknown_until() {
            Err(VerifyError::BeforeStart)
        } else {
            Ok(until)
        }
    }
}

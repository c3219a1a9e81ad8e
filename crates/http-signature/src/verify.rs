//! Judging the signature of a request.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::base::signature_base;
use super::component::{Component, FieldForm};
use super::{CONTENT_DIGEST, ExpectedDigest, Fingerprint, SIGNATURE, SIGNATURE_INPUT};
use super::{SignatureInput, VerifyingKey};
use crate::structured::{BareItem, Dictionary, Item, ListEntry, parse_dictionary};
use crate::{Error, Request};

/// Longer than the signature headers of anybody; parsing takes a time that goes
/// with their length, and nobody has proven anything by then.
const MAX_FIELD: usize = 16 * 1024;

/// What a request has to be like.
#[derive(Debug, Clone)]
pub struct Verifier {
    /// For whom signatures may have been made: normalised, as
    /// [`Request::normalized_authority`] gives them.
    pub authorities: Vec<String>,
    /// When they may have been made.
    pub window: Window,
}

/// When a signature may have been made.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Seconds for which it is good.
    pub max_age: u32,
    /// Seconds by which clocks may differ.
    pub skew: u32,
    /// Seconds since 1970: from when on what is accepted is remembered. Who verified
    /// before accepted what was made by then, or later by the skew of clocks: that is
    /// not known to be new.
    pub since: u64,
}

/// A signature that is good, unless it has been seen before.
#[derive(Debug)]
pub struct Verified {
    /// Whose it is.
    pub key_id: String,
    /// What to remember it by.
    pub fingerprint: Fingerprint,
    /// Seconds since 1970: until when it has to be remembered.
    pub until: u64,
    /// What the body has to be; none: there is no body.
    pub digest: Option<ExpectedDigest>,
}

/// Why a request is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The headers have no reading, or not the parameters that are needed.
    Malformed,
    /// Nobody here has a key of this name.
    UnknownKey,
    /// Several signatures could be meant.
    Ambiguous,
    /// A part that matters is not covered.
    NotCovered,
    /// It was made for somebody else.
    WrongAuthority,
    /// It has run out.
    Late,
    /// It was made in the future.
    Early,
    /// It is not known whether it has been seen: it was made before this verifier
    /// started, as far as clocks can tell.
    BeforeStart,
    /// It is not over this request, or not by this key.
    Mismatch,
    /// It has been seen before.
    Replayed,
    /// The body is another.
    WrongDigest,
}

impl Refusal {
    /// For metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown-key",
            Self::Ambiguous => "ambiguous",
            Self::NotCovered => "not-covered",
            Self::WrongAuthority => "wrong-authority",
            Self::Late => "late",
            Self::Early => "early",
            Self::BeforeStart => "before-start",
            Self::Mismatch => "mismatch",
            Self::Replayed => "replayed",
            Self::WrongDigest => "wrong-digest",
        }
    }

    /// For people: what is wrong in general, and nothing that would help a forger.
    pub fn message(self) -> &'static str {
        match self {
            Self::Malformed => {
                "the request's signature cannot be read, or has no created or keyid parameter"
            }
            Self::UnknownKey => "the request is signed with a key that is not known here",
            Self::Ambiguous => "the request has several signatures of keys that are known here",
            Self::NotCovered => {
                "the request's signature does not cover all that it has to: \
                 @method, @authority, @path, @query, content-digest, content-type and \
                 content-encoding of a body, and impersonation headers"
            }
            Self::WrongAuthority => "the request is signed for another server",
            Self::Late => "the request's signature has run out",
            Self::Early => "the request's signature was made in the future: clocks differ",
            Self::BeforeStart => {
                "the request was signed before this server started, or too shortly after to \
                 tell by clocks: it has to be signed again"
            }
            Self::Mismatch => "the request's signature does not match the request and its key",
            Self::Replayed => "the request's signature has been used before",
            Self::WrongDigest => "the request's body does not match its signed digest",
        }
    }
}

/// Whether a request says that it is signed.
pub fn is_signed(headers: &HeaderMap) -> bool {
    headers.contains_key(SIGNATURE) || headers.contains_key(SIGNATURE_INPUT)
}

/// Removes signatures: whoever comes next was not meant.
pub fn remove_signatures(headers: &mut HeaderMap) {
    headers.remove(SIGNATURE);
    headers.remove(SIGNATURE_INPUT);
}

/// Whether a header changes what a request means so much that it is covered or
/// not there: whom it acts as. With a body, also `Content-Type` and
/// `Content-Encoding`, which say what the signed bytes are.
pub(super) fn must_be_covered(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate")
}

struct Offered {
    input: SignatureInput,
    key_id: String,
    signature: Vec<u8>,
}

impl Verifier {
    /// Whether a request is signed by one of these keys, now (seconds since 1970).
    pub fn verify<'k>(
        &self,
        request: &Request<'_>,
        body: HasBody,
        now: u64,
        key: impl Fn(&str) -> Option<&'k VerifyingKey>,
    ) -> Result<Verified, Refusal> {
        let mut known = offered(request.headers)?
            .into_iter()
            .filter_map(|offered| Some((key(&offered.key_id)?, offered)));
        let (key, offered) = known.next().ok_or(Refusal::UnknownKey)?;
        if known.next().is_some() {
            return Err(Refusal::Ambiguous);
        }
        let Offered {
            input,
            key_id,
            signature,
        } = offered;
        // RFC 9421, 3.2: the key decides; who says otherwise is refused.
        let named = input.algorithm.as_deref();
        if named.is_some_and(|it| it != key.algorithm().as_str()) {
            return Err(Refusal::Mismatch);
        }
        covers(&input, request, body)?;
        if !self.authorities.contains(&request.normalized_authority()) {
            return Err(Refusal::WrongAuthority);
        }
        let until = self.window.check(&input, now)?;
        let base = signature_base(request, &input).map_err(|_| Refusal::Mismatch)?;
        if !key.verify(base.as_bytes(), &signature) {
            return Err(Refusal::Mismatch);
        }
        let digest = ExpectedDigest::of(request.headers).map_err(|_| Refusal::Malformed)?;
        Ok(Verified {
            // An ECDSA signature has a twin that is as good: what is remembered is
            // what was signed, not the signature.
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
    /// It has.
    Yes,
    /// It has none.
    No,
}

fn offered(headers: &HeaderMap) -> Result<Vec<Offered>, Refusal> {
    let inputs = dictionary(headers, SIGNATURE_INPUT)?;
    let signatures = dictionary(headers, SIGNATURE)?;
    let mut all = Vec::new();
    for (label, signature) in &signatures {
        let ListEntry::Item(Item {
            bare_item: BareItem::ByteSequence(signature),
            ..
        }) = signature
        else {
            return Err(Refusal::Malformed);
        };
        let Some(ListEntry::InnerList(input)) = inputs.get(label) else {
            return Err(Refusal::Malformed);
        };
        let key_id = match input.params.get("keyid") {
            Some(BareItem::String(key_id)) => key_id.as_str().to_owned(),
            // Somebody else's business, perhaps.
            _ => continue,
        };
        let input =
            SignatureInput::from_list(input.clone().into()).map_err(|error| match error {
                Error::Component { .. } => Refusal::NotCovered,
                _ => Refusal::Malformed,
            })?;
        all.push(Offered {
            input,
            key_id,
            signature: signature.clone(),
        });
    }
    if all.is_empty() {
        return Err(Refusal::Malformed);
    }
    Ok(all)
}

fn dictionary(headers: &HeaderMap, name: HeaderName) -> Result<Dictionary, Refusal> {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let text = lines.join(&b", "[..]);
    if text.len() > MAX_FIELD {
        return Err(Refusal::Malformed);
    }
    parse_dictionary(&text).map_err(|_| Refusal::Malformed)
}

impl SignatureInput {
    /// Whether a header is covered as a whole.
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

/// Whether all is covered that makes a request what it is.
fn covers(input: &SignatureInput, request: &Request<'_>, body: HasBody) -> Result<(), Refusal> {
    use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
    let covered = |component| input.covers(&component);
    let whole = covered(Component::TargetUri);
    let authority = whole || covered(Component::Authority);
    // A query that is added is one that is not covered.
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
        Err(Refusal::NotCovered)
    }
}

impl Window {
    /// Seconds since 1970: what was made then or before may have been accepted before
    /// anything was remembered.
    pub fn is_unknown_until(&self) -> u64 {
        self.since.saturating_add(self.skew.into())
    }

    /// Until when a signature has to be remembered, if it is good now.
    fn check(&self, input: &SignatureInput, now: u64) -> Result<u64, Refusal> {
        let second = |at: Option<i64>| at.and_then(|it| u64::try_from(it).ok());
        let created = second(input.created).ok_or(Refusal::Malformed)?;
        let mut end = created.saturating_add(self.max_age.into());
        if let Some(expires) = input.expires {
            let expires = u64::try_from(expires).map_err(|_| Refusal::Malformed)?;
            end = end.min(expires);
        }
        let skew = u64::from(self.skew);
        let until = end.saturating_add(skew);
        if created > now.saturating_add(skew) {
            Err(Refusal::Early)
        } else if now > until {
            Err(Refusal::Late)
        } else if created <= self.is_unknown_until() {
            Err(Refusal::BeforeStart)
        } else {
            Ok(until)
        }
    }
}

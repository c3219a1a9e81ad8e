//! Signing a request.

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{InnerList, Integer, KeyRef, key_ref};

use super::base::signature_base;
use super::component::{Identifier, string};
use super::verify::must_be_covered;
use super::{CONTENT_DIGEST, DigestAlgorithm, SIGNATURE, SIGNATURE_INPUT};
use super::{SignatureInput, SigningKey};
use crate::structured::{BareItem, ListEntry, parse_dictionary, serialize};
use crate::{Error, Request};

/// The label under which signatures stand; it has no meaning (RFC 9421, 7.2.5).
const LABEL: &KeyRef = key_ref("sig1");

/// Signs requests with one key.
#[derive(Debug)]
pub struct Signer {
    key: SigningKey,
    key_id: String,
    /// How long a signature is good, in seconds.
    lifetime: Option<u32>,
    tag: Option<String>,
    digest: DigestAlgorithm,
    also: Vec<HeaderName>,
}

/// A request's body, as far as a signature is concerned.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// There is none.
    None,
    /// All of it.
    Bytes(&'a [u8]),
    /// Its digest is in `Content-Digest` already.
    Digested,
}

/// Long enough for a request on its way, too short to be of use to a thief: what
/// has run out need not be remembered by who verifies.
const LIFETIME: u32 = 60;

impl Signer {
    /// Signs with this key, under this name. What is covered: method, authority,
    /// path and query, the body by its digest, and of the headers those that change
    /// what a request means to Kubernetes.
    pub fn new(key: SigningKey, key_id: impl Into<String>) -> Result<Self, Error> {
        let key_id = key_id.into();
        string(&key_id)?;
        Ok(Self {
            key,
            key_id,
            lifetime: Some(LIFETIME),
            tag: None,
            digest: DigestAlgorithm::Sha256,
            also: Vec::new(),
        })
    }

    /// How long signatures are good, in seconds; none: as long as who verifies
    /// allows.
    #[must_use]
    pub fn lifetime(self, seconds: Option<u32>) -> Self {
        Self {
            lifetime: seconds,
            ..self
        }
    }

    /// What signatures are for.
    pub fn tag(self, tag: impl Into<String>) -> Result<Self, Error> {
        let tag = tag.into();
        string(&tag)?;
        Ok(Self {
            tag: Some(tag),
            ..self
        })
    }

    /// How bodies are digested.
    #[must_use]
    pub fn digest(self, digest: DigestAlgorithm) -> Self {
        Self { digest, ..self }
    }

    /// Also covers these headers, where a request has them.
    #[must_use]
    pub fn also_cover(self, headers: Vec<HeaderName>) -> Self {
        Self {
            also: headers,
            ..self
        }
    }

    /// The headers to set, each in place of what the request has under its name.
    /// `created` is in seconds since 1970; the nonce is never used again.
    pub fn sign(
        &self,
        request: &Request<'_>,
        content: Content<'_>,
        created: u64,
        nonce: &str,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
        let mut to_set = Vec::with_capacity(3);
        let mut headers = request.headers.clone();
        match content {
            Content::None => {}
            Content::Bytes(body) => {
                let digest = self.digest.header(body);
                headers.insert(CONTENT_DIGEST, digest.clone());
                to_set.push((CONTENT_DIGEST, digest));
            }
            Content::Digested if headers.contains_key(CONTENT_DIGEST) => {}
            Content::Digested => return Err(Error::Request("it has no Content-Digest")),
        }
        let request = Request {
            headers: &headers,
            ..*request
        };
        let input = SignatureInput::from_list(self.input(&headers, created, nonce)?.into())?;
        let base = signature_base(&request, &input)?;
        let signature = self.key.sign(base.as_bytes())?;
        let input = InnerList::from(input.written().clone());
        to_set.push(joined(&headers, SIGNATURE_INPUT, input.into())?);
        to_set.push(joined(&headers, SIGNATURE, signature.into())?);
        Ok(to_set)
    }

    fn input(&self, headers: &HeaderMap, created: u64, nonce: &str) -> Result<InnerList, Error> {
        let mut covered = Vec::new();
        for name in ["@method", "@authority", "@path", "@query"] {
            covered.push(Identifier::named(name)?);
        }
        let usual = [CONTENT_DIGEST, CONTENT_TYPE, CONTENT_ENCODING];
        let present = headers.keys().filter(|name| {
            usual.contains(name) || must_be_covered(name) || self.also.contains(name)
        });
        for name in present {
            covered.push(Identifier::field(name)?);
        }
        let items = covered.iter().map(|it| it.item().clone()).collect();
        let mut list = InnerList::new(items);
        let mut set = |name: &KeyRef, value: BareItem| list.params.insert(name.to_owned(), value);
        set(const { key_ref("created") }, integer(created)?);
        if let Some(lifetime) = self.lifetime {
            set(
                const { key_ref("expires") },
                integer(created.saturating_add(lifetime.into()))?,
            );
        }
        set(const { key_ref("nonce") }, string(nonce)?);
        set(const { key_ref("keyid") }, string(&self.key_id)?);
        set(
            const { key_ref("alg") },
            string(self.key.algorithm().as_str())?,
        );
        if let Some(tag) = &self.tag {
            set(const { key_ref("tag") }, string(tag)?);
        }
        Ok(list)
    }
}

fn integer(number: u64) -> Result<BareItem, Error> {
    let integer = Integer::try_from(number);
    let integer =
        integer.map_err(|_| Error::Unwritable("an integer of more than fifteen digits"))?;
    Ok(integer.into())
}

/// The header with one member more. Other signatures stay as they are.
fn joined(
    headers: &HeaderMap,
    name: HeaderName,
    member: ListEntry,
) -> Result<(HeaderName, HeaderValue), Error> {
    let lines: Vec<_> = headers
        .get_all(&name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let mut dictionary = parse_dictionary(&lines.join(&b", "[..]))
        .map_err(|_| Error::Request("it has a signature already that cannot be read"))?;
    if dictionary.get(LABEL).is_some() {
        return Err(Error::Request("it has a signature already"));
    }
    dictionary.insert(LABEL.to_owned(), member);
    let value = HeaderValue::try_from(serialize(&dictionary));
    let value = value.map_err(|_| Error::Request("its signature is no header"))?;
    Ok((name, value))
}

/// A nonce that nobody has used: 128 random bits.
pub fn random_nonce() -> Result<String, Error> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).map_err(|_| Error::Signing)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

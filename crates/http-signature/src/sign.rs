//! Signs requests.

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

/// The label of signatures that are made here; it has no meaning (RFC 9421, 7.2.5).
const LABEL: &KeyRef = key_ref("sig1");

/// Signs requests with one key.
#[derive(Debug)]
pub struct Signer {
    key: SigningKey,
    key_id: String,
    /// How long a signature is valid, in seconds.
    lifetime: Option<u32>,
    tag: Option<String>,
    digest: DigestAlgorithm,
    extra_headers: Vec<HeaderName>,
}

/// The body of a request, as the signature covers it.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// There is no body.
    None,
    /// The whole body.
    Bytes(&'a [u8]),
    /// The digest of the body is in `Content-Digest` already.
    Digested,
}

/// Long enough for a request to arrive, too short to be of use to an attacker. A verifier need
/// not remember expired signatures.
const DEFAULT_LIFETIME_SECONDS: u32 = 60;

impl Signer {
    /// Signs with this key and its identifier. Signatures cover method, authority, path, query,
    /// the digest of the body, and the headers that change the meaning of a request to
    /// Kubernetes.
    pub fn new(key: SigningKey, key_id: impl Into<String>) -> Result<Self, Error> {
        let key_id = key_id.into();
        string(&key_id)?;
        Ok(Self {
            key,
            key_id,
            lifetime: Some(DEFAULT_LIFETIME_SECONDS),
            tag: None,
            digest: DigestAlgorithm::Sha256,
            extra_headers: Vec::new(),
        })
    }

    /// How long signatures are valid, in seconds. `None` leaves that to the verifier.
    #[must_use]
    pub fn lifetime(self, seconds: Option<u32>) -> Self {
        Self {
            lifetime: seconds,
            ..self
        }
    }

    /// The application that signatures are for.
    pub fn tag(self, tag: impl Into<String>) -> Result<Self, Error> {
        let tag = tag.into();
        string(&tag)?;
        Ok(Self {
            tag: Some(tag),
            ..self
        })
    }

    /// The digest algorithm for bodies.
    #[must_use]
    pub fn digest(self, digest: DigestAlgorithm) -> Self {
        Self { digest, ..self }
    }

    /// Also covers these headers, if a request has them.
    #[must_use]
    pub fn also_cover(self, headers: Vec<HeaderName>) -> Self {
        Self {
            extra_headers: headers,
            ..self
        }
    }

    /// The headers to set. Each replaces the header of the same name. `created` is in seconds
    /// since 1970; the nonce must be unique.
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
        let default = [CONTENT_DIGEST, CONTENT_TYPE, CONTENT_ENCODING];
        let present = headers.keys().filter(|name| {
            default.contains(name) || must_be_covered(name) || self.extra_headers.contains(name)
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
        integer.map_err(|_| Error::NotSerializable("an integer of more than fifteen digits"))?;
    Ok(integer.into())
}

/// The header with a further member. Existing signatures are kept.
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
        .map_err(|_| Error::Request("it has a signature already, which cannot be parsed"))?;
    if dictionary.get(LABEL).is_some() {
        return Err(Error::Request("it has a signature already"));
    }
    dictionary.insert(LABEL.to_owned(), member);
    let value = HeaderValue::try_from(serialize(&dictionary));
    let value = value.map_err(|_| Error::Request("its signature is not a valid header value"))?;
    Ok((name, value))
}

/// A unique nonce: 128 random bits.
pub fn random_nonce() -> Result<String, Error> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).map_err(|_| Error::Signing)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

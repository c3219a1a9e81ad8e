//! Signs a request with a credential.

use aws_lc_rs::hmac;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use skewbridge_k8s_api::time::iso8601_basic;
use zeroize::Zeroizing;

use super::canonical::{PathStyle, canonical_request, hex, hex_digest};
use crate::{Error, Request, Secret};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
const X_AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");
const X_AMZ_SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const X_AMZ_CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// The credential of the signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The identifier of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: Secret,
    /// The token of a temporary credential.
    pub session_token: Option<Secret>,
    /// When a temporary credential expires, in seconds since 1970.
    pub expires: Option<u64>,
}

/// Signs requests for one service in one region.
#[derive(Debug, Clone)]
pub struct Signer {
    /// Such as `eu-west-1`.
    pub region: String,
    /// Such as `execute-api`.
    pub service: String,
    /// Which headers are signed, besides `host` and `x-amz-…`.
    pub headers: SignedHeaders,
    /// How the path is signed.
    pub path: PathStyle,
    /// Whether the hash of the body is sent as a header too, as S3 requires: a verifier can then
    /// check the head before the body has arrived.
    pub content_header: bool,
}

/// Which headers are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedHeaders {
    /// Headers that describe the body, impersonation headers, and these.
    DefaultAnd(Vec<HeaderName>),
    /// All headers.
    All,
}

/// The body of a request, as the signature covers it.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// The whole body; empty if there is none.
    Bytes(&'a [u8]),
    /// Not signed: too long to be buffered, or a stream.
    Unsigned,
}

impl Signer {
    /// The default settings for a region and a service.
    pub fn new(region: impl Into<String>, service: impl Into<String>) -> Self {
        let service = service.into();
        let s3 = service == "s3";
        Self {
            region: region.into(),
            headers: SignedHeaders::DefaultAnd(Vec::new()),
            path: if s3 {
                PathStyle::S3
            } else {
                PathStyle::Standard
            },
            content_header: true,
            service,
        }
    }

    /// The headers to set. Each replaces the header of the same name. `now` is in seconds since
    /// 1970.
    pub fn sign(
        &self,
        request: &Request<'_>,
        payload: Payload<'_>,
        credentials: &Credentials,
        now: u64,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
        let at = iso8601_basic(now);
        let (hash, content_header) = match payload {
            Payload::Bytes(body) => (hex_digest(body), self.content_header),
            Payload::Unsigned => (UNSIGNED_PAYLOAD.to_owned(), true),
        };
        let mut to_set = vec![(X_AMZ_DATE, value(at.as_bytes())?)];
        if let Some(token) = &credentials.session_token {
            let mut token = value(token.expose())?;
            token.set_sensitive(true);
            to_set.push((X_AMZ_SECURITY_TOKEN, token));
        }
        if content_header {
            to_set.push((X_AMZ_CONTENT_SHA256, value(hash.as_bytes())?));
        }
        let mut headers = request.headers.clone();
        for (name, value) in &to_set {
            headers.insert(name, value.clone());
        }
        let request = Request {
            headers: &headers,
            ..*request
        };
        let canonical = canonical_request(&request, self.path, |name| self.is_signed(name), &hash);
        let scope = format!("{}/{}/{}/aws4_request", &at[..8], self.region, self.service);
        let signature = signature(&credentials.secret_access_key, &at, &scope, &canonical.text)?;
        let authorization = format!(
            "{ALGORITHM} Credential={}/{scope}, SignedHeaders={}, Signature={signature}",
            credentials.access_key_id, canonical.signed_headers
        );
        let mut authorization = value(authorization.as_bytes())?;
        authorization.set_sensitive(true);
        to_set.push((AUTHORIZATION, authorization));
        Ok(to_set)
    }

    fn is_signed(&self, name: &HeaderName) -> bool {
        if *name == AUTHORIZATION {
            return false;
        }
        match &self.headers {
            SignedHeaders::All => true,
            SignedHeaders::DefaultAnd(also) => {
                *name == CONTENT_TYPE
                    || *name == CONTENT_ENCODING
                    || name.as_str().starts_with("x-amz-")
                    || name.as_str().starts_with("impersonate")
                    || also.contains(name)
            }
        }
    }
}

fn value(bytes: &[u8]) -> Result<HeaderValue, Error> {
    HeaderValue::from_bytes(bytes).map_err(|_| {
        Error::Request("the credential, the region or the service is not valid in a header")
    })
}

/// The signature over a canonical request at a time (`20150830T123600Z`) for a scope
/// (`DAY/REGION/SERVICE/aws4_request`). A signer sends it, a verifier compares it.
pub fn signature(
    secret: &Secret,
    at: &str,
    scope: &str,
    canonical: &[u8],
) -> Result<String, Error> {
    let to_sign = string_to_sign(at, scope, canonical);
    let mut key = Zeroizing::new(b"AWS4".to_vec());
    key.extend_from_slice(secret.expose());
    for part in scope.split('/') {
        key = Zeroizing::new(mac(&key, part.as_bytes())?.to_vec());
    }
    Ok(hex(&*mac(&key, to_sign.as_bytes())?))
}

pub(super) fn string_to_sign(at: &str, scope: &str, canonical: &[u8]) -> String {
    format!("{ALGORITHM}\n{at}\n{scope}\n{}", hex_digest(canonical))
}

fn mac(key: &[u8], text: &[u8]) -> Result<Zeroizing<[u8; 32]>, Error> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut tag = Zeroizing::new([0; 32]);
    hmac::sign_to_buffer(&key, text, &mut *tag).map_err(|_| Error::Signing)?;
    Ok(tag)
}

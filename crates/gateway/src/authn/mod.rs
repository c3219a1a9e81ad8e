//! Authenticates the caller of a request.
//!
//! The order is kube-apiserver's: requestheader (a user that a front proxy asserts), client
//! certificate, bearer token, anonymous. A certificate that is not valid makes a caller without a
//! token unauthorized, not anonymous.

mod client_cert;

use std::sync::Arc;

use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue};
use skewbridge_http_signature::VerifyingKey;
use skewbridge_k8s_api::identity::{PreparedIdentity, User};
use skewbridge_k8s_api::version::Version;

pub use self::client_cert::{ClientCertState, TrustConfig};
use crate::connection_slots::Class;

/// A user that signs requests with a key.
#[derive(Debug)]
pub struct SignedUser {
    /// The user's name.
    pub name: String,
    /// Name, groups and extra fields as headers, built once.
    pub(crate) headers: PreparedIdentity,
    pub(crate) key: VerifyingKey,
}

/// The caller of a request.
#[derive(Debug, Clone)]
pub enum Caller {
    /// A user that a peer or a front proxy asserts in identity headers.
    Asserted(User),
    /// A user with a certificate from the client CA.
    Certificate(Arc<CertificateUser>),
    /// A user whose key has signed the request.
    Signed(Arc<SignedUser>),
    /// A caller with a bearer token, which upstream verifies.
    Bearer,
    /// A caller without credentials.
    Anonymous,
    /// A caller whose certificate is not valid, without another credential.
    Unauthorized,
}

/// A user with a certificate.
#[derive(Debug)]
pub struct CertificateUser {
    /// Name, groups and extra fields.
    pub user: User,
    /// The class of its connections in the connection slots.
    pub(crate) class: Class,
    /// Name and groups as headers, built once for each connection.
    pub(crate) headers: PreparedIdentity,
    /// The same, with the fingerprint of the certificate.
    pub(crate) with_credential: PreparedIdentity,
}

/// The first kube-apiserver that adds the fingerprint of the certificate to a user, for its audit
/// log.
const CREDENTIAL_ID_SINCE: Version = Version {
    major: 1,
    minor: 32,
    patch: 0,
};

impl CertificateUser {
    /// The identity that upstream would derive from the certificate itself.
    pub fn headers(&self, upstream: Option<&Version>) -> &PreparedIdentity {
        match upstream {
            Some(version) if *version >= CREDENTIAL_ID_SINCE => &self.with_credential,
            _ => &self.headers,
        }
    }
}

/// The result of authenticating a request.
#[derive(Debug)]
pub struct AuthnResult {
    /// The caller.
    pub caller: Caller,
    /// Whether the connection has the certificate of a peer or front proxy: then the hop headers
    /// of the request are valid.
    pub from_front_proxy: bool,
}

fn without_certificate(headers: &HeaderMap) -> Caller {
    // kube-apiserver reads the first header, and its second word.
    let bearer = headers.get(AUTHORIZATION).is_some_and(|value| {
        let mut words = value.as_bytes().trim_ascii().split(|byte| *byte == b' ');
        words
            .next()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"))
            && words.next().is_some_and(|token| !token.is_empty())
    });
    // Browsers cannot set headers on a WebSocket: kube-apiserver also accepts a token in the
    // subprotocol.
    let in_subprotocol = || {
        headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(|value| {
            value
                .as_bytes()
                .split(|byte| *byte == b',')
                .any(|protocol| {
                    protocol
                        .trim_ascii()
                        .starts_with(b"base64url.bearer.authorization.k8s.io.")
                })
        })
    };
    if bearer || in_subprotocol() {
        Caller::Bearer
    } else {
        Caller::Anonymous
    }
}

/// The token of an Authorization header of a caller with one, where kube-apiserver reads it: the
/// second word.
pub(crate) fn bearer_token(authorization: &HeaderValue) -> Option<&str> {
    let value = authorization.to_str().ok()?;
    value.trim_ascii().split(' ').nth(1)
}

impl Caller {
    /// For the log: the authenticated name, or the kind of caller.
    pub fn name(&self) -> &str {
        match self {
            Self::Asserted(user) => &user.name,
            Self::Certificate(certificate) => &certificate.user.name,
            Self::Signed(user) => &user.name,
            Self::Bearer => "(bearer)",
            Self::Anonymous => "(anonymous)",
            Self::Unauthorized => "(unauthorized)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_second_word() {
        for (value, expected) in [
            ("Bearer t", Some("t")),
            (" bearer t u ", Some("t")),
            ("Bearer", None),
        ] {
            let value = HeaderValue::from_static(value);
            assert_eq!(bearer_token(&value), expected, "{value:?}");
        }
    }

    #[test]
    fn tokens_are_found_where_kube_apiserver_reads_them() {
        let subprotocol = "base64url.bearer.authorization.k8s.io.dA";
        let rows: [(&[(&str, &str)], bool); 13] = [
            (&[], false),
            (&[("authorization", "Bearer t")], true),
            (&[("authorization", "bEARER t u")], true),
            (&[("authorization", " Bearer t ")], true),
            (&[("authorization", "Bearer")], false),
            (&[("authorization", "Bearer ")], false),
            (&[("authorization", "Bearer  t")], false),
            (&[("authorization", "Bearer\tt")], false),
            (&[("authorization", "Bearert t")], false),
            (&[("authorization", "Basic YTpi")], false),
            (
                &[
                    ("authorization", "Basic YTpi"),
                    ("authorization", "Bearer t"),
                ],
                false,
            ),
            (&[("sec-websocket-protocol", "v4.channel.k8s.io")], false),
            (&[("sec-websocket-protocol", subprotocol)], true),
        ];
        for (fields, expected) in rows {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let bearer = matches!(without_certificate(&headers), Caller::Bearer);
            assert_eq!(bearer, expected, "{fields:?}");
        }
    }
}

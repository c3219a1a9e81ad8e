//! Evaluates responses of upstream: whether the certificate and CA files of the bridge match those
//! of upstream. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::StatusCode;
use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use skewbridge_k8s_api::identity::IdentityHeaders;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::files::certificates;
use crate::tls::own_certificates::{CaFile, FrontProxy};

/// The user that the bridge asserts for the test, with the group [`GROUP`]. They need no permissions: the test
/// only checks that upstream authenticates them.
pub const USER: &str = "skewbridge:self-test";
/// See [`USER`].
pub const GROUP: &str = "skewbridge:self-tests";

/// Where the review of the own user is created. Since 1.28.
pub const REVIEWS_PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// What is created there.
pub const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// For servers without `SelfSubjectReview`: a user without permissions may not read this path, and
/// the 403 response names the user.
pub const FORBIDDEN_PATH: &str = "/skewbridge-self-test";

/// The `ConfigMap` in which kube-apiserver publishes the CAs that it trusts.
pub const AUTHENTICATION_CONFIG_MAP_PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// How many CA subjects an error text lists.
const MAX_NAMED_CAS: usize = 5;

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestResult {
    /// Upstream and the bridge agree.
    Passed,
    /// Some clients are rejected, or authenticated by the bridge only.
    Warned(String),
    /// Certificate users are rejected.
    Failed(String),
    /// The response is inconclusive.
    Unknown(String),
}

impl TestResult {
    /// Whether the test passed, if it has a result.
    pub fn passed(&self) -> Option<bool> {
        match self {
            Self::Passed | Self::Warned(_) => Some(true),
            Self::Failed(_) => Some(false),
            Self::Unknown(_) => None,
        }
    }
}

/// The user that upstream authenticates for a request that asserts [`USER`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthenticatedAs {
    /// The user, and the groups if the response contains them.
    User(String, Option<Vec<String>>),
    /// 401.
    Unauthorized,
    /// Upstream does not serve the requested API.
    NotOffered,
    /// Any other response.
    Unknown(String),
}

/// Parses the response to a `SelfSubjectReview`, or the 403 response to a request for a path that
/// the user may not read, which names the user.
pub fn authenticated_as(status: StatusCode, body: &[u8]) -> AuthenticatedAs {
    #[derive(Deserialize)]
    struct Review {
        status: ReviewStatus,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ReviewStatus {
        user_info: UserInfo,
    }
    #[derive(Deserialize)]
    struct UserInfo {
        #[serde(default)]
        username: String,
        #[serde(default)]
        groups: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Failure {
        message: String,
    }
    let unknown =
        || AuthenticatedAs::Unknown(format!("the kube-apiserver answered {}", status.as_u16()));
    match status {
        StatusCode::UNAUTHORIZED => AuthenticatedAs::Unauthorized,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => AuthenticatedAs::NotOffered,
        StatusCode::FORBIDDEN => {
            let failure: Option<Failure> = serde_json::from_slice(body).ok();
            let user = failure.as_ref().and_then(|it| refused_user(&it.message));
            user.map_or_else(unknown, |user| AuthenticatedAs::User(user.to_owned(), None))
        }
        status if status.is_success() => match serde_json::from_slice::<Review>(body) {
            Ok(review) => {
                let UserInfo { username, groups } = review.status.user_info;
                AuthenticatedAs::User(username, Some(groups))
            }
            Err(_) => unknown(),
        },
        _ => unknown(),
    }
}

/// The user in `… is forbidden: User "NAME" cannot …`.
fn refused_user(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("User \"")?;
    rest.split_once('"').map(|(user, _)| user)
}

/// Whether upstream accepts users that the bridge asserts.
pub fn front_proxy(
    user: &AuthenticatedAs,
    own: &FrontProxy,
    headers: &IdentityHeaders,
) -> TestResult {
    let flag = format!("--proxy-client-cert-file {}", own.path.display());
    let first = |names: &[http::HeaderName]| names.first().map(ToString::to_string);
    let remedy = || {
        format!(
            "its --requestheader-client-ca-file must hold the CA that issued it ({}), its \
             --requestheader-allowed-names must be empty or contain {:?}, and its \
             --requestheader-username-headers must contain {}",
            own.issuer,
            own.common_name,
            first(&headers.username).unwrap_or_default(),
        )
    };
    match user {
        AuthenticatedAs::User(user, Some(groups))
            if user == USER && !groups.iter().any(|it| it == GROUP) =>
        {
            TestResult::Failed(format!(
                "{flag}: the kube-apiserver drops the groups that the bridge asserts; its \
                 --requestheader-group-headers must contain {}",
                first(&headers.group).unwrap_or_default()
            ))
        }
        AuthenticatedAs::User(user, _) if user == USER => TestResult::Passed,
        AuthenticatedAs::User(user, _) => TestResult::Failed(format!(
            "{flag}: the kube-apiserver does not accept the front-proxy certificate: it \
             authenticates a user that the bridge asserts as {user:?}; {}",
            remedy()
        )),
        AuthenticatedAs::Unauthorized => TestResult::Failed(format!(
            "{flag}: the kube-apiserver does not accept the front-proxy certificate: it answers \
             401 to a user that the bridge asserts; {}",
            remedy()
        )),
        AuthenticatedAs::NotOffered => TestResult::Unknown(
            "the kube-apiserver does not report the authenticated user".to_owned(),
        ),
        AuthenticatedAs::Unknown(why) => TestResult::Unknown(why.clone()),
    }
}

/// The CAs that upstream trusts, from its `extension-apiserver-authentication` `ConfigMap`.
#[derive(Debug, Default)]
pub struct PublishedCas {
    /// `--client-ca-file` of upstream.
    pub client_ca: Option<Vec<CertificateDer<'static>>>,
    /// `--requestheader-client-ca-file` of upstream.
    pub request_header_ca: Option<Vec<CertificateDer<'static>>>,
}

impl PublishedCas {
    /// Parses the `ConfigMap`.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct ConfigMap {
            kind: String,
            #[serde(default)]
            data: Option<BTreeMap<String, String>>,
        }
        let map: ConfigMap = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if map.kind != "ConfigMap" {
            return Err(format!("the object is a {}", map.kind));
        }
        let data = map.data.unwrap_or_default();
        let bundle = |key: &str| match data.get(key).map(|pem| pem.trim()) {
            None | Some("") => Ok(None),
            Some(pem) => match certificates(pem.as_bytes()) {
                Ok(certificates) => Ok(Some(certificates)),
                Err(problem) => Err(format!("{key}: {problem}")),
            },
        };
        Ok(Self {
            client_ca: bundle("client-ca-file")?,
            request_header_ca: bundle("requestheader-client-ca-file")?,
        })
    }
}

/// Whether the CA of certificate users is upstream's. If upstream has none, only the bridge
/// authenticates them.
pub fn client_ca(own: &CaFile, theirs: Option<&[CertificateDer<'static>]>) -> TestResult {
    let Some(theirs) = theirs else {
        return TestResult::Passed;
    };
    let flag = format!("--client-ca-file {}", own.path.display());
    let missing = missing(theirs, &own.certificates);
    let added = self::missing(&own.certificates, theirs);
    if added.len() == own.certificates.len() {
        return TestResult::Failed(format!(
            "{flag}: is not the kube-apiserver's: none of its CAs ({}) is in the \
             --client-ca-file of the kube-apiserver ({}), so users with certificates of the \
             cluster get 401; configure the same file for the bridge",
            subjects(&added),
            subjects(&missing)
        ));
    }
    let mut text = String::new();
    if !missing.is_empty() {
        let _ = write!(
            text,
            "{flag}: lacks CAs that are in the --client-ca-file of the kube-apiserver ({}): their \
             users get 401 here; configure the same file for the bridge",
            subjects(&missing)
        );
    }
    if !added.is_empty() {
        let separator = if text.is_empty() { "" } else { "; " };
        let _ = write!(
            text,
            "{separator}{flag}: holds CAs that are not in the --client-ca-file of the kube-apiserver \
             ({}): only the bridge authenticates their users; configure the same file for the \
             bridge",
            subjects(&added)
        );
    }
    if text.is_empty() {
        TestResult::Passed
    } else {
        TestResult::Warned(text)
    }
}

/// Whether the CA of peers and front proxies is upstream's.
pub fn request_header_ca(own: &CaFile, theirs: Option<&[CertificateDer<'static>]>) -> TestResult {
    let Some(theirs) = theirs else {
        return TestResult::Passed;
    };
    let missing = missing(theirs, &own.certificates);
    if missing.is_empty() {
        return TestResult::Passed;
    }
    TestResult::Warned(format!(
        "--requestheader-client-ca-file {}: lacks CAs that are in the file of the kube-apiserver \
         ({}): front proxies and peers that the kube-apiserver accepts are rejected here; \
         configure the same file for the bridge",
        own.path.display(),
        subjects(&missing)
    ))
}

/// The certificates in `of` that `from` lacks. A CA that was reissued with the same key is the
/// same: it verifies the same certificates.
fn missing<'a>(
    of: &'a [CertificateDer<'static>],
    from: &[CertificateDer<'static>],
) -> Vec<&'a CertificateDer<'static>> {
    let known: Vec<_> = from.iter().filter_map(|der| trust_anchor(der)).collect();
    let is_known =
        |der: &&CertificateDer<'static>| trust_anchor(der).is_some_and(|it| known.contains(&it));
    of.iter().filter(|der| !is_known(der)).collect()
}

/// The subject and the public key, which make a trust anchor.
fn trust_anchor<'a>(der: &'a CertificateDer<'static>) -> Option<(&'a [u8], &'a [u8])> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let (subject, key) = (
        &certificate.tbs_certificate.subject,
        certificate.tbs_certificate.subject_pki.raw,
    );
    Some((subject.as_raw(), key))
}

fn subjects(certificates: &[&CertificateDer<'static>]) -> String {
    let mut names: Vec<_> = (certificates.iter().take(MAX_NAMED_CAS))
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, certificate)| certificate.subject().to_string())
        .collect();
    if certificates.len() > MAX_NAMED_CAS {
        names.push("…".to_owned());
    }
    names.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skewbridge_testkit::Ca;

    use super::*;

    fn own_front_proxy() -> FrontProxy {
        FrontProxy {
            path: "/pki/front-proxy.crt".into(),
            common_name: "front-proxy-client".to_owned(),
            issuer: "CN=front-proxy-ca".to_owned(),
            chain: Vec::new(),
        }
    }

    #[test]
    fn the_authenticated_user_is_parsed_from_reviews_and_403_responses() {
        let user = |name: &str| AuthenticatedAs::User(name.to_owned(), None);
        let review = json!({"kind": "SelfSubjectReview", "status": {"userInfo":
            {"username": "a", "groups": ["b", "system:authenticated"]}}});
        let refused = |text: &str| json!({"kind": "Status", "message": text}).to_string();
        let rows = [
            (
                201,
                review.to_string(),
                AuthenticatedAs::User(
                    "a".to_owned(),
                    Some(vec!["b".to_owned(), "system:authenticated".to_owned()]),
                ),
            ),
            (401, refused("Unauthorized"), AuthenticatedAs::Unauthorized),
            (
                404,
                "404 page not found".to_owned(),
                AuthenticatedAs::NotOffered,
            ),
            (405, String::new(), AuthenticatedAs::NotOffered),
            (
                403,
                refused(
                    "selfsubjectreviews.authentication.k8s.io is forbidden: User \"a b\" cannot create resource",
                ),
                user("a b"),
            ),
            (
                403,
                refused("forbidden: User \"system:anonymous\" cannot get path \"/x\""),
                user("system:anonymous"),
            ),
        ];
        for (code, body, expected) in rows {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(
                authenticated_as(status, body.as_bytes()),
                expected,
                "{body}"
            );
        }
        for (code, body) in [(200, "\"/apis\""), (403, "no"), (500, ""), (503, "{}")] {
            let status = StatusCode::from_u16(code).unwrap();
            let user = authenticated_as(status, body.as_bytes());
            assert!(matches!(user, AuthenticatedAs::Unknown(_)), "{code} {body}");
        }
    }

    #[test]
    fn a_front_proxy_certificate_that_upstream_does_not_accept_fails_with_the_flag() {
        let user = |name: &str, groups: Option<&[&str]>| {
            let groups = groups.map(|it| it.iter().map(|it| (*it).to_owned()).collect());
            AuthenticatedAs::User(name.to_owned(), groups)
        };
        let headers = IdentityHeaders::default();
        let evaluate = |user: &AuthenticatedAs| front_proxy(user, &own_front_proxy(), &headers);
        assert_eq!(evaluate(&user(USER, Some(&[GROUP]))), TestResult::Passed);
        assert_eq!(evaluate(&user(USER, None)), TestResult::Passed);
        for user in [
            AuthenticatedAs::NotOffered,
            AuthenticatedAs::Unknown("500".to_owned()),
        ] {
            assert!(
                matches!(evaluate(&user), TestResult::Unknown(_)),
                "{user:?}"
            );
        }
        let rows = [
            (AuthenticatedAs::Unauthorized, "answers 401"),
            (
                user("front-proxy-client", None),
                "as \"front-proxy-client\";",
            ),
            (
                user(USER, Some(&[])),
                "--requestheader-group-headers must contain x-remote-group",
            ),
        ];
        for (user, text) in rows {
            let TestResult::Failed(message) = evaluate(&user) else {
                panic!("{user:?} passes");
            };
            let flag = "--proxy-client-cert-file /pki/front-proxy.crt: ";
            assert!(message.starts_with(flag), "{message}");
            assert!(message.contains(text), "{message}");
        }
        let TestResult::Failed(message) = evaluate(&AuthenticatedAs::Unauthorized) else {
            panic!("it passes");
        };
        for part in [
            "--requestheader-client-ca-file must hold the CA that issued it (CN=front-proxy-ca)",
            "--requestheader-allowed-names must be empty or contain \"front-proxy-client\"",
            "--requestheader-username-headers must contain x-remote-user",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    fn file(cas: &[&Ca]) -> CaFile {
        CaFile {
            path: "/pki/ca.crt".into(),
            certificates: bundle(cas),
        }
    }

    fn bundle(cas: &[&Ca]) -> Vec<CertificateDer<'static>> {
        cas.iter().map(|ca| ca.der().clone()).collect()
    }

    #[test]
    fn a_client_ca_that_is_not_upstreams_fails_and_one_in_rotation_warns() {
        let [old, new, foreign] = ["old-ca", "new-ca", "foreign-ca"].map(Ca::new);
        let evaluate = |own: &[&Ca], theirs: &[&Ca]| client_ca(&file(own), Some(&bundle(theirs)));
        assert_eq!(evaluate(&[&old], &[&old]), TestResult::Passed);
        assert_eq!(evaluate(&[&new, &old], &[&old, &new]), TestResult::Passed);
        assert_eq!(client_ca(&file(&[&old]), None), TestResult::Passed);
        let TestResult::Failed(message) = evaluate(&[&foreign], &[&old, &new]) else {
            panic!("it passes");
        };
        let parts = [
            "--client-ca-file /pki/ca.crt",
            "foreign-ca",
            "old-ca",
            "same file",
        ];
        for part in parts {
            assert!(message.contains(part), "{message}");
        }
        for (own, theirs, text) in [
            (&[&old][..], &[&old, &new][..], "lacks CAs"),
            (&[&old, &foreign], &[&old], "holds CAs"),
        ] {
            let TestResult::Warned(message) = evaluate(own, theirs) else {
                panic!("{text}");
            };
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn a_requestheader_ca_file_that_lacks_cas_of_upstream_warns() {
        let [one, other] = ["one-ca", "other-ca"].map(Ca::new);
        let theirs = bundle(&[&one]);
        let evaluate = |own: &[&Ca]| request_header_ca(&file(own), Some(&theirs));
        assert_eq!(evaluate(&[&other, &one]), TestResult::Passed);
        assert_eq!(
            request_header_ca(&file(&[&other]), None),
            TestResult::Passed
        );
        let TestResult::Warned(message) = evaluate(&[&other]) else {
            panic!("it passes");
        };
        let flag = "--requestheader-client-ca-file /pki/ca.crt";
        assert!(
            message.contains(flag) && message.contains("one-ca"),
            "{message}"
        );
    }

    #[test]
    fn the_cas_that_upstream_trusts_are_read_from_its_config_map() {
        let ca = Ca::new("ca");
        let map = json!({"kind": "ConfigMap", "data": {
            "client-ca-file": ca.pem(), "requestheader-client-ca-file": "",
            "requestheader-allowed-names": "[]"}});
        let published = PublishedCas::parse(map.to_string().as_bytes()).unwrap();
        assert_eq!(published.client_ca, Some(bundle(&[&ca])));
        assert_eq!(published.request_header_ca, None);
        let bare = PublishedCas::parse(br#"{"kind": "ConfigMap"}"#).unwrap();
        assert!(bare.client_ca.is_none());
        for body in [
            "\"x\"",
            r#"{"kind": "Status"}"#,
            r#"{"kind": "ConfigMap", "data": {"client-ca-file": "no PEM"}}"#,
        ] {
            assert!(PublishedCas::parse(body.as_bytes()).is_err(), "{body}");
        }
    }
}

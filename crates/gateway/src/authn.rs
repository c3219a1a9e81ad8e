//! Authenticates the caller of a request.
//!
//! The order is kube-apiserver's: requestheader (a user that a front proxy asserts), client
//! certificate, bearer token, anonymous. A certificate that is not valid makes a caller without a
//! token unauthorized, not anonymous.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use rustls::server::VerifierBuilderError;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use skewbridge_http_engine::client::TrailerFilter;
use skewbridge_http_signature::VerifyingKey;
use skewbridge_k8s_api::forwarding_headers::{has_peer_hop, remove_peer_hop_headers};
use skewbridge_k8s_api::identity::{IdentityHeaders, PreparedIdentity, User};
use skewbridge_k8s_api::version::Version;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::access_log::sanitized;
use crate::connection_slots::{Class, is_component};
use crate::log_budget::LogBudget;
use crate::tls::files::CaBundle;
use crate::tls::timed_roots::{TimedClientVerifier, TimedRoots};

/// A user who signs with a key.
#[derive(Debug)]
pub struct SignedUser {
    /// The user's name.
    pub name: String,
    /// Name, groups and the rest as headers, made once.
    pub(crate) headers: PreparedIdentity,
    pub(crate) key: VerifyingKey,
}

/// Who sent a request.
#[derive(Debug, Clone)]
pub enum Caller {
    /// Another server of this cluster, or a front proxy, that speaks for this
    /// user.
    Peer(User),
    /// A user with a certificate from the client CA.
    Certificate(Arc<CertificateUser>),
    /// A user whose key has signed the request.
    Signed(Arc<SignedUser>),
    /// Somebody with a token, which upstream judges.
    Bearer,
    /// Nobody in particular.
    Anonymous,
    /// Somebody whose certificate is not good, and who has nothing else.
    Unauthorized,
}

/// A user with a certificate.
#[derive(Debug)]
pub struct CertificateUser {
    /// The common name.
    pub name: String,
    /// Which share of the connection slots its connections have.
    pub(crate) class: Class,
    /// Name and groups as headers, made once for each connection.
    pub(crate) headers: PreparedIdentity,
    /// The same, and by which certificate the user was recognised.
    pub(crate) with_credential: PreparedIdentity,
}

/// The first kube-apiserver that adds the certificate's fingerprint to a user,
/// for its audit log.
const NAMES_CREDENTIALS: Version = Version {
    major: 1,
    minor: 32,
    patch: 0,
};

/// Under which key it does so.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

impl CertificateUser {
    /// What upstream would have made of the certificate itself.
    pub fn headers(&self, upstream: Option<&Version>) -> &PreparedIdentity {
        match upstream {
            Some(version) if *version >= NAMES_CREDENTIALS => &self.with_credential,
            _ => &self.headers,
        }
    }
}

/// Whom to believe. Replaced as a whole when its files change.
#[derive(Debug)]
pub struct TrustConfig {
    client: Option<Arc<dyn ClientCertVerifier>>,
    request_header: Option<FrontProxies>,
    headers: IdentityHeaders,
    /// Of both bundles: when their CAs begin and end.
    ca_validity: Vec<TimedRoots>,
}

#[derive(Debug)]
struct FrontProxies {
    verifier: Arc<dyn ClientCertVerifier>,
    allowed_names: Vec<String>,
}

impl TrailerFilter for TrustConfig {
    /// A field that may not be in a header may not be in a trailer.
    fn filter(&self, trailers: &mut HeaderMap) {
        self.headers().remove(trailers);
        remove_peer_hop_headers(trailers);
    }
}

impl TrustConfig {
    /// Believes certificates of the client CA, and the word of those from the
    /// requestheader CA that have an allowed name (no names: any).
    pub fn new(
        client: Option<&CaBundle>,
        request_header: Option<(&CaBundle, &[String])>,
        headers: IdentityHeaders,
    ) -> Result<Self, VerifierBuilderError> {
        let verifier =
            |ca: &CaBundle| -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
                Ok(Arc::new(TimedClientVerifier::new(ca)?))
            };
        let bundles = client.into_iter().chain(request_header.map(|(ca, _)| ca));
        Ok(Self {
            ca_validity: bundles.map(TimedRoots::of).collect(),
            client: client.map(verifier).transpose()?,
            request_header: match request_header {
                None => None,
                Some((ca, names)) => Some(FrontProxies {
                    verifier: verifier(ca)?,
                    allowed_names: names.to_vec(),
                }),
            },
            headers,
        })
    }

    /// The names under which identities travel.
    pub fn headers(&self) -> &IdentityHeaders {
        &self.headers
    }

    fn judge(
        &self,
        chain: &[CertificateDer<'static>],
        client: Option<SocketAddr>,
        now: UnixTime,
    ) -> Verdict {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Verdict::none();
        };
        let Ok((_, certificate)) = X509Certificate::from_der(leaf) else {
            log_refusal(client, None, || "it cannot be parsed".to_owned());
            return Verdict::none();
        };
        let good = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier
                .verify_client_cert(leaf, intermediates, now)
                .is_ok()
        };
        let name = common_name(&certificate);
        let proxies = self.request_header.as_ref();
        let proxies = proxies.filter(|proxies| good(&proxies.verifier));
        let peer = proxies.is_some_and(|proxies| {
            proxies.allowed_names.is_empty()
                || name.is_some_and(|name| proxies.allowed_names.iter().any(|it| it == name))
        });
        let user = name
            .filter(|name| !name.is_empty() && self.client.as_ref().is_some_and(good))
            .and_then(|name| self.certificate_user(name, leaf, &certificate));
        // A chain may hold what it does not need, and what has run out already
        // took no part in this verdict. A certificate that is not good yet is
        // judged again with the next connection.
        let expires = chain
            .iter()
            .filter_map(|der| X509Certificate::from_der(der).ok())
            .filter_map(|(_, it)| u64::try_from(it.validity().not_after.timestamp()).ok())
            .filter(|at| *at >= now.as_secs())
            .chain(
                self.ca_validity
                    .iter()
                    .map(|it| it.span(now.as_secs()).until),
            )
            .min();
        if !peer && user.is_none() {
            log_refusal(client, Some(&certificate), || {
                self.explain(leaf, intermediates, now)
            });
        }
        Verdict {
            peer,
            of_front_proxy_ca: proxies.is_some(),
            user,
            expires: expires.unwrap_or(u64::MAX),
        }
    }

    /// Why a certificate is neither a user nor a front proxy, by flag.
    fn explain(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> String {
        let verifiers = [
            (
                "--client-ca-file",
                self.client.as_ref(),
                "the subject has no common name, or is not UTF-8",
            ),
            (
                "--requestheader-client-ca-file",
                self.request_header.as_ref().map(|it| &it.verifier),
                "--requestheader-allowed-names does not list its common name",
            ),
        ];
        let causes = verifiers.map(|(flag, verifier, wrong_name)| {
            let verified = verifier.map(|it| it.verify_client_cert(leaf, intermediates, now));
            match verified {
                None => format!("{flag} is not set"),
                Some(Ok(_)) => format!("{flag}: {wrong_name}"),
                Some(Err(error)) => format!("{flag}: {error}"),
            }
        });
        causes.join("; ")
    }

    fn certificate_user(
        &self,
        name: &str,
        der: &CertificateDer<'_>,
        certificate: &X509Certificate<'_>,
    ) -> Option<Arc<CertificateUser>> {
        let groups = certificate
            .subject()
            .iter_organization()
            .map(|group| group.as_str().map(str::to_owned))
            .collect::<Result<Vec<_>, _>>()
            .ok()?;
        let mut user = User {
            name: name.to_owned(),
            groups,
            ..User::default()
        };
        let headers = self.headers.prepare(&user).ok()?;
        user.extra
            .insert(CREDENTIAL_ID.to_owned(), vec![credential_id(der)]);
        Some(Arc::new(CertificateUser {
            headers,
            with_credential: self.headers.prepare(&user).ok()?,
            class: if is_component(&user.name, &user.groups) {
                Class::Reserved
            } else {
                Class::Authenticated
            },
            name: user.name,
        }))
    }
}

/// Lines about refused certificates. Each connection with one has its line until the
/// certificate, the CAs or the time change.
static REFUSED_CERTIFICATES: LogBudget = LogBudget::new(REFUSED_CERTIFICATE_LINES_PER_MINUTE);

/// Enough to see which clients are concerned, and few enough not to fill a disk.
const REFUSED_CERTIFICATE_LINES_PER_MINUTE: u32 = 20;

/// Logs why a certificate was refused, unless there were too many such lines.
fn log_refusal(
    client: Option<SocketAddr>,
    certificate: Option<&X509Certificate<'_>>,
    cause: impl FnOnce() -> String,
) {
    let Some(suppressed) = REFUSED_CERTIFICATES.take(Instant::now()) else {
        return;
    };
    let subject = certificate.map(|it| sanitized(&it.subject().to_string()));
    let issuer = certificate.map(|it| sanitized(&it.issuer().to_string()));
    tracing::warn!(
        client = client.map(tracing::field::display),
        subject,
        issuer,
        suppressed = (suppressed > 0).then_some(suppressed),
        "client certificate refused: {}",
        cause()
    );
}

fn credential_id(der: &CertificateDer<'_>) -> String {
    use std::fmt::Write as _;
    let mut id = "X509SHA256=".to_owned();
    for byte in digest(&SHA256, der).as_ref() {
        // Writing to a String does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// Go takes the last common name where there are several.
fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let name = certificate.subject().iter_common_name().last()?;
    name.as_str().ok()
}

/// What was shown on a connection, judged when it is first used and again when
/// the trust changes or one of its certificates runs out.
#[derive(Debug)]
pub struct ClientCertState {
    client: Option<SocketAddr>,
    chain: Vec<CertificateDer<'static>>,
    judged: Mutex<Option<(Arc<TrustConfig>, Verdict)>>,
}

#[derive(Debug, Clone)]
struct Verdict {
    peer: bool,
    /// Issued by a requestheader CA, whatever its name.
    of_front_proxy_ca: bool,
    user: Option<Arc<CertificateUser>>,
    /// Seconds since 1970.
    expires: u64,
}

impl Verdict {
    fn none() -> Self {
        Self {
            peer: false,
            of_front_proxy_ca: false,
            user: None,
            expires: u64::MAX,
        }
    }
}

/// Who sent a request, and whether another server of this cluster brought it.
#[derive(Debug)]
pub struct AuthnResult {
    /// Who.
    pub caller: Caller,
    /// Whether its hop headers may be believed.
    pub from_peer: bool,
}

impl ClientCertState {
    /// The certificates of a connection; none is fine.
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            client: None,
            chain,
            judged: Mutex::new(None),
        }
    }

    /// The same, of a client at this address.
    pub(crate) fn of_client(client: SocketAddr, chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            client: Some(client),
            ..Self::new(chain)
        }
    }

    /// What the certificates alone prove, before any request.
    pub(crate) fn class(&self, trust: &Arc<TrustConfig>) -> Class {
        if self.chain.is_empty() {
            return Class::Unauthenticated;
        }
        let verdict = self.verdict(trust, now());
        match verdict.user {
            _ if verdict.peer => Class::Reserved,
            Some(user) => user.class,
            None => Class::Unauthenticated,
        }
    }

    /// Who sent a request with these headers.
    pub fn caller(&self, trust: &Arc<TrustConfig>, headers: &HeaderMap) -> AuthnResult {
        if self.chain.is_empty() {
            return AuthnResult {
                caller: without_certificate(headers),
                from_peer: false,
            };
        }
        let verdict = self.verdict(trust, now());
        let asserted = if verdict.peer {
            trust.headers.read(headers)
        } else {
            None
        };
        // The certificate of a peer hop authenticates the peer that passed the request on.
        // It is never the identity of the client that sent the request: its token is
        // verified alone, and without one it is not authenticated.
        let over_hop = verdict.of_front_proxy_ca && has_peer_hop(headers);
        let user = verdict.user.filter(|_| !over_hop);
        let caller = match (asserted, user) {
            (Some(user), _) => Caller::Peer(user),
            (None, Some(user)) => Caller::Certificate(user),
            (None, None) => match without_certificate(headers) {
                Caller::Anonymous => {
                    if verdict.peer {
                        tracing::debug!("a front proxy asserts no user");
                    }
                    Caller::Unauthorized
                }
                caller => caller,
            },
        };
        AuthnResult {
            caller,
            from_peer: verdict.peer,
        }
    }

    fn verdict(&self, trust: &Arc<TrustConfig>, now: UnixTime) -> Verdict {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((by, verdict)) = &*judged
            && Arc::ptr_eq(by, trust)
            && verdict.expires >= now.as_secs()
        {
            return verdict.clone();
        }
        let verdict = trust.judge(&self.chain, self.client, now);
        *judged = Some((trust.clone(), verdict.clone()));
        verdict
    }
}

fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(now.unwrap_or_default())
}

fn without_certificate(headers: &HeaderMap) -> Caller {
    // kube-apiserver looks at the first, and at its second word.
    let bearer = headers.get(AUTHORIZATION).is_some_and(|value| {
        let mut words = value.as_bytes().trim_ascii().split(|byte| *byte == b' ');
        words
            .next()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"))
            && words.next().is_some_and(|token| !token.is_empty())
    });
    // Browsers cannot set a header on a WebSocket: kube-apiserver takes the
    // token from the subprotocol.
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

impl Caller {
    /// For the log: a name that was proven, or what kind of caller it is.
    pub fn name(&self) -> &str {
        match self {
            Self::Peer(user) => &user.name,
            Self::Certificate(user) => &user.name,
            Self::Signed(user) => &user.name,
            Self::Bearer => "(bearer)",
            Self::Anonymous => "(anonymous)",
            Self::Unauthorized => "(unauthorized)",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;
    use rcgen::{CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
    use skewbridge_testkit::{Ca, ScratchDir, Validity};

    use super::*;
    use crate::tls::files::load_ca;

    const YEAR: u64 = 365 * 24 * 60 * 60;

    /// About this many years after 1970.
    fn after(years: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(years * YEAR))
    }

    /// Believes this CA's users.
    fn trust(ca_pem: &str) -> Arc<TrustConfig> {
        let dir = ScratchDir::new();
        let ca = load_ca(&dir.write("ca.crt", ca_pem)).unwrap();
        Arc::new(TrustConfig::new(Some(&ca), None, IdentityHeaders::default()).unwrap())
    }

    fn user(
        presented: &ClientCertState,
        trust: &Arc<TrustConfig>,
        now: UnixTime,
    ) -> Option<String> {
        let user = presented.verdict(trust, now).user?;
        Some(user.name.clone())
    }

    #[test]
    fn a_certificate_is_believed_until_it_runs_out() {
        let ca = Ca::new("users");
        let (trust, leaf) = (trust(&ca.pem()), ca.client("alice", &[]));
        let presented = ClientCertState::new(leaf.chain_der);
        // The testkit's are valid from 1975 to 4096.
        for years in [56, 57, 2000] {
            assert_eq!(user(&presented, &trust, after(years)).unwrap(), "alice");
        }
        for years in [2200, 2300] {
            assert_eq!(user(&presented, &trust, after(years)), None);
        }
    }

    /// The verdict of a connection that stays open, judged before and after its CA ends.
    #[test]
    fn a_ca_that_expires_ends_the_trust_in_connections_that_are_open() {
        let end = after(60).as_secs();
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expires = std::time::UNIX_EPOCH + Duration::from_secs(end);
        let ca = Ca::new("users").renewed_until(expires);
        let (trust, leaf) = (trust(&ca.pem()), ca.client("alice", &[]));
        let presented = ClientCertState::new(leaf.chain_der);
        assert_eq!(user(&presented, &trust, at(end - 1)).unwrap(), "alice");
        assert_eq!(user(&presented, &trust, at(end)).unwrap(), "alice");
        assert_eq!(user(&presented, &trust, at(end + 1)), None);
        // A CA that begins later is used from its first second.
        let future = Ca::new("users").renewed(Validity::NotYetValid);
        let trust = self::trust(&future.pem());
        let presented = ClientCertState::new(future.client("bob", &[]).chain_der);
        assert_eq!(user(&presented, &trust, after(60)), None);
        assert_eq!(user(&presented, &trust, after(1031)).unwrap(), "bob");
    }

    /// One CA for users and front proxies, with allowed names: as kube-apiserver permits.
    #[test]
    fn a_request_over_a_peer_hop_never_becomes_the_user_of_the_hops_certificate() {
        type Field = (&'static str, &'static str);
        const HOP: Field = ("x-kubernetes-peer-proxied", "true");
        const TOKEN: Field = ("authorization", "Bearer junk");
        const ASSERTED: Field = ("x-remote-user", "carol");
        const PROXY: &str = "front-proxy-client";
        let dir = ScratchDir::new();
        let ca = Ca::new("shared");
        let bundle = load_ca(&dir.write("ca.crt", ca.pem())).unwrap();
        let names = ["front-proxy-client".to_owned()];
        let proxies = Some((&bundle, &names[..]));
        let trust = TrustConfig::new(Some(&bundle), proxies, IdentityHeaders::default());
        let trust = Arc::new(trust.unwrap());
        let rows: [(&str, &[Field], &str); 10] = [
            (PROXY, &[], PROXY),
            (PROXY, &[TOKEN], PROXY),
            (PROXY, &[ASSERTED], "carol"),
            (PROXY, &[HOP], "(unauthorized)"),
            (PROXY, &[HOP, TOKEN], "(bearer)"),
            (PROXY, &[HOP, ASSERTED], "carol"),
            (PROXY, &[HOP, ASSERTED, TOKEN], "carol"),
            // A front proxy whose name is not allowed here is a user; over a hop it is not.
            ("other-proxy", &[TOKEN], "other-proxy"),
            ("other-proxy", &[HOP, TOKEN], "(bearer)"),
            ("other-proxy", &[HOP, ASSERTED], "(unauthorized)"),
        ];
        for (name, fields, expected) in rows {
            let presented = ClientCertState::new(ca.client(name, &["system:masters"]).chain_der);
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let recognised = presented.caller(&trust, &headers);
            assert_eq!(recognised.caller.name(), expected, "{name} {fields:?}");
        }
    }

    /// A hop header is believed on the certificate of a front proxy alone.
    #[test]
    fn a_user_with_a_forged_hop_header_stays_the_user() {
        let ca = Ca::new("users");
        let presented = ClientCertState::new(ca.client("alice", &[]).chain_der);
        let mut headers = HeaderMap::new();
        headers.append(
            "x-kubernetes-peer-proxied",
            HeaderValue::from_static("true"),
        );
        let recognised = presented.caller(&trust(&ca.pem()), &headers);
        assert_eq!(recognised.caller.name(), "alice");
    }

    #[test]
    fn new_trust_judges_anew() {
        let (ca, other) = (Ca::new("users"), Ca::new("users"));
        let (old, new) = (trust(&ca.pem()), trust(&other.pem()));
        let presented = ClientCertState::new(ca.client("alice", &[]).chain_der);
        assert_eq!(user(&presented, &old, after(56)).unwrap(), "alice");
        assert_eq!(user(&presented, &new, after(56)), None);
        assert_eq!(user(&presented, &old, after(56)).unwrap(), "alice");
    }

    #[test]
    fn what_cannot_be_parsed_is_nobody() {
        let trust = trust(&Ca::new("users").pem());
        for chain in [vec![], vec![CertificateDer::from(b"garbage".to_vec())]] {
            assert_eq!(user(&ClientCertState::new(chain), &trust, after(56)), None);
        }
    }

    #[test]
    fn the_last_common_name_counts_and_one_has_to_be_there() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let trust = trust(&ca.pem());
        let common_name = || DnType::CustomDnType(vec![2, 5, 4, 3]);
        for (fields, expected) in [
            (vec![(DnType::OrganizationName, "dev")], None),
            (vec![(DnType::CommonName, "alice")], Some("alice")),
            (
                vec![(DnType::CommonName, "alice"), (common_name(), "bob")],
                Some("bob"),
            ),
            (
                vec![(DnType::CommonName, "alice"), (common_name(), "")],
                None,
            ),
        ] {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            for (kind, value) in fields {
                params.distinguished_name.push(kind, value);
            }
            let leaf = params.signed_by(&KeyPair::generate().unwrap(), &issuer);
            let presented = ClientCertState::new(vec![leaf.unwrap().der().clone()]);
            let found = user(&presented, &trust, after(56));
            assert_eq!(found.as_deref(), expected);
        }
    }

    #[test]
    fn a_token_is_where_kube_apiserver_looks_for_one() {
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

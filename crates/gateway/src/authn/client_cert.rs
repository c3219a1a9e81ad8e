//! Verifies client certificates: users, peers and front proxies.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderMap;
use rustls::server::VerifierBuilderError;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use skewbridge_http_engine::client::TrailerFilter;
use skewbridge_k8s_api::forwarding_headers::{has_peer_hop, remove_peer_hop_headers};
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{AuthnResult, Caller, CertificateUser, without_certificate};
use crate::access_log::sanitized;
use crate::connection_slots::{Class, is_component};
use crate::log_budget::LogBudget;
use crate::tls::files::CaBundle;
use crate::tls::timed_roots::{TimedClientVerifier, TimedRoots};

/// The key of the fingerprint in the extra fields of the user.
const CREDENTIAL_ID_KEY: &str = "authentication.kubernetes.io/credential-id";

/// The CAs of users and front proxies, and the names of identity headers. Replaced as a whole when
/// files change.
#[derive(Debug)]
pub struct TrustConfig {
    client: Option<Arc<dyn ClientCertVerifier>>,
    request_header: Option<FrontProxies>,
    headers: IdentityHeaders,
    /// The validity periods of the CAs in both bundles.
    ca_validity: Vec<TimedRoots>,
}

#[derive(Debug)]
struct FrontProxies {
    verifier: Arc<dyn ClientCertVerifier>,
    allowed_names: Vec<String>,
}

impl TrailerFilter for TrustConfig {
    /// Removes from trailers the fields that are removed from headers.
    fn filter(&self, trailers: &mut HeaderMap) {
        self.headers().remove(trailers);
        remove_peer_hop_headers(trailers);
    }
}

impl TrustConfig {
    /// Accepts certificates of the client CA as users. Accepts identity headers on connections with
    /// a certificate of the requestheader CA that has an allowed name (empty: any name).
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

    /// The names of the identity headers.
    pub fn headers(&self) -> &IdentityHeaders {
        &self.headers
    }

    fn verify(
        &self,
        chain: &[CertificateDer<'static>],
        client: Option<SocketAddr>,
        now: UnixTime,
    ) -> CertVerification {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return CertVerification::none();
        };
        let Ok((_, certificate)) = X509Certificate::from_der(leaf) else {
            log_rejection(client, None, || {
                "the certificate cannot be parsed".to_owned()
            });
            return CertVerification::none();
        };
        let is_valid = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier
                .verify_client_cert(leaf, intermediates, now)
                .is_ok()
        };
        let name = common_name(&certificate);
        let proxies = self.request_header.as_ref();
        let proxies = proxies.filter(|proxies| is_valid(&proxies.verifier));
        let is_front_proxy = proxies.is_some_and(|proxies| {
            proxies.allowed_names.is_empty()
                || name.is_some_and(|name| proxies.allowed_names.iter().any(|it| it == name))
        });
        let user = name
            .filter(|name| !name.is_empty() && self.client.as_ref().is_some_and(is_valid))
            .and_then(|name| self.certificate_user(name, leaf, &certificate));
        // A chain may contain certificates that it does not need; expired ones were not used here.
        // A certificate that is not valid yet is verified again with the next connection.
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
        if !is_front_proxy && user.is_none() {
            log_rejection(client, Some(&certificate), || {
                self.explain(leaf, intermediates, now)
            });
        }
        CertVerification {
            is_front_proxy,
            has_front_proxy_ca: proxies.is_some(),
            user,
            expires: expires.unwrap_or(u64::MAX),
        }
    }

    /// Why a certificate is neither that of a user nor that of a front proxy, by flag.
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
            .insert(CREDENTIAL_ID_KEY.to_owned(), vec![credential_id(der)]);
        Some(Arc::new(CertificateUser {
            headers,
            with_credential: self.headers.prepare(&user).ok()?,
            class: if is_component(&user.name, &user.groups) {
                Class::Reserved
            } else {
                Class::Authenticated
            },
            user,
        }))
    }
}

/// Limits log lines about rejected certificates. Every connection with such a certificate causes a
/// line.
static REJECTED_CERTIFICATE_LOG: LogBudget = LogBudget::new(REJECTED_CERTIFICATE_LINES_PER_MINUTE);

/// Enough to see the clients, and few enough not to fill a disk.
const REJECTED_CERTIFICATE_LINES_PER_MINUTE: u32 = 20;

/// Logs why a certificate was rejected, within the log budget.
fn log_rejection(
    client: Option<SocketAddr>,
    certificate: Option<&X509Certificate<'_>>,
    cause: impl FnOnce() -> String,
) {
    let Some(suppressed) = REJECTED_CERTIFICATE_LOG.take(Instant::now()) else {
        return;
    };
    let subject = certificate.map(|it| sanitized(&it.subject().to_string()));
    let issuer = certificate.map(|it| sanitized(&it.issuer().to_string()));
    tracing::warn!(
        client = client.map(tracing::field::display),
        subject,
        issuer,
        suppressed = (suppressed > 0).then_some(suppressed),
        "client certificate rejected: {}",
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

/// The last common name, as Go takes it if there are several.
fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let name = certificate.subject().iter_common_name().last()?;
    name.as_str().ok()
}

/// The client certificates of a connection. They are verified with the first request, and again
/// when the trust changes or one of the certificates expires.
#[derive(Debug)]
pub struct ClientCertState {
    client: Option<SocketAddr>,
    chain: Vec<CertificateDer<'static>>,
    verified: Mutex<Option<(Arc<TrustConfig>, CertVerification)>>,
}

/// The result of verifying a certificate chain.
#[derive(Debug, Clone)]
struct CertVerification {
    /// The certificate of a peer or front proxy, which may assert users.
    is_front_proxy: bool,
    /// Issued by a requestheader CA, also if its name is not allowed.
    has_front_proxy_ca: bool,
    user: Option<Arc<CertificateUser>>,
    /// When the result expires, in seconds since 1970.
    expires: u64,
}

impl CertVerification {
    fn none() -> Self {
        Self {
            is_front_proxy: false,
            has_front_proxy_ca: false,
            user: None,
            expires: u64::MAX,
        }
    }
}

impl ClientCertState {
    /// The certificates of a connection; the chain may be empty.
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            client: None,
            chain,
            verified: Mutex::new(None),
        }
    }

    /// The certificates of a client at this address.
    pub(crate) fn of_client(client: SocketAddr, chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            client: Some(client),
            ..Self::new(chain)
        }
    }

    /// The class of the connection by its certificates, before the first request.
    pub(crate) fn class(&self, trust: &Arc<TrustConfig>) -> Class {
        if self.chain.is_empty() {
            return Class::Unauthenticated;
        }
        let verification = self.verify(trust, now());
        match verification.user {
            _ if verification.is_front_proxy => Class::Reserved,
            Some(user) => user.class,
            None => Class::Unauthenticated,
        }
    }

    /// Authenticates a request with these headers.
    pub fn authenticate(&self, trust: &Arc<TrustConfig>, headers: &HeaderMap) -> AuthnResult {
        if self.chain.is_empty() {
            return AuthnResult {
                caller: without_certificate(headers),
                from_front_proxy: false,
            };
        }
        let verification = self.verify(trust, now());
        let asserted = if verification.is_front_proxy {
            trust.headers.read(headers)
        } else {
            None
        };
        // The certificate of a peer hop authenticates the peer that forwarded the request. It is
        // never the identity of the client that sent the request: only the token of the client
        // counts, and without one the client is not authenticated.
        let over_hop = verification.has_front_proxy_ca && has_peer_hop(headers);
        let user = verification.user.filter(|_| !over_hop);
        let caller = match (asserted, user) {
            (Some(user), _) => Caller::Asserted(user),
            (None, Some(user)) => Caller::Certificate(user),
            (None, None) => match without_certificate(headers) {
                Caller::Anonymous => {
                    if verification.is_front_proxy {
                        tracing::debug!("a front proxy asserts no user");
                    }
                    Caller::Unauthorized
                }
                caller => caller,
            },
        };
        AuthnResult {
            caller,
            from_front_proxy: verification.is_front_proxy,
        }
    }

    fn verify(&self, trust: &Arc<TrustConfig>, now: UnixTime) -> CertVerification {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((by, verification)) = &*verified
            && Arc::ptr_eq(by, trust)
            && verification.expires >= now.as_secs()
        {
            return verification.clone();
        }
        let verification = trust.verify(&self.chain, self.client, now);
        *verified = Some((trust.clone(), verification.clone()));
        verification
    }
}

fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(now.unwrap_or_default())
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

    /// Accepts users of this CA.
    fn trust(ca_pem: &str) -> Arc<TrustConfig> {
        let dir = ScratchDir::new();
        let ca = load_ca(&dir.write("ca.crt", ca_pem)).unwrap();
        Arc::new(TrustConfig::new(Some(&ca), None, IdentityHeaders::default()).unwrap())
    }

    fn user(
        client_cert: &ClientCertState,
        trust: &Arc<TrustConfig>,
        now: UnixTime,
    ) -> Option<String> {
        let user = client_cert.verify(trust, now).user?;
        Some(user.user.name.clone())
    }

    #[test]
    fn a_certificate_is_valid_until_it_expires() {
        let ca = Ca::new("users");
        let (trust, leaf) = (trust(&ca.pem()), ca.client("alice", &[]));
        let client_cert = ClientCertState::new(leaf.chain_der);
        // Certificates of the testkit are valid from 1975 to 4096.
        for years in [56, 57, 2000] {
            assert_eq!(user(&client_cert, &trust, after(years)).unwrap(), "alice");
        }
        for years in [2200, 2300] {
            assert_eq!(user(&client_cert, &trust, after(years)), None);
        }
    }

    /// The connection stays open: it is verified before and after the end of its CA.
    #[test]
    fn an_expired_ca_is_not_trusted_on_open_connections() {
        let end = after(60).as_secs();
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expires = std::time::UNIX_EPOCH + Duration::from_secs(end);
        let ca = Ca::new("users").renewed_until(expires);
        let (trust, leaf) = (trust(&ca.pem()), ca.client("alice", &[]));
        let client_cert = ClientCertState::new(leaf.chain_der);
        assert_eq!(user(&client_cert, &trust, at(end - 1)).unwrap(), "alice");
        assert_eq!(user(&client_cert, &trust, at(end)).unwrap(), "alice");
        assert_eq!(user(&client_cert, &trust, at(end + 1)), None);
        // A CA that becomes valid later is used from its first second.
        let future = Ca::new("users").renewed(Validity::NotYetValid);
        let trust = self::trust(&future.pem());
        let client_cert = ClientCertState::new(future.client("bob", &[]).chain_der);
        assert_eq!(user(&client_cert, &trust, after(60)), None);
        assert_eq!(user(&client_cert, &trust, after(1031)).unwrap(), "bob");
    }

    /// One CA for users and front proxies, with allowed names, which kube-apiserver permits.
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
            // A front proxy whose name is not allowed is a user, except over a hop.
            ("other-proxy", &[TOKEN], "other-proxy"),
            ("other-proxy", &[HOP, TOKEN], "(bearer)"),
            ("other-proxy", &[HOP, ASSERTED], "(unauthorized)"),
        ];
        for (name, fields, expected) in rows {
            let client_cert = ClientCertState::new(ca.client(name, &["system:masters"]).chain_der);
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let result = client_cert.authenticate(&trust, &headers);
            assert_eq!(result.caller.name(), expected, "{name} {fields:?}");
        }
    }

    /// A hop header is only valid on a connection with a front-proxy certificate.
    #[test]
    fn a_forged_hop_header_of_a_user_is_ignored() {
        let ca = Ca::new("users");
        let client_cert = ClientCertState::new(ca.client("alice", &[]).chain_der);
        let mut headers = HeaderMap::new();
        headers.append(
            "x-kubernetes-peer-proxied",
            HeaderValue::from_static("true"),
        );
        let result = client_cert.authenticate(&trust(&ca.pem()), &headers);
        assert_eq!(result.caller.name(), "alice");
    }

    #[test]
    fn certificates_are_verified_again_when_the_trust_changes() {
        let (ca, other) = (Ca::new("users"), Ca::new("users"));
        let (old, new) = (trust(&ca.pem()), trust(&other.pem()));
        let client_cert = ClientCertState::new(ca.client("alice", &[]).chain_der);
        assert_eq!(user(&client_cert, &old, after(56)).unwrap(), "alice");
        assert_eq!(user(&client_cert, &new, after(56)), None);
        assert_eq!(user(&client_cert, &old, after(56)).unwrap(), "alice");
    }

    #[test]
    fn a_chain_that_cannot_be_parsed_is_no_user() {
        let trust = trust(&Ca::new("users").pem());
        for chain in [vec![], vec![CertificateDer::from(b"garbage".to_vec())]] {
            assert_eq!(user(&ClientCertState::new(chain), &trust, after(56)), None);
        }
    }

    #[test]
    fn the_user_is_the_last_common_name_and_none_without_one() {
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
            let client_cert = ClientCertState::new(vec![leaf.unwrap().der().clone()]);
            let found = user(&client_cert, &trust, after(56));
            assert_eq!(found.as_deref(), expected);
        }
    }
}

//! Who is on the wire.
//!
//! The order is kube-apiserver's: a front proxy's word first, then a client
//! certificate, then a bearer token, then nobody in particular. A certificate
//! that was shown and is not good makes a caller without a token unauthorised,
//! not anonymous.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use skewbridge_api::identity::{IdentityHeaders, PreparedIdentity, User};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::material::CaBundle;

/// Who sent a request.
#[derive(Debug, Clone)]
pub enum Caller {
    /// Another server of this cluster, or a front proxy, that speaks for this
    /// user.
    Peer(User),
    /// A user with a certificate from the client CA.
    Certificate(Arc<CertificateUser>),
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
    /// Name and groups as headers, made once for each connection.
    pub headers: PreparedIdentity,
}

/// Whom to believe. Replaced as a whole when its files change.
#[derive(Debug)]
pub struct Trust {
    client: Option<Arc<dyn ClientCertVerifier>>,
    request_header: Option<FrontProxies>,
    headers: IdentityHeaders,
}

#[derive(Debug)]
struct FrontProxies {
    verifier: Arc<dyn ClientCertVerifier>,
    allowed_names: Vec<String>,
}

impl Trust {
    /// Believes certificates of the client CA, and the word of those from the
    /// requestheader CA that have an allowed name (no names: any).
    pub fn new(
        client: Option<&CaBundle>,
        request_header: Option<(&CaBundle, &[String])>,
        headers: IdentityHeaders,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        let verifier = |ca: &CaBundle| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            WebPkiClientVerifier::builder_with_provider(ca.roots.clone(), provider).build()
        };
        Ok(Self {
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

    fn judge(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> Verdict {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Verdict::none();
        };
        let Ok((_, certificate)) = X509Certificate::from_der(leaf) else {
            return Verdict::none();
        };
        let good = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier
                .verify_client_cert(leaf, intermediates, now)
                .is_ok()
        };
        let name = common_name(&certificate);
        let peer = self.request_header.as_ref().is_some_and(|proxies| {
            good(&proxies.verifier)
                && (proxies.allowed_names.is_empty()
                    || name.is_some_and(|name| proxies.allowed_names.iter().any(|it| it == name)))
        });
        let user = name
            .filter(|name| !name.is_empty() && self.client.as_ref().is_some_and(good))
            .and_then(|name| self.certificate_user(name, &certificate));
        let expires = chain
            .iter()
            .filter_map(|der| X509Certificate::from_der(der).ok())
            .map(|(_, certificate)| certificate.validity().not_after.timestamp())
            .min();
        Verdict {
            peer,
            user,
            // A certificate that is not good yet may be so later: judged again
            // with each connection only, as is one that never will be.
            expires: expires.and_then(|at| u64::try_from(at).ok()).unwrap_or(0),
        }
    }

    fn certificate_user(
        &self,
        name: &str,
        certificate: &X509Certificate<'_>,
    ) -> Option<Arc<CertificateUser>> {
        let groups = certificate
            .subject()
            .iter_organization()
            .map(|group| group.as_str().map(str::to_owned))
            .collect::<Result<Vec<_>, _>>()
            .ok()?;
        let user = User {
            name: name.to_owned(),
            groups,
            ..User::default()
        };
        Some(Arc::new(CertificateUser {
            headers: self.headers.prepare(&user).ok()?,
            name: user.name,
        }))
    }
}

/// Go takes the last common name where there are several.
fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let name = certificate.subject().iter_common_name().last()?;
    name.as_str().ok()
}

/// What was shown on a connection, judged when it is first used and again when
/// the trust changes or the certificate runs out.
#[derive(Debug)]
pub struct Presented {
    chain: Vec<CertificateDer<'static>>,
    judged: Mutex<Option<(Arc<Trust>, Verdict)>>,
}

#[derive(Debug, Clone)]
struct Verdict {
    peer: bool,
    user: Option<Arc<CertificateUser>>,
    /// Seconds since 1970.
    expires: u64,
}

impl Verdict {
    fn none() -> Self {
        Self {
            peer: false,
            user: None,
            expires: u64::MAX,
        }
    }
}

/// Who sent a request, and whether another server of this cluster brought it.
#[derive(Debug)]
pub struct Recognised {
    /// Who.
    pub caller: Caller,
    /// Whether its hop headers may be believed.
    pub from_peer: bool,
}

impl Presented {
    /// The certificates of a connection; none is fine.
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            chain,
            judged: Mutex::new(None),
        }
    }

    /// Who sent a request with these headers.
    pub fn caller(&self, trust: &Arc<Trust>, headers: &HeaderMap) -> Recognised {
        if self.chain.is_empty() {
            return Recognised {
                caller: without_certificate(headers),
                from_peer: false,
            };
        }
        let verdict = self.verdict(trust);
        let asserted = if verdict.peer {
            trust.headers.read(headers)
        } else {
            None
        };
        let caller = match (asserted, verdict.user) {
            (Some(user), _) => Caller::Peer(user),
            (None, Some(user)) => Caller::Certificate(user),
            (None, None) => match without_certificate(headers) {
                Caller::Anonymous => Caller::Unauthorized,
                caller => caller,
            },
        };
        Recognised {
            caller,
            from_peer: verdict.peer,
        }
    }

    fn verdict(&self, trust: &Arc<Trust>) -> Verdict {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((by, verdict)) = &*judged
            && Arc::ptr_eq(by, trust)
        {
            if verdict.expires >= now.as_secs() {
                return verdict.clone();
            }
            return Verdict::none();
        }
        let verdict = trust.judge(&self.chain, UnixTime::since_unix_epoch(now));
        *judged = Some((trust.clone(), verdict.clone()));
        verdict
    }
}

fn without_certificate(headers: &HeaderMap) -> Caller {
    let bearer = headers.get_all(AUTHORIZATION).iter().any(|value| {
        let value = value.as_bytes().trim_ascii_start();
        value.len() > 7 && value[..7].eq_ignore_ascii_case(b"bearer ")
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
            Self::Bearer => "(bearer)",
            Self::Anonymous => "(anonymous)",
            Self::Unauthorized => "(unauthorized)",
        }
    }
}

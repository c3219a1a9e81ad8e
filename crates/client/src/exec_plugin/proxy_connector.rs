//! Connections to a plugin's proxy: a local socket with mutual TLS (KEP-2718, "Authentication
//! to Proxy", option 1).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustls::{CertificateError, ClientConfig, Error as TlsError};
use rustls_pki_types::ServerName;
use skewbridge_k8s_api::exec_credential::ProxyConfig;
use skewbridge_stream_io::ReadAhead;
use tokio::net::{TcpStream, UnixStream};

use crate::transport::{
    Address, Certificate, Scheme, ServerTrust, Stream, explain_tls_error, tls_config, tls_connector,
};

/// The SNI for Unix sockets, which have no host name.
const UNIX_SERVER_NAME: &str = "localhost";

/// How soon a connection to a full listen backlog is retried: the kernel does not notify.
const BACKLOG_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Where a proxy listens.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ListenAddress {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// A proxy with everything that a connection needs. It remembers TLS sessions, so it is kept
/// while the plugin returns the same proxy.
pub(crate) struct ProxyConnector {
    proxy: ProxyConfig,
    certificate: Certificate,
    address: ListenAddress,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ProxyConnectError {
    /// No program listens, the proxy is exiting, or another program has taken its port: the plugin
    /// has to run again.
    Gone(String),
    /// Running the plugin again would not help.
    Unusable(String),
}

impl ProxyConnector {
    /// Reads a plugin's output.
    pub(super) fn new(proxy: ProxyConfig, certificate: Certificate) -> Result<Self, String> {
        let address = ListenAddress::parse(&proxy.url)?;
        let authority = &proxy.certificate_authority_data;
        let (trust, name) = match &address {
            ListenAddress::Unix(_) => (ServerTrust::PemForAnyName(authority), UNIX_SERVER_NAME),
            ListenAddress::Tcp { host, .. } => (ServerTrust::Pem(authority), host.as_str()),
        };
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| "its host is not a name".to_owned())?;
        let config = tls_config(&trust, Some(&certificate)).map_err(|cause| {
            // The kubeconfig's field names are replaced by those of the plugin's output.
            let cause = cause.replace("certificate-authority ", "certificate-authority-data ");
            let cause = cause.replace("client-certificate", "clientCertificateData");
            cause.replace("client-key", "clientKeyData")
        })?;
        Ok(Self {
            proxy,
            certificate,
            address,
            config,
            name,
        })
    }

    /// Whether the proxy has the same address and certificates.
    pub(super) fn matches(&self, proxy: &ProxyConfig, certificate: &Certificate) -> bool {
        self.proxy == *proxy && self.certificate == *certificate
    }

    /// The proxy's URL as the plugin returned it.
    pub(crate) fn url(&self) -> &str {
        &self.proxy.url
    }

    /// How much of the total time one attempt may take. On a loopback port a timeout makes the
    /// plugin run again, and a second attempt follows.
    pub(crate) fn attempt_timeout(&self, total: Duration) -> Duration {
        match self.address {
            ListenAddress::Tcp { .. } => total / 2,
            ListenAddress::Unix(_) => total,
        }
    }

    /// Opens a connection within the timeout, and returns the ALPN protocol that the proxy
    /// selected.
    pub(crate) async fn open(
        &self,
        alpn: &[Vec<u8>],
        attempt_timeout: Duration,
    ) -> Result<(Stream, Option<Vec<u8>>), ProxyConnectError> {
        let opened = tokio::time::timeout(attempt_timeout, self.try_open(alpn)).await;
        opened.unwrap_or_else(|_| {
            Err(self.handshake_error(format!(
                "did not accept a connection within {} s",
                attempt_timeout.as_secs_f64()
            )))
        })
    }

    /// Classifies a failed handshake. After the proxy has exited, any program may listen on its
    /// loopback port; the handshake then fails before our certificate is sent. A Unix socket is
    /// in a private directory, so no other program can listen there.
    fn handshake_error(&self, cause: String) -> ProxyConnectError {
        match self.address {
            ListenAddress::Tcp { .. } => ProxyConnectError::Gone(cause),
            ListenAddress::Unix(_) => ProxyConnectError::Unusable(cause),
        }
    }

    async fn try_open(
        &self,
        alpn: &[Vec<u8>],
    ) -> Result<(Stream, Option<Vec<u8>>), ProxyConnectError> {
        let connected: Result<Stream, io::Error> = match &self.address {
            ListenAddress::Unix(path) => connect_unix(path)
                .await
                .map(|stream| Box::new(stream) as Stream),
            ListenAddress::Tcp { host, port } => {
                TcpStream::connect((host.as_str(), *port))
                    .await
                    .map(|stream| {
                        // A socket that refuses the option still works.
                        let _ = stream.set_nodelay(true);
                        Box::new(stream) as Stream
                    })
            }
        };
        let stream = connected.map_err(|error| connect_error(&error))?;
        let connector = tls_connector(&self.config, alpn);
        match connector
            .connect(self.name.clone(), ReadAhead::new(stream))
            .await
        {
            Ok(stream) => {
                let alpn_protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                Ok((Box::new(stream), alpn_protocol))
            }
            Err(error) => Err(match error.kind() {
                // A killed process closes its sockets shortly after it stops reading from them.
                // No request has been sent yet.
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => {
                    ProxyConnectError::Gone(format!("breaks off the handshake: {error}"))
                }
                _ => self.handshake_error(tls_error_message(&error)),
            }),
        }
    }
}

/// Classifies a failed connect.
fn connect_error(error: &io::Error) -> ProxyConnectError {
    match error.kind() {
        // The socket does not exist, its process has exited, or its process is just exiting
        // with our connection in the backlog.
        io::ErrorKind::NotFound
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => {
            ProxyConnectError::Gone(format!("is not listening ({error})"))
        }
        _ => ProxyConnectError::Unusable(format!("cannot be reached: {error}")),
    }
}

/// Retries while the listen backlog is full, which is an error for this kind of socket. The
/// caller sets a timeout.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(BACKLOG_RETRY_INTERVAL).await;
            }
            connected => return connected,
        }
    }
}

fn tls_error_message(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => "cannot be trusted: its certificate is not signed by the plugin's \
               certificate-authority-data"
            .to_owned(),
        Some(TlsError::InvalidCertificate(_)) => {
            format!("cannot be trusted: {}", explain_tls_error(error))
        }
        _ => format!("TLS handshake failed: {}", explain_tls_error(error)),
    }
}

impl ListenAddress {
    /// Parses `unix:///PATH` or `https://LOOPBACK:PORT`.
    fn parse(url: &str) -> Result<Self, String> {
        let invalid = |what: &str| {
            Err(format!(
                "plugin returned the proxy URL {:?}, which {what}; it is like unix:///PATH or \
                 https://127.0.0.1:PORT",
                // An invalid URL may contain anything.
                redact_userinfo(url)
            ))
        };
        if let Some(path) = url.strip_prefix("unix://") {
            let path: Vec<u8> = percent_decode_str(path).collect();
            let path = PathBuf::from(OsString::from_vec(path));
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                invalid("has no absolute path")
            };
        }
        let Ok(parsed) = Address::parse(url, Scheme::Https) else {
            return invalid("is not understood");
        };
        if parsed.scheme != Scheme::Https {
            return invalid("is not secured");
        }
        if !parsed.prefix.is_empty() {
            return invalid("has a path");
        }
        let is_loopback = parsed.host == "localhost"
            || parsed
                .host
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        if !is_loopback {
            return invalid("is not on this machine");
        }
        Ok(Self::Tcp {
            host: parsed.host,
            port: parsed.port,
        })
    }
}

fn redact_userinfo(url: &str) -> String {
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    rest.chars().take(200).collect()
}

impl fmt::Debug for ProxyConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProxyConnector")
            .field(&self.proxy.url)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{Ca, ScratchDir, TEST_TIMEOUT};
    use tokio::net::UnixSocket;

    use super::*;
    use crate::Secret;

    #[test]
    fn a_connector_matches_only_the_same_url_and_certificates() {
        let ca = Ca::new("plugin");
        let pair = |name: &str| {
            let leaf = ca.client(name, &[]);
            Certificate {
                chain: Secret::new(leaf.cert_pem),
                key: Secret::new(leaf.key_pem),
            }
        };
        let proxy = ProxyConfig {
            url: "unix:///run/s".to_owned(),
            certificate_authority_data: ca.pem().into_bytes(),
        };
        let one = pair("one");
        let connector = ProxyConnector::new(proxy.clone(), one.clone()).unwrap();
        assert!(connector.matches(&proxy, &one));
        assert!(!connector.matches(&proxy, &pair("two")));
        let mut other_url = proxy.clone();
        other_url.url.push('2');
        assert!(!connector.matches(&other_url, &one));
        let mut other_ca = proxy.clone();
        other_ca.certificate_authority_data = Ca::new("other").pem().into_bytes();
        assert!(!connector.matches(&other_ca, &one));
    }

    #[test]
    fn errors_name_the_fields_of_the_plugins_output() {
        let ca = Ca::new("plugin");
        let (one, two) = (ca.client("one", &[]), ca.client("two", &[]));
        let certificate = |chain: &str, key: &str| Certificate {
            chain: Secret::new(chain),
            key: Secret::new(key),
        };
        let rows = [
            (
                "x",
                certificate(&one.cert_pem, &one.key_pem),
                "certificate-authority-data holds no certificate in PEM",
            ),
            (
                &*ca.pem(),
                certificate("x", &one.key_pem),
                "clientCertificateData holds no certificate in PEM",
            ),
            (
                &*ca.pem(),
                certificate(&one.cert_pem, &two.key_pem),
                "clientKeyData does not belong to clientCertificateData",
            ),
        ];
        for (authority, certificate, expected) in rows {
            let proxy = ProxyConfig {
                url: "unix:///run/s".to_owned(),
                certificate_authority_data: authority.as_bytes().to_vec(),
            };
            assert_eq!(
                ProxyConnector::new(proxy, certificate).unwrap_err(),
                expected
            );
        }
    }

    #[test]
    fn an_exiting_proxy_counts_as_gone() {
        use io::ErrorKind::{
            BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, PermissionDenied,
        };
        for (kind, is_gone) in [
            (NotFound, true),
            (ConnectionRefused, true),
            (ConnectionReset, true),
            (BrokenPipe, true),
            (PermissionDenied, false),
        ] {
            let error = connect_error(&kind.into());
            assert_eq!(
                matches!(error, ProxyConnectError::Gone(_)),
                is_gone,
                "{kind}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unresponsive_listener_on_a_loopback_port_may_be_another_program() {
        let ca = Ca::new("plugin");
        let leaf = ca.client("client", &[]);
        let certificate = Certificate {
            chain: Secret::new(leaf.cert_pem),
            key: Secret::new(leaf.key_pem),
        };
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        // Neither socket ever accepts.
        let _unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let urls = [
            format!("https://{}", tcp.local_addr().unwrap()),
            format!("unix://{}", path.display()),
        ];
        for url in urls {
            let proxy = ProxyConfig {
                url: url.clone(),
                certificate_authority_data: ca.pem().into_bytes(),
            };
            let connector = ProxyConnector::new(proxy, certificate.clone()).unwrap();
            let total = Duration::from_secs(30);
            let tries = if url.starts_with("https") { 2 } else { 1 };
            assert_eq!(connector.attempt_timeout(total) * tries, total, "{url}");
            let opened = connector.open(&[], total).await;
            let (is_gone, cause) = match opened.map(drop) {
                Err(ProxyConnectError::Gone(cause)) => (true, cause),
                Err(ProxyConnectError::Unusable(cause)) => (false, cause),
                Ok(()) => panic!("{url}"),
            };
            assert_eq!(is_gone, url.starts_with("https"), "{url}");
            assert_eq!(cause, "did not accept a connection within 30 s");
        }
    }

    #[tokio::test]
    async fn a_full_listen_backlog_is_retried() {
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut queued = Vec::new();
        let full = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => queued.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let connecting = tokio::spawn(async move { connect_unix(&path).await });
        for _ in 0..=queued.len() {
            let accepted = tokio::time::timeout(TEST_TIMEOUT, listener.accept()).await;
            accepted.unwrap().unwrap();
        }
        connecting.await.unwrap().unwrap();
    }

    #[test]
    fn a_proxy_must_listen_on_this_machine() {
        let tcp = |host: &str, port| {
            Ok(ListenAddress::Tcp {
                host: host.to_owned(),
                port,
            })
        };
        let rows = [
            ("unix:///run/s", Ok(ListenAddress::Unix("/run/s".into()))),
            ("unix:///a%20b/s", Ok(ListenAddress::Unix("/a b/s".into()))),
            (
                "unix:///a%2520%FF/s",
                Ok(ListenAddress::Unix(
                    OsString::from_vec(b"/a%20\xff/s".to_vec()).into(),
                )),
            ),
            ("https://127.0.0.1:1234", tcp("127.0.0.1", 1234)),
            ("https://[::1]:1234/", tcp("::1", 1234)),
            ("https://localhost:1", tcp("localhost", 1)),
            ("unix://run/s", Err("has no absolute path")),
            ("http://127.0.0.1:1", Err("is not secured")),
            ("https://10.0.0.1:1", Err("is not on this machine")),
            ("https://k.example", Err("is not on this machine")),
            ("https://127.0.0.1:1/path", Err("has a path")),
            ("https://me:secret@127.0.0.1:1", Err("is not understood")),
            ("tcp://127.0.0.1:1", Err("is not understood")),
        ];
        for (url, expected) in rows {
            match (ListenAddress::parse(url), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
                (Err(error), Err(expected)) => {
                    assert!(error.contains(expected), "{error}");
                    assert!(!error.contains("secret"), "{error}");
                }
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}

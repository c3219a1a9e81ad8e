//! The way to a plugin's proxy: a socket of this machine, and TLS by which both prove
//! that they belong together (KEP-2718, "Authentication to Proxy", option 1).

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
use skewbridge_api::exec_credential::ProxyConfig;
use skewbridge_stream_io::ReadAhead;
use tokio::net::{TcpStream, UnixStream};

use crate::address::{Address, Scheme};
use crate::connection::Stream;
use crate::credential::Certificate;
use crate::tls::{self, Trust};

/// The name that is asked for on a Unix socket, which has none.
const UNIX_NAME: &str = "localhost";

/// How soon a socket is tried again that has no room: the kernel tells nobody.
const ROOM_AGAIN: Duration = Duration::from_millis(5);

/// Where a proxy listens.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// A proxy with all that a connection to it needs. TLS sessions are remembered in it,
/// so it is kept for as long as the plugin gives the same.
pub(crate) struct Wire {
    proxy: ProxyConfig,
    certificate: Certificate,
    place: Place,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Nobody listens, or who did has just gone, or somebody else has taken its port: the
    /// plugin has to be run again. In words.
    Gone(String),
    /// That would not help. In words.
    Unusable(String),
}

impl Wire {
    /// Reads what a plugin has given.
    pub(super) fn new(proxy: ProxyConfig, certificate: Certificate) -> Result<Self, String> {
        let place = Place::parse(&proxy.url)?;
        let authority = &proxy.certificate_authority_data;
        let (trust, name) = match &place {
            Place::Unix(_) => (Trust::AuthoritiesOfAnyName(authority), UNIX_NAME),
            Place::Tcp { host, .. } => (Trust::Authorities(authority), host.as_str()),
        };
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| "its host is not a name".to_owned())?;
        let config = tls::config(&trust, Some(&certificate)).map_err(|cause| {
            // In the words of the kubeconfig there, and of the plugin here.
            let cause = cause.replace("certificate-authority ", "certificate-authority-data ");
            let cause = cause.replace("client-certificate", "clientCertificateData");
            cause.replace("client-key", "clientKeyData")
        })?;
        Ok(Self {
            proxy,
            certificate,
            place,
            config,
            name,
        })
    }

    /// Whether it leads where this would, by the same means.
    pub(super) fn is(&self, proxy: &ProxyConfig, certificate: &Certificate) -> bool {
        self.proxy == *proxy && self.certificate == *certificate
    }

    /// Where the proxy listens, as the plugin said it.
    pub(crate) fn url(&self) -> &str {
        &self.proxy.url
    }

    /// How much of this time a try to open a connection may take. On a port of loopback
    /// silence has the plugin executed again, too, and then there is a second try.
    pub(crate) fn patience(&self, all: Duration) -> Duration {
        match self.place {
            Place::Tcp { .. } => all / 2,
            Place::Unix(_) => all,
        }
    }

    /// Opens a connection within so much time, and says which of the protocols the proxy
    /// has chosen.
    pub(crate) async fn open(
        &self,
        alpn: &[Vec<u8>],
        patience: Duration,
    ) -> Result<(Stream, Option<Vec<u8>>), Refused> {
        let opened = tokio::time::timeout(patience, self.try_open(alpn)).await;
        opened.unwrap_or_else(|_| {
            Err(self.unusable(format!(
                "did not accept a connection within {} s",
                patience.as_secs_f64()
            )))
        })
    }

    /// Whatever a handshake fails by. A port of loopback is anybody's when the proxy has
    /// gone, and then it fails before anything of ours has been shown. A Unix socket is in a
    /// directory of its own, and nobody else's.
    fn unusable(&self, cause: String) -> Refused {
        match self.place {
            Place::Tcp { .. } => Refused::Gone(cause),
            Place::Unix(_) => Refused::Unusable(cause),
        }
    }

    async fn try_open(&self, alpn: &[Vec<u8>]) -> Result<(Stream, Option<Vec<u8>>), Refused> {
        let connected: Result<Stream, io::Error> = match &self.place {
            Place::Unix(path) => connect_unix(path)
                .await
                .map(|stream| Box::new(stream) as Stream),
            Place::Tcp { host, port } => {
                TcpStream::connect((host.as_str(), *port))
                    .await
                    .map(|stream| {
                        // A socket that refuses the option still works.
                        let _ = stream.set_nodelay(true);
                        Box::new(stream) as Stream
                    })
            }
        };
        let stream = connected.map_err(|error| unconnected(&error))?;
        let connector = tls::connector(&self.config, alpn);
        match connector
            .connect(self.name.clone(), ReadAhead::new(stream))
            .await
        {
            Ok(stream) => {
                let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                Ok((Box::new(stream), chosen))
            }
            Err(error) => Err(match error.kind() {
                // Whoever is killed lets go of its sockets a moment after it has
                // ceased to read from them. No request has been sent yet.
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => {
                    Refused::Gone(format!("breaks off the handshake: {error}"))
                }
                _ => self.unusable(explain(&error)),
            }),
        }
    }
}

/// Why nobody has been connected to.
fn unconnected(error: &io::Error) -> Refused {
    match error.kind() {
        // A socket that is gone, that its owner has left, or that its owner leaves just now,
        // with us in the queue.
        io::ErrorKind::NotFound
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => {
            Refused::Gone(format!("is not there: nobody listens ({error})"))
        }
        _ => Refused::Unusable(format!("cannot be reached: {error}")),
    }
}

/// Waits for as long as whoever listens has no room for one more, which is an error on
/// this kind of socket. The caller has a time limit.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(ROOM_AGAIN).await;
            }
            connected => return connected,
        }
    }
}

fn explain(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => "cannot be trusted: its certificate is not signed by the plugin's \
               certificate-authority-data"
            .to_owned(),
        Some(TlsError::InvalidCertificate(_)) => {
            format!("cannot be trusted: {}", tls::explain(error))
        }
        _ => format!("does not speak TLS with us: {}", tls::explain(error)),
    }
}

impl Place {
    /// Reads `unix:///PATH` or `https://LOOPBACK:PORT`.
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "plugin returned the proxy URL {:?}, which {what}; it is like unix:///PATH or \
                 https://127.0.0.1:PORT",
                // A wrong one may hold anything.
                without_user(url)
            ))
        };
        if let Some(path) = url.strip_prefix("unix://") {
            let path: Vec<u8> = percent_decode_str(path).collect();
            let path = PathBuf::from(OsString::from_vec(path));
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                wrong("has no absolute path")
            };
        }
        let Ok(address) = Address::parse(url, Scheme::Https) else {
            return wrong("is not understood");
        };
        if address.scheme != Scheme::Https {
            return wrong("is not secured");
        }
        if !address.prefix.is_empty() {
            return wrong("has a path");
        }
        let here = address.host == "localhost"
            || address
                .host
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        if !here {
            return wrong("is not on this machine");
        }
        Ok(Self::Tcp {
            host: address.host,
            port: address.port,
        })
    }
}

fn without_user(url: &str) -> String {
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    rest.chars().take(200).collect()
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wire").field(&self.proxy.url).finish()
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{Ca, PATIENCE, ScratchDir};
    use tokio::net::UnixSocket;

    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_wire_is_kept_for_the_same_url_and_certificates() {
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
        let wire = Wire::new(proxy.clone(), one.clone()).unwrap();
        assert!(wire.is(&proxy, &one));
        assert!(!wire.is(&proxy, &pair("two")));
        let mut elsewhere = proxy.clone();
        elsewhere.url.push('2');
        assert!(!wire.is(&elsewhere, &one));
        let mut believing = proxy.clone();
        believing.certificate_authority_data = Ca::new("other").pem().into_bytes();
        assert!(!wire.is(&believing, &one));
    }

    #[test]
    fn what_a_plugin_gives_is_called_by_the_plugins_names() {
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
            assert_eq!(Wire::new(proxy, certificate).unwrap_err(), expected);
        }
    }

    #[test]
    fn who_is_just_leaving_does_not_listen_either() {
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
            let refused = unconnected(&kind.into());
            assert_eq!(matches!(refused, Refused::Gone(_)), is_gone, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_on_a_port_of_loopback_may_be_a_stranger() {
        let ca = Ca::new("plugin");
        let leaf = ca.client("client", &[]);
        let certificate = Certificate {
            chain: Secret::new(leaf.cert_pem),
            key: Secret::new(leaf.key_pem),
        };
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        // Neither ever accepts.
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
            let wire = Wire::new(proxy, certificate.clone()).unwrap();
            let all = Duration::from_secs(30);
            let tries = if url.starts_with("https") { 2 } else { 1 };
            assert_eq!(wire.patience(all) * tries, all, "{url}");
            let opened = wire.open(&[], all).await;
            let (is_gone, cause) = match opened.map(drop) {
                Err(Refused::Gone(cause)) => (true, cause),
                Err(Refused::Unusable(cause)) => (false, cause),
                Ok(()) => panic!("{url}"),
            };
            assert_eq!(is_gone, url.starts_with("https"), "{url}");
            assert_eq!(cause, "did not accept a connection within 30 s");
        }
    }

    #[tokio::test]
    async fn a_socket_without_room_is_waited_for() {
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let connecting = tokio::spawn(async move { connect_unix(&path).await });
        for _ in 0..=waiting.len() {
            let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await;
            accepted.unwrap().unwrap();
        }
        connecting.await.unwrap().unwrap();
    }

    #[test]
    fn a_proxy_listens_on_this_machine() {
        let tcp = |host: &str, port| {
            Ok(Place::Tcp {
                host: host.to_owned(),
                port,
            })
        };
        let rows = [
            ("unix:///run/s", Ok(Place::Unix("/run/s".into()))),
            ("unix:///a%20b/s", Ok(Place::Unix("/a b/s".into()))),
            (
                "unix:///a%2520%FF/s",
                Ok(Place::Unix(
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
            match (Place::parse(url), expected) {
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

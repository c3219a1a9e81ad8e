//! Opens byte streams to a server, below TLS: directly, or through the proxy of
//! `--egress-selector-config-file`.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::BytesMut;
use http::StatusCode;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use skewbridge_http_engine::http_connect::{InvalidResponse, TunnelError, http_connect};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::transport::Transport;
use skewbridge_stream_io::ReadAhead;

/// How a byte stream to a server is opened.
#[derive(Debug, Clone)]
pub enum Dialer {
    /// By TCP to the server itself.
    Direct,
    /// By HTTP CONNECT at a proxy.
    HttpConnect(Arc<Proxy>),
}

/// A proxy and how it is reached.
#[derive(Debug)]
pub enum Proxy {
    /// By TCP.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// By TCP with TLS.
    Tls {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// The server name that its certificate must match.
        server_name: ServerName<'static>,
        /// Its CA and the certificate of this bridge. Replaced when the files change.
        tls: Arc<ClientConfig>,
    },
    /// A Unix socket.
    Uds(PathBuf),
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "http://{}", authority(host, *port)),
            Self::Tls { host, port, .. } => write!(f, "https://{}", authority(host, *port)),
            Self::Uds(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Why there is no byte stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The server itself cannot be reached.
    #[error(transparent)]
    Direct(io::Error),
    /// The proxy failed or refused the tunnel.
    #[error("--egress-selector-config-file: the proxy at {proxy} {cause}")]
    Proxy {
        proxy: Arc<Proxy>,
        cause: EgressProxyError,
    },
}

/// Why a proxy opened no tunnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EgressProxyError {
    #[error("cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error("closed the connection before it responded to CONNECT {to}: {cause}")]
    ConnectionLost { to: String, cause: io::Error },
    #[error("answered {} to CONNECT {to}", status.as_u16())]
    Refused { to: String, status: StatusCode },
    #[error("sent an invalid HTTP/1.1 response to CONNECT {to}: {cause}")]
    InvalidResponse { to: String, cause: InvalidResponse },
    #[error("did not answer CONNECT {to} within {seconds} s")]
    Timeout { to: String, seconds: u64 },
}

impl Dialer {
    /// Opens a byte stream. The caller sets the timeout.
    pub(crate) async fn dial(
        &self,
        host: &str,
        port: u16,
    ) -> Result<ReadAhead<Transport>, DialError> {
        match self {
            Self::Direct => match tcp(host, port).await {
                Ok(tcp) => Ok(ReadAhead::new(Transport::Tcp(tcp))),
                Err(error) => Err(DialError::Direct(error)),
            },
            // Boxed: its state is large, and most connections are direct.
            Self::HttpConnect(proxy) => match Box::pin(proxy.dial(host, port)).await {
                Ok(tunnel) => Ok(tunnel),
                Err(cause) => Err(DialError::Proxy {
                    proxy: proxy.clone(),
                    cause,
                }),
            },
        }
    }

    /// The error after the timeout.
    pub(crate) fn timed_out(&self, host: &str, port: u16, seconds: u64) -> DialError {
        match self {
            Self::Direct => DialError::Direct(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no response within {seconds} s"),
            )),
            Self::HttpConnect(proxy) => DialError::Proxy {
                proxy: proxy.clone(),
                cause: EgressProxyError::Timeout {
                    to: authority(host, port),
                    seconds,
                },
            },
        }
    }
}

impl Proxy {
    async fn dial(&self, host: &str, port: u16) -> Result<ReadAhead<Transport>, EgressProxyError> {
        let mut transport = self
            .connect_to_proxy()
            .await
            .map_err(EgressProxyError::Unreachable)?;
        let rest = connect(&mut transport, authority(host, port)).await?;
        Ok(ReadAhead::with_buffered(rest, transport))
    }

    async fn connect_to_proxy(&self) -> io::Result<Transport> {
        match self {
            Self::Tcp { host, port } => Ok(Transport::Tcp(tcp(host, *port).await?)),
            Self::Uds(path) => Ok(Transport::Unix(UnixStream::connect(path).await?)),
            Self::Tls {
                host,
                port,
                server_name,
                tls,
            } => {
                let tcp = ReadAhead::new(tcp(host, *port).await?);
                let tls = TlsConnector::from(tls.clone())
                    .connect(server_name.clone(), tcp)
                    .await
                    .map_err(|error| io::Error::new(error.kind(), format!("TLS: {error}")))?;
                Ok(Transport::Tls(Box::new(tls)))
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((host, port)).await?;
    crate::tcp::tune(&tcp);
    Ok(tcp)
}

/// Requests a tunnel; returns the bytes that followed the response head.
async fn connect(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    to: String,
) -> Result<BytesMut, EgressProxyError> {
    match http_connect(io, &to, None).await {
        Ok(rest) => Ok(rest),
        Err(TunnelError::Io(cause)) => Err(EgressProxyError::ConnectionLost { to, cause }),
        Err(TunnelError::Closed) => Err(EgressProxyError::ConnectionLost {
            to,
            cause: io::ErrorKind::UnexpectedEof.into(),
        }),
        Err(TunnelError::Refused(status)) => Err(EgressProxyError::Refused { to, status }),
        Err(TunnelError::InvalidResponse(cause)) => {
            Err(EgressProxyError::InvalidResponse { to, cause })
        }
    }
}

/// `host:port`, with brackets where it needs them.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn connect_is_one_request_and_an_endless_response_is_not_read_to_its_end() {
        let expected = "CONNECT [fd00::1]:6443 HTTP/1.1\r\nHost: [fd00::1]:6443\r\n\r\n";
        let (mut ours, mut proxys) = duplex(256);
        let proxy = tokio::spawn(async move {
            let mut asked = vec![0; expected.len()];
            proxys.read_exact(&mut asked).await.unwrap();
            proxys.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
            let mut sent = 0;
            while proxys.write_all(b"More: and more\r\n").await.is_ok() {
                sent += 16;
            }
            (asked, sent)
        });
        let to = authority("fd00::1", 6443);
        let answered = connect(&mut ours, to).await;
        drop(ours);
        let (asked, sent) = proxy.await.unwrap();
        assert_eq!(String::from_utf8(asked).unwrap(), expected);
        let expected = "sent an invalid HTTP/1.1 response to CONNECT [fd00::1]:6443: its head is \
                        longer than 16384 bytes";
        assert_eq!(answered.unwrap_err().to_string(), expected);
        assert!(sent < 16 * 1024 + 2048, "{sent}");
    }

    #[tokio::test]
    async fn bytes_that_arrive_with_the_connect_response_are_read_first() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let sent = async {
            let (mut io, _) = listener.accept().await.unwrap();
            io.write_all(b"HTTP/1.1 200 OK\r\n\r\nfirst").await.unwrap();
            io.write_all(b" and later").await.unwrap();
        };
        let received = async {
            let dialer = Dialer::HttpConnect(Arc::new(proxy));
            let mut tunnel = dialer.dial("192.0.2.1", 6443).await.unwrap();
            let mut received = [0; 15];
            tunnel.read_exact(&mut received).await.unwrap();
            received
        };
        let ((), received) = tokio::join!(sent, received);
        assert_eq!(received.escape_ascii().to_string(), "first and later");
    }

    #[test]
    fn a_proxy_is_named_as_a_url() {
        let tcp = |host: &str| Proxy::Tcp {
            host: host.to_owned(),
            port: 8131,
        };
        assert_eq!(tcp("k.example").to_string(), "http://k.example:8131");
        assert_eq!(tcp("::1").to_string(), "http://[::1]:8131");
        let uds = Proxy::Uds("/run/konnectivity.sock".into());
        assert_eq!(uds.to_string(), "unix:///run/konnectivity.sock");
    }
}

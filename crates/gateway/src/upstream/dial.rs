//! The way to a server, before TLS: straight, or through the proxy that
//! `--egress-selector-config-file` names.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::BytesMut;
use http::{Method, StatusCode};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use skewbridge_h1::{HeadEnd, HeadError, parse_response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::transport::Wire;
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
        /// What its certificate must be for.
        server_name: ServerName<'static>,
        /// Its CA and our certificate. Replaced when the files change.
        tls: Arc<ClientConfig>,
    },
    /// By a socket of this machine.
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
    /// The proxy does not do what it is there for.
    #[error("--egress-selector-config-file: the proxy at {proxy} {cause}")]
    Proxy {
        proxy: Arc<Proxy>,
        cause: ProxyError,
    },
}

/// What is wrong with a proxy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error("broke off before it answered CONNECT {to}: {cause}")]
    BrokeOff { to: String, cause: io::Error },
    #[error("answered {} to CONNECT {to}", status.as_u16())]
    Refused { to: String, status: StatusCode },
    #[error("answered what is not HTTP/1.1 to CONNECT {to}: {cause}")]
    NotHttp { to: String, cause: NotHttp },
    #[error("did not answer CONNECT {to} within {seconds} s")]
    Silent { to: String, seconds: u64 },
}

impl Dialer {
    /// Opens a byte stream. Whoever asks sets a time limit.
    pub(crate) async fn dial(&self, host: &str, port: u16) -> Result<ReadAhead<Wire>, DialError> {
        match self {
            Self::Direct => match tcp(host, port).await {
                Ok(tcp) => Ok(ReadAhead::new(Wire::Tcp(tcp))),
                Err(error) => Err(DialError::Direct(error)),
            },
            // Boxed: its state is large, and most connections do without it.
            Self::HttpConnect(proxy) => match Box::pin(proxy.dial(host, port)).await {
                Ok(tunnel) => Ok(tunnel),
                Err(cause) => Err(DialError::Proxy {
                    proxy: proxy.clone(),
                    cause,
                }),
            },
        }
    }

    /// Says that the limit has passed.
    pub(crate) fn timed_out(&self, host: &str, port: u16, seconds: u64) -> DialError {
        match self {
            Self::Direct => DialError::Direct(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {seconds} s"),
            )),
            Self::HttpConnect(proxy) => DialError::Proxy {
                proxy: proxy.clone(),
                cause: ProxyError::Silent {
                    to: authority(host, port),
                    seconds,
                },
            },
        }
    }
}

impl Proxy {
    async fn dial(&self, host: &str, port: u16) -> Result<ReadAhead<Wire>, ProxyError> {
        let mut wire = self.reach().await.map_err(ProxyError::Unreachable)?;
        let rest = connect(&mut wire, authority(host, port)).await?;
        Ok(ReadAhead::with_buffered(rest, wire))
    }

    async fn reach(&self) -> io::Result<Wire> {
        match self {
            Self::Tcp { host, port } => Ok(Wire::Tcp(tcp(host, *port).await?)),
            Self::Uds(path) => Ok(Wire::Unix(UnixStream::connect(path).await?)),
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
                Ok(Wire::Tls(Box::new(tls)))
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((host, port)).await?;
    crate::tcp::tune(&tcp);
    Ok(tcp)
}

/// Asks for a tunnel, and gives what came behind the answer.
async fn connect(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    to: String,
) -> Result<BytesMut, ProxyError> {
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    let broke_off = |to, cause| ProxyError::BrokeOff { to, cause };
    let asked = async {
        io.write_all(request.as_bytes()).await?;
        io.flush().await
    };
    if let Err(cause) = asked.await {
        return Err(broke_off(to, cause));
    }
    let mut answer = Answer::default();
    loop {
        match answer.read() {
            Ok(None) => {}
            Ok(Some((StatusCode::OK, rest))) => return Ok(rest),
            Ok(Some((status, _))) => return Err(ProxyError::Refused { to, status }),
            Err(cause) => return Err(ProxyError::NotHttp { to, cause }),
        }
        answer.bytes.reserve(ANSWER_CHUNK);
        match io.read_buf(&mut answer.bytes).await {
            Ok(0) => return Err(broke_off(to, io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(cause) => return Err(broke_off(to, cause)),
        }
    }
}

/// The longest head of an answer that is read: a proxy has little to say, and
/// a server that is no proxy may have much.
const MAX_ANSWER: usize = 16 * 1024;

/// How much of it is asked for at once.
const ANSWER_CHUNK: usize = 1024;

/// With what each answer begins. Something else is noticed at once, and not
/// when there is no blank line in it.
const BEGINNING: &[u8] = b"HTTP/1.";

/// The answer to CONNECT, as far as it has come.
#[derive(Debug, Default)]
struct Answer {
    bytes: BytesMut,
    end: HeadEnd,
}

/// Why an answer cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotHttp {
    #[error("it does not begin with HTTP/1.")]
    Beginning,
    #[error("its head is longer than {MAX_ANSWER} bytes")]
    TooLong,
    #[error(transparent)]
    Head(HeadError),
}

impl Answer {
    /// The status and what comes behind the head, once that is there.
    fn read(&mut self) -> Result<Option<(StatusCode, BytesMut)>, NotHttp> {
        let before = self.bytes.len();
        if !(BEGINNING.iter().zip(&self.bytes)).all(|(expected, byte)| expected == byte) {
            return Err(NotHttp::Beginning);
        }
        if self.end.reached(&self.bytes) {
            // No body follows in any case, as after HEAD: behind 200 there is
            // the tunnel, whatever length it claims (RFC 9110, 9.3.6), and
            // behind anything else we leave.
            let head = parse_response(&mut self.bytes, &Method::HEAD).map_err(NotHttp::Head)?;
            if let Some(head) = head
                && before - self.bytes.len() <= MAX_ANSWER
            {
                return Ok(Some((head.status, self.bytes.split())));
            }
        }
        if before > MAX_ANSWER {
            return Err(NotHttp::TooLong);
        }
        Ok(None)
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
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    /// What is understood of bytes that come in these pieces.
    fn read(pieces: &[&[u8]]) -> Result<Option<(StatusCode, Vec<u8>)>, NotHttp> {
        let mut answer = Answer::default();
        for (at, piece) in pieces.iter().enumerate() {
            answer.bytes.extend_from_slice(piece);
            if let Some((status, rest)) = answer.read()? {
                let mut rest = rest.to_vec();
                // What comes later is read from the tunnel.
                rest.extend(pieces[at + 1..].iter().copied().flatten());
                return Ok(Some((status, rest)));
            }
        }
        Ok(None)
    }

    /// Cuts bytes into pieces of these lengths and a last one.
    fn cut<'a>(mut bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        for length in lengths {
            let (piece, rest) = bytes.split_at((*length).min(bytes.len()));
            pieces.push(piece);
            bytes = rest;
        }
        pieces.push(bytes);
        pieces
    }

    fn answers() -> impl Strategy<Value = Vec<u8>> {
        let status = prop_oneof![Just(200_u16), 200_u16..600];
        let field = "[A-Z][a-z-]{0,20}: [ -~]{0,30}\r\n";
        let fields = prop::collection::vec(field, 0..8);
        let padding = prop_oneof![Just(0), 0..2 * MAX_ANSWER];
        let rest = prop::collection::vec(any::<u8>(), 0..64);
        let good = (status, fields, padding, rest).prop_map(|(status, fields, padding, rest)| {
            let (fields, padding) = (fields.concat(), "x".repeat(padding));
            let head = format!("HTTP/1.1 {status} Said\r\n{fields}Pad: {padding}\r\n\r\n");
            [head.as_bytes(), &rest].concat()
        });
        let noise = prop::collection::vec(any::<u8>(), 0..64);
        let nearly = prop::collection::vec(any::<u8>(), 0..64)
            .prop_map(|rest| [b"HTTP/1.", rest.as_slice()].concat());
        prop_oneof![6 => good, 1 => noise, 1 => nearly]
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_is_understood_the_same(
            bytes in answers(),
            lengths in prop::collection::vec(0_usize..3000, 0..20),
        ) {
            prop_assert_eq!(read(&cut(&bytes, &lengths)), read(&[&bytes]));
        }

        #[test]
        fn what_comes_behind_the_answer_belongs_to_the_tunnel(
            rest in prop::collection::vec(any::<u8>(), 0..64),
            lengths in prop::collection::vec(1_usize..40, 0..8),
        ) {
            let head = b"HTTP/1.1 200 Connection established\r\nContent-Length: 3\r\n\r\n";
            let bytes = [head.as_slice(), &rest].concat();
            prop_assert_eq!(read(&cut(&bytes, &lengths)), Ok(Some((StatusCode::OK, rest))));
        }
    }

    #[test]
    fn answers_that_are_none_are_told_apart() {
        let long = format!("HTTP/1.1 200 OK\r\nPad: {}\r\n\r\n", "x".repeat(MAX_ANSWER));
        let table: [(&[u8], _); 7] = [
            (b"", Ok(None)),
            (b"HTT", Ok(None)),
            (b"HTTP/1.1 200 OK\r\n", Ok(None)),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Err(NotHttp::Beginning)),
            // An alert: it speaks TLS, and we do not.
            (b"\x15\x03\x01\x00\x02\x02\x46", Err(NotHttp::Beginning)),
            (b"HTTP/2 200\r\n\r\n", Err(NotHttp::Beginning)),
            (long.as_bytes(), Err(NotHttp::TooLong)),
        ];
        for (bytes, expected) in table {
            assert_eq!(read(&[bytes]), expected, "{}", bytes.escape_ascii());
        }
        let malformed = read(&[b"HTTP/1.1 2x0 OK\r\n\r\n"]);
        assert!(matches!(malformed, Err(NotHttp::Head(_))), "{malformed:?}");
        let http10 = read(&[b"HTTP/1.0 200 OK\r\n\r\n"]);
        assert_eq!(http10, Ok(Some((StatusCode::OK, Vec::new()))));
    }

    #[tokio::test]
    async fn the_question_is_one_request_and_an_endless_answer_is_not_read_to_its_end() {
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
        let expected = "answered what is not HTTP/1.1 to CONNECT [fd00::1]:6443: its head is \
                        longer than 16384 bytes";
        assert_eq!(answered.unwrap_err().to_string(), expected);
        assert!(sent < MAX_ANSWER + 2048, "{sent}");
    }

    #[tokio::test]
    async fn a_server_that_speaks_first_is_heard_from_its_first_byte() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let said = async {
            let (mut io, _) = listener.accept().await.unwrap();
            io.write_all(b"HTTP/1.1 200 OK\r\n\r\nfirst").await.unwrap();
            io.write_all(b" and later").await.unwrap();
        };
        let heard = async {
            let dialer = Dialer::HttpConnect(Arc::new(proxy));
            let mut tunnel = dialer.dial("192.0.2.1", 6443).await.unwrap();
            let mut heard = [0; 15];
            tunnel.read_exact(&mut heard).await.unwrap();
            heard
        };
        let ((), heard) = tokio::join!(said, heard);
        assert_eq!(heard.escape_ascii().to_string(), "first and later");
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

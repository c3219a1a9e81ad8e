//! Clients that expose a server's responses, byte for byte where that matters.

mod http1;
mod http2;

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

pub use http1::{H1Client, Head};
pub use http2::{H2Client, H2Stream};

use crate::pki::{Ca, Leaf, client_config};
use crate::{Connection, h1_codec};

/// How a client connects.
#[derive(Clone, Debug)]
pub struct TlsClient {
    /// The CAs that it trusts.
    pub roots: RootCertStore,
    /// The certificate it presents, if any.
    pub identity: Option<Leaf>,
    /// The protocols that it offers, in order of preference.
    pub alpn: Vec<&'static str>,
    /// The name that the server's certificate has to have.
    pub server_name: &'static str,
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP/1.1 or HTTP/2.
    pub version: http::Version,
    /// The status code.
    pub status: u16,
    /// The headers in order; over HTTP/1.1 in wire case.
    pub headers: Vec<(String, String)>,
    /// The body, with its chunks joined.
    pub body: Bytes,
    /// The trailers, in the same form as the headers.
    pub trailers: Vec<(String, String)>,
}

impl TlsClient {
    /// A client that trusts `ca`, presents nothing and offers no protocol.
    pub fn new(ca: &Ca) -> Self {
        Self {
            roots: ca.roots(),
            identity: None,
            alpn: Vec::new(),
            server_name: "localhost",
        }
    }

    /// Presents `leaf`.
    #[must_use]
    pub fn identity(mut self, leaf: &Leaf) -> Self {
        self.identity = Some(leaf.clone());
        self
    }

    /// Offers these protocols.
    #[must_use]
    pub fn alpn(mut self, protocols: &[&'static str]) -> Self {
        self.alpn = protocols.to_vec();
        self
    }

    /// Connects and performs the handshake. With TLS 1.3 a server's rejection of the client
    /// certificate is reported only by the first read.
    pub async fn connect(&self, addr: SocketAddr, server_name: &str) -> io::Result<Connection> {
        let config = client_config(&self.roots, self.identity.as_ref(), &self.alpn);
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| h1_codec::invalid("not a server name"))?;
        let tcp = TcpStream::connect(addr).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(config).connect(name, tcp).await?;
        Ok(BufReader::new(TlsStream::from(tls)))
    }

    /// Connects with HTTP/1.1.
    pub async fn http1(&self, addr: SocketAddr) -> io::Result<H1Client> {
        let client = self.clone().alpn(&["http/1.1"]);
        Ok(H1Client::over(
            client.connect(addr, client.server_name).await?,
        ))
    }

    /// Connects with HTTP/2.
    pub async fn http2(&self, addr: SocketAddr) -> io::Result<H2Client> {
        let client = self.clone().alpn(&["h2"]);
        H2Client::over(client.connect(addr, client.server_name).await?)
            .await
            .map_err(io::Error::other)
    }
}

impl Response {
    /// The first value of a header, case-insensitively.
    pub fn header(&self, name: &str) -> Option<&str> {
        h1_codec::find(&self.headers, name)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends one GET over HTTP/1.1 on its own connection.
///
/// # Panics
/// When there is no complete response.
pub async fn get(addr: SocketAddr, ca: &Ca, path: &str) -> Response {
    let mut client = TlsClient::new(ca).http1(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap()
}

//! A small HTTP/1.1 client over TLS: one request after the other on a persistent connection.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use skewbridge_http_engine::http1::{
    BodyEvent, ResponseHead, parse_response, write_headers, write_request_line,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::pki::SERVER_NAME;

/// One connection; dropping it closes it.
#[derive(Debug)]
pub(crate) struct H1Connection {
    io: TlsStream<TcpStream>,
    received: BytesMut,
}

impl H1Connection {
    pub(crate) async fn open(config: Arc<ClientConfig>, address: SocketAddr) -> Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(SERVER_NAME)?;
        Ok(Self {
            io: TlsConnector::from(config).connect(name, tcp).await?,
            received: BytesMut::new(),
        })
    }

    /// Sends a request, and returns the status when the whole body has arrived.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<StatusCode> {
        let head = self.send_head(request).await?;
        let mut body = head.framing.decoder();
        loop {
            match body.decode(&mut self.received)? {
                Some(BodyEvent::Data(_)) => {}
                Some(BodyEvent::Trailers(_) | BodyEvent::End) => break,
                None => self.read().await?,
            }
        }
        ensure!(head.keep_alive, "the server closes the connection");
        Ok(head.status)
    }

    /// Sends a request, and returns the head of the response.
    pub(crate) async fn send_head(&mut self, request: &[u8]) -> Result<ResponseHead> {
        self.io.write_all(request).await?;
        self.io.flush().await?;
        loop {
            if let Some(head) = parse_response(&mut self.received, &Method::GET)? {
                return Ok(head);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<()> {
        let length = self.io.read_buf(&mut self.received).await;
        let length = length.context("the connection was closed")?;
        ensure!(length > 0, "the connection was closed");
        Ok(())
    }
}

/// The bytes of a GET.
pub(crate) fn get_request(path: &str, token: Option<&str>) -> Bytes {
    let mut headers = String::new();
    if let Some(token) = token {
        headers = format!("authorization: Bearer {token}\r\n");
    }
    format!(
        "GET {path} HTTP/1.1\r\nhost: {SERVER_NAME}\r\nuser-agent: skewbridge-bench\r\n\
         accept: application/json\r\n{headers}\r\n"
    )
    .into()
}

/// The bytes of a GET with these headers as well.
pub(crate) fn get_request_with(path: &str, headers: &HeaderMap) -> Bytes {
    let mut request = BytesMut::new();
    write_request_line(&mut request, &Method::GET, path);
    request.extend_from_slice(format!("host: {SERVER_NAME}\r\n").as_bytes());
    write_headers(&mut request, headers);
    request.extend_from_slice(b"\r\n");
    request.freeze()
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{ApiServer, Ca, Options, Reply};

    use super::*;
    use crate::pki::{self, Pki};
    use crate::scratch_dir::ScratchDir;

    #[tokio::test]
    async fn requests_follow_each_other_on_a_connection() {
        let scratch = ScratchDir::create().unwrap();
        let ca = Ca::new("cluster");
        let pki = Pki::issued_by(&ca, &scratch).unwrap();
        let leaf = ca.server(&[SERVER_NAME]);
        let server = ApiServer::start(Options::new(leaf), |request| {
            assert_eq!(request.header("authorization"), Some("Bearer abc"));
            Reply::json(r#"{"kind":"ConfigMap"}"#)
        })
        .await;
        let config = pki::h1_client(&pki.ca).unwrap();
        let mut connection = H1Connection::open(config, server.addr()).await.unwrap();
        let request = get_request("/api/v1/namespaces/a/configmaps/b", Some("abc"));
        for _ in 0..3 {
            assert_eq!(connection.send(&request).await.unwrap(), 200);
        }
        assert_eq!(server.connections(), 1);
    }
}

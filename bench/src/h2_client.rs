//! A small HTTP/2 client over TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{Method, Request, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::pki::{self, SERVER_NAME};
use crate::process::OwnedProcess;

/// A server that listens but does not respond 2xx by then has failed.
const SERVE_TIMEOUT: Duration = Duration::from_secs(20);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// One connection; dropping it closes it with all its streams.
#[derive(Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Connection {
    pub(crate) async fn open(config: Arc<ClientConfig>, address: SocketAddr) -> Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(SERVER_NAME)?;
        let tls = TlsConnector::from(config).connect(name, tcp).await?;
        let (requests, connection) = h2::client::handshake(tls).await?;
        let driver = tokio::spawn(async move {
            // Every stream reports a failure of the connection, so the result is ignored here.
            let _ = connection.await;
        });
        Ok(Self { requests, driver })
    }

    /// Sends a GET as soon as the server allows one more stream.
    pub(crate) async fn get(&mut self, path: &str) -> Result<ResponseFuture> {
        let request = Request::builder()
            .method(Method::GET)
            .uri(format!("https://{SERVER_NAME}{path}"))
            .header("user-agent", "skewbridge-bench")
            .header("accept", "application/json")
            .body(())?;
        let mut requests = self.requests.clone().ready().await?;
        let (response, _) = requests.send_request(request, true)?;
        Ok(response)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Waits until `server` responds to `path` with 2xx.
pub(crate) async fn wait_until_serving(
    server: &OwnedProcess,
    address: SocketAddr,
    ca: &Path,
    path: &str,
) -> Result<()> {
    let config = pki::h2_client(ca)?;
    server.until_listening(address).await?;
    let deadline = Instant::now() + SERVE_TIMEOUT;
    loop {
        let attempt = timeout(ATTEMPT_TIMEOUT, status(config.clone(), address, path)).await;
        let wrong = match attempt.context("no answer").flatten() {
            Ok(status) if status.is_success() => return Ok(()),
            Ok(status) => format!("the server answers {status}"),
            Err(error) => format!("{error:#}"),
        };
        server.ensure_running()?;
        if Instant::now() > deadline {
            let words = server.log_tail();
            bail!("{} does not serve {path}: {wrong}{words}", server.name());
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn status(config: Arc<ClientConfig>, address: SocketAddr, path: &str) -> Result<StatusCode> {
    let mut connection = Connection::open(config, address).await?;
    let mut response = connection.get(path).await?.await?;
    while let Some(chunk) = response.body_mut().data().await {
        let length = chunk?.len();
        response
            .body_mut()
            .flow_control()
            .release_capacity(length)?;
    }
    ensure!(
        response.body().is_end_stream(),
        "the response was truncated"
    );
    Ok(response.status())
}

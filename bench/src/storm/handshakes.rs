//! TLS handshakes of many clients with certificates, as when all kubelets connect again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::pki::SERVER_NAME;

/// One handshake, also behind thousands of others.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_mins(1);

/// The sessions that a client remembers: it connects to one server.
const REMEMBERED_SESSIONS: usize = 4;

/// How connections begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Handshake {
    /// With both certificates.
    Full,
    /// With a session ticket of an earlier connection.
    Resumed,
}

impl Handshake {
    pub(super) const BOTH: [Self; 2] = [Self::Full, Self::Resumed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
        }
    }

    /// A client with its own sessions.
    fn client(self, base: &ClientConfig) -> Arc<ClientConfig> {
        let mut config = base.clone();
        config.resumption = match self {
            Self::Full => Resumption::disabled(),
            Self::Resumed => Resumption::in_memory_sessions(REMEMBERED_SESSIONS),
        };
        Arc::new(config)
    }

    fn check(self, tls: &TlsStream<TcpStream>) -> Result<()> {
        let kind = tls.get_ref().1.handshake_kind();
        let is_resumed = kind == Some(HandshakeKind::Resumed);
        ensure!(
            is_resumed == (self == Self::Resumed),
            "the handshake was {kind:?}, not {}",
            self.name()
        );
        Ok(())
    }
}

/// Open connections, and how long it took until all of them were.
pub(super) struct Burst {
    pub(super) connections: Vec<TlsStream<TcpStream>>,
    pub(super) elapsed: Duration,
}

/// Opens connections at the same time, and keeps them open. Any error is one of the burst.
pub(super) async fn burst(base: &ClientConfig, address: SocketAddr, count: u32) -> Result<Burst> {
    let start = Instant::now();
    let config = Handshake::Full.client(base);
    let mut handshakes = JoinSet::new();
    for _ in 0..count {
        handshakes.spawn(connect(config.clone(), address));
    }
    let mut connections = Vec::new();
    while let Some(done) = handshakes.join_next().await {
        let number = connections.len();
        let done = done?.with_context(|| format!("after {number} of {count} handshakes"))?;
        connections.push(done);
    }
    Ok(Burst {
        connections,
        elapsed: start.elapsed(),
    })
}

/// Handshakes of one round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handshakes {
    pub(super) count: u32,
    pub(super) elapsed: Duration,
}

/// This many clients connect again and again for `time`.
pub(super) async fn repeat(
    kind: Handshake,
    base: &ClientConfig,
    address: SocketAddr,
    clients: u32,
    time: Duration,
) -> Result<Handshakes> {
    let mut configs = Vec::new();
    for _ in 0..clients {
        let config = kind.client(base);
        // The first handshake of a client is a full one, and gives it a ticket.
        close(connect(config.clone(), address).await?).await?;
        configs.push(config);
    }
    let start = Instant::now();
    let deadline = start + time;
    let mut running = JoinSet::new();
    for config in configs {
        running.spawn(async move {
            let mut count = 0;
            while Instant::now() < deadline {
                let tls = connect(config.clone(), address).await?;
                kind.check(&tls)?;
                close(tls).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(done) = running.join_next().await {
        count += done??;
    }
    Ok(Handshakes {
        count,
        elapsed: start.elapsed(),
    })
}

async fn connect(config: Arc<ClientConfig>, address: SocketAddr) -> Result<TlsStream<TcpStream>> {
    let connect = async {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(SERVER_NAME)?;
        anyhow::Ok(TlsConnector::from(config).connect(name, tcp).await?)
    };
    timeout(HANDSHAKE_TIMEOUT, connect)
        .await
        .with_context(|| format!("no handshake within {HANDSHAKE_TIMEOUT:?}"))?
}

/// Ends a connection without a request. The tickets of the server are read before its end.
async fn close(mut tls: TlsStream<TcpStream>) -> Result<()> {
    let closing = async {
        tls.shutdown().await?;
        let mut received = Vec::new();
        // A server may close without `close_notify`, or before it has read that of the client.
        let _ = tls.read_to_end(&mut received).await;
        ensure!(received.is_empty(), "a response without a request");
        Ok(())
    };
    timeout(HANDSHAKE_TIMEOUT, closing)
        .await
        .with_context(|| format!("the connection stays open for {HANDSHAKE_TIMEOUT:?}"))?
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{ApiServer, Ca, ClientAuth, Options, Reply};

    use super::*;
    use crate::pki::{self, Pki};
    use crate::scratch_dir::ScratchDir;

    #[tokio::test]
    async fn handshakes_of_both_kinds_are_counted() {
        let scratch = ScratchDir::create().unwrap();
        let ca = Ca::new("cluster");
        let pki = Pki::issued_by(&ca, &scratch).unwrap();
        let options = Options::new(ca.server(&[SERVER_NAME])).clients(ClientAuth::Require(&ca));
        let server = ApiServer::start(options, |_| Reply::new(200)).await;
        let user = ca.client("user", &[]);
        let base = pki::h1_client_of(&pki.ca, &user).unwrap();
        for kind in Handshake::BOTH {
            let time = Duration::from_millis(50);
            let done = repeat(kind, &base, server.addr(), 2, time).await.unwrap();
            assert!(done.count > 0, "{}", kind.name());
        }
        let burst = burst(&base, server.addr(), 20).await.unwrap();
        assert_eq!(burst.connections.len(), 20);
        assert!(burst.elapsed > Duration::ZERO);
    }
}

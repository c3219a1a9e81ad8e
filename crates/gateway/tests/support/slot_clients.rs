//! A bridge with few connection slots, and clients that take them.

use std::net::SocketAddr;

use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::{
    ApiServer, BodySender, Connection, H1Client, Options, Reply, TEST_TIMEOUT, TlsClient,
};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::pki::{self, PkiFixture};

pub(crate) struct SlotsFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) bridge: Handle,
    pub(crate) watches: mpsc::UnboundedReceiver<BodySender>,
    pub(crate) _upstream: ApiServer,
}

pub(crate) async fn fixture(change: impl FnOnce(&mut Limits)) -> SlotsFixture {
    let pki = PkiFixture::new();
    let (senders, watches) = mpsc::unbounded_channel();
    let upstream = ApiServer::start(Options::new(pki.upstream.clone()), move |recorded| {
        match (recorded.path(), recorded.header("authorization")) {
            ("/api/v1/pods", _) => {
                let (reply, sender) = Reply::stream();
                senders.send(sender).unwrap();
                reply
            }
            (_, None | Some("Bearer good")) => Reply::json("{}"),
            _ => Reply::new(401),
        }
    })
    .await;
    let mut config = pki.config(upstream.addr());
    change(&mut config.limits);
    let bridge = pki::start(&config);
    SlotsFixture {
        pki,
        bridge,
        watches,
        _upstream: upstream,
    }
}

impl SlotsFixture {
    pub(crate) fn address(&self) -> SocketAddr {
        self.bridge.address()
    }

    /// An anonymous TLS connection that sends nothing.
    pub(crate) async fn unauthenticated(&self) -> Connection {
        let client = self.pki.client();
        let connecting = client.connect(self.address(), "localhost");
        let connected = timeout(TEST_TIMEOUT, connecting).await;
        connected.expect("a slot").unwrap()
    }

    pub(crate) async fn unauthenticated_connections(&self, count: usize) -> Vec<Connection> {
        let mut unauthenticated_connections = Vec::new();
        for _ in 0..count {
            unauthenticated_connections.push(self.unauthenticated().await);
        }
        unauthenticated_connections
    }

    pub(crate) async fn open(&self, client: &TlsClient) -> H1Client {
        let connected = timeout(TEST_TIMEOUT, client.http1(self.address())).await;
        connected.expect("a slot").unwrap()
    }

    pub(crate) async fn slots(&self, class: &str) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        scrape.value("skewbridge_connection_slots", &[("class", class)])
    }

    pub(crate) async fn evictions(&self, reason: &str) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        let name = "skewbridge_connection_evictions_total";
        scrape.value(name, &[("reason", reason)])
    }
}

pub(crate) async fn send_and_read_status(client: &mut H1Client, request: &str) -> u16 {
    client.send(request).await.unwrap();
    client.read_response().await.unwrap().status
}

/// Waits until the bridge closes a connection on which it sends no application data.
pub(crate) async fn wait_until_closed(connection: &mut Connection) {
    let read = timeout(TEST_TIMEOUT, connection.read(&mut [0])).await;
    let read = read.expect("the connection is open");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

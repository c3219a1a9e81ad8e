//! Load balancers in front of a bridge: the PROXY protocol, and connections that end so that clients
//! spread over several bridges.

use std::net::SocketAddr;
use std::sync::Arc;

use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{Options, Reply, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::support::admin_client;
use crate::support::pki::{PkiFixture, start};
use skewbridge_testkit::ApiServer;

const LOOPBACK: &str = "127.0.0.0/8";
const ELSEWHERE: &str = "192.0.2.0/24";

struct Fixture {
    pki: PkiFixture,
    upstream: ApiServer,
}

impl Fixture {
    async fn new() -> Self {
        let pki = PkiFixture::new();
        let options = Options::new(pki.upstream.clone());
        let upstream = ApiServer::start(options, |_| Reply::new(200).body("ok")).await;
        Self { pki, upstream }
    }

    fn config(&self, network: &str) -> Config {
        let mut config = self.pki.config(self.upstream.addr());
        config.listen.proxy_protocol_cidrs = vec![network.parse().unwrap()];
        config
    }

    /// The client address that upstream gets for a request through a load balancer.
    async fn forwarded_for(&self, load_balancer: SocketAddr) -> String {
        let client = self.pki.client().http2(load_balancer).await.unwrap();
        assert_eq!(client.get("/from-client").await.unwrap().status, 200);
        let mut recorded = self.upstream.requests();
        recorded.retain(|it| it.path() == "/from-client");
        let recorded = recorded.pop().unwrap();
        recorded.header("x-forwarded-for").unwrap().to_owned()
    }
}

/// A load balancer that sends these bytes before those of its client, one after the other.
async fn load_balancer(bridge: &Handle, header: &[u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (bridge, header) = (bridge.address(), header.to_vec());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let header = header.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(bridge).await.unwrap();
                server.set_nodelay(true).unwrap();
                for byte in header {
                    server.write_all(&[byte]).await.unwrap();
                }
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 6443\r\n";

fn v2() -> Vec<u8> {
    let addresses = [192, 0, 2, 8, 192, 0, 2, 1, 156, 64, 25, 43];
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", &addresses[..]].concat()
}

#[tokio::test]
async fn the_client_of_a_load_balancer_is_the_source_of_its_requests() {
    let fixture = Fixture::new().await;
    let bridge = start(&fixture.config(LOOPBACK));
    for (header, expected) in [
        (V1.to_vec(), "192.0.2.7"),
        (v2(), "192.0.2.8"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
    ] {
        let load_balancer = load_balancer(&bridge, &header).await;
        assert_eq!(fixture.forwarded_for(load_balancer).await, expected);
    }
}

/// The connection was accepted before the drain, so its client does not know of it.
#[tokio::test]
async fn a_connection_whose_header_is_incomplete_when_the_drain_begins_is_served() {
    let fixture = Fixture::new().await;
    let mut bridge = start(&fixture.config(LOOPBACK));
    let address = bridge.address();
    let (sent, send_rest) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = listener.local_addr().unwrap();
    let (is_sent, rest_is_due) = (sent.clone(), send_rest.clone());
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(address).await.unwrap();
        let (start, rest) = V1.split_at(7);
        server.write_all(start).await.unwrap();
        is_sent.notify_one();
        rest_is_due.notified().await;
        // The bridge may have closed the connection.
        let _ = server.write_all(rest).await;
        let _ = copy_bidirectional(&mut client, &mut server).await;
    });
    let client = fixture.pki.client();
    let request = tokio::spawn(async move {
        let mut client = client.http1(slow).await?;
        let request = "GET /from-client HTTP/1.1\r\nHost: k\r\n\r\n";
        client.send(request).await?;
        client.read_response().await
    });
    sent.notified().await;
    // Connections are accepted in order.
    let later = load_balancer(&bridge, V1).await;
    assert_eq!(fixture.forwarded_for(later).await, "192.0.2.7");
    let finish = async {
        bridge.finish().await;
        drop(bridge);
    };
    let use_connection = async {
        eventually("the bridge accepts nothing new", TEST_TIMEOUT, async || {
            TcpStream::connect(address).await.is_err()
        })
        .await;
        send_rest.notify_one();
        request.await.unwrap()
    };
    let (response, ()) = tokio::join!(use_connection, finish);
    assert_eq!(response.unwrap().status, 200);
}

#[tokio::test]
async fn a_connection_of_a_load_balancer_without_a_header_is_closed() {
    let fixture = Fixture::new().await;
    let bridge = start(&fixture.config(LOOPBACK));
    let direct = fixture.pki.client().http2(bridge.address()).await;
    assert!(direct.is_err(), "TLS begins where the header is expected");
    // A health check that only connects is not counted.
    drop(TcpStream::connect(bridge.address()).await.unwrap());
    eventually("the failure is counted", TEST_TIMEOUT, async || {
        let metrics = admin_client::get(bridge.admin_address(), "/metrics")
            .await
            .body;
        metrics.contains("skewbridge_tls_handshake_failures_total{reason=\"proxy-protocol\"} 1")
    })
    .await;
}

#[tokio::test]
async fn a_header_from_another_network_is_not_accepted() {
    let fixture = Fixture::new().await;
    let bridge = start(&fixture.config(ELSEWHERE));
    let direct = fixture.forwarded_for(bridge.address()).await;
    assert_eq!(direct, "127.0.0.1");
    let mut tcp = TcpStream::connect(bridge.address()).await.unwrap();
    tcp.write_all(V1).await.unwrap();
    let mut answer = Vec::new();
    let _ = tcp.read_to_end(&mut answer).await;
    // Nothing, or a TLS alert.
    assert!(answer.first().is_none_or(|it| *it == 0x15), "{answer:?}");
}

#[tokio::test]
async fn connections_end_by_chance_after_their_requests() {
    let fixture = Fixture::new().await;
    let mut config = fixture.pki.config(fixture.upstream.addr());
    config.limits.goaway_chance = 1.0;
    let bridge = start(&config);
    let client = fixture
        .pki
        .user("alice", &[])
        .http2(bridge.address())
        .await
        .unwrap();
    assert_eq!(client.get("/").await.unwrap().status, 200);
    eventually("the connection ends", TEST_TIMEOUT, async || {
        client.is_closed()
    })
    .await;
    let mut client = fixture
        .pki
        .user("alice", &[])
        .http1(bridge.address())
        .await
        .unwrap();
    for _ in 0..2 {
        client
            .send("GET / HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(client.read_response().await.unwrap().status, 200);
    }
}

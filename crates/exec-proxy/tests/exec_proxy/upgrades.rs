//! Upgrades to SPDY and WebSocket: after 101 bytes are forwarded unchanged.

use std::sync::Mutex;

use skewbridge_testkit::{ApiServer, Ca, Options, Reply, ScriptedServer, TEST_TIMEOUT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::forwarder_fixture::ForwarderFixture;

const EXEC: &str = "POST /api/v1/namespaces/d/pods/p/exec?command=sh HTTP/1.1\r\nHost: k\r\n\
                    Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                    X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

#[tokio::test]
async fn an_upgraded_connection_is_forwarded_with_half_close() {
    let ca = Ca::new("cluster");
    let (reply, upgrade) = Reply::upgrade("SPDY/3.1");
    let reply = Mutex::new(Some(reply));
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(&["h2", "http/1.1"]);
    let server = ApiServer::start(options, move |_| {
        reply
            .lock()
            .unwrap()
            .take()
            .unwrap_or_else(|| Reply::new(200))
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let mut client = fixture.h1().await;
    client.send(EXEC).await.unwrap();
    let head = client.read_head().await.unwrap();
    assert_eq!(head.status, 101);
    assert_eq!(head.header("upgrade"), Some("SPDY/3.1"));
    let seen = &server.requests()[0];
    assert_eq!(seen.version, http::Version::HTTP_11);
    assert_eq!(
        seen.header("x-stream-protocol-version"),
        Some("v4.channel.k8s.io")
    );
    let mut client = client.into_connection();
    let mut upstream = timeout(TEST_TIMEOUT, upgrade.connection()).await.unwrap();
    client.write_all(b"stdin").await.unwrap();
    client.flush().await.unwrap();
    let mut bytes = [0; 5];
    upstream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"stdin");
    client.shutdown().await.unwrap();
    assert_eq!(
        timeout(TEST_TIMEOUT, upstream.read(&mut bytes))
            .await
            .unwrap()
            .unwrap(),
        0
    );
    assert_eq!(fixture.forwarder.activity().count(), 1);
    upstream.write_all(b"after the end of stdin").await.unwrap();
    upstream.shutdown().await.unwrap();
    let mut rest = String::new();
    timeout(TEST_TIMEOUT, client.read_to_string(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(rest, "after the end of stdin");
}

#[tokio::test]
async fn no_client_data_is_forwarded_before_101_and_a_rejected_upgrade_closes_the_connection() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    let (sender, receiver) = std::sync::mpsc::channel();
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| {
        let sender = sender.clone();
        async move {
            conn.read_head().await;
            conn.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
                .await;
            let rest = conn.read_to_end().await;
            sender.send(rest).unwrap();
        }
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let mut client = fixture.h1().await;
    // The second request must not be treated as one when the upgrade is rejected.
    client
        .send(format!("{EXEC}GET /smuggled HTTP/1.1\r\nHost: k\r\n\r\n"))
        .await
        .unwrap();
    let response = client.read_response().await.unwrap();
    assert_eq!((response.status, &*response.text()), (403, "no"));
    assert_eq!(response.header("connection"), Some("close"));
    drop(client);
    drop(fixture);
    let rest = tokio::task::spawn_blocking(move || receiver.recv_timeout(TEST_TIMEOUT).unwrap());
    assert_eq!(rest.await.unwrap(), b"");
}

#[tokio::test]
async fn an_unrequested_protocol_switch_is_an_error() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], |mut conn| async move {
        conn.read_head().await;
        conn.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
            .await;
        conn.read_to_end().await;
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let mut client = fixture.h1().await;
    client
        .send("GET / HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 502);
}

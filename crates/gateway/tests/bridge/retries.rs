//! Retries and keepalive as the gateway configures them. The rules of the HTTP engine are in
//! `skewbridge_testkit::proxy_suites`.

use std::time::Duration;

use skewbridge_gateway::config::Limits;
use skewbridge_testkit::ScriptedConn;
use skewbridge_testkit::h2frames::{self, flag, kind};
use tokio::net::TcpListener;

use crate::support::pki::PkiFixture;
use crate::support::protocols::Proto::H2;
use crate::support::protocols::{Client, ScriptedFixture, assert_status, request};

#[tokio::test]
async fn a_refused_connection_is_503_with_retry_after() {
    let pki = PkiFixture::new();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let bridge = pki.start_bridge(address);
    for method in ["GET", "POST"] {
        let mut h1 = Client::H1(Box::new(
            pki.client().http1(bridge.address()).await.unwrap(),
        ));
        let mut h2 = Client::H2(pki.client().http2(bridge.address()).await.unwrap());
        for client in [&mut h1, &mut h2] {
            let answer = client.request(request(method, "/"), "body").await;
            assert_status(&answer, 503);
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
    }
}

#[tokio::test]
async fn a_connection_that_answers_no_ping_is_dropped() {
    let often = |limits: &mut Limits| limits.upstream_ping = Duration::from_millis(100);
    let fixture = ScriptedFixture::with(H2, often, async |mut conn: ScriptedConn| {
        conn.accept_h2(&[]).await;
        let stream = conn.read_frame(kind::HEADERS).await.header.stream;
        if conn.ordinal > 0 {
            let complete = flag::END_HEADERS | flag::END_STREAM;
            let response = h2frames::headers(stream, complete, h2frames::STATUS_200);
            conn.write(response).await;
        }
        conn.stall().await;
    })
    .await;
    let mut client = fixture.client(H2).await;
    // Upstream may have processed it, so it is not retried.
    assert_status(&client.get("/").await, 502);
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(fixture.upstream.connections(), 2);
}

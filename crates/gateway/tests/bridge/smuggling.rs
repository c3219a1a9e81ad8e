//! Targets of requests that the gateway rejects. The rules against smuggling of the HTTP engine are
//! in `skewbridge_testkit::proxy_suites`.

use skewbridge_gateway::Handle;
use skewbridge_testkit::h2frames::{self, flag, kind};
use skewbridge_testkit::{ApiServer, Options, Reply};
use tokio::io::AsyncWriteExt;

use crate::support::pki::PkiFixture;
use crate::support::scripted_upstream::{assert_json_status, client_requests};

async fn start_bridge(pki: &PkiFixture) -> (ApiServer, Handle) {
    let options = Options::new(pki.upstream.clone()).alpn(&["http/1.1"]);
    let upstream = ApiServer::start(options, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    (upstream, bridge)
}

#[tokio::test]
async fn targets_that_are_not_paths_are_rejected() {
    let pki = PkiFixture::new();
    let (upstream, bridge) = start_bridge(&pki).await;
    for target in [
        "k",
        "k:443",
        "*",
        "https://k?x",
        "https://user@k/x",
        "https://user:secret@k/x",
    ] {
        let mut client = pki.client().http1(bridge.address()).await.unwrap();
        client
            .send(format!("GET {target} HTTP/1.1\r\nHost: k\r\n\r\n"))
            .await
            .unwrap();
        println!("{target}");
        assert_json_status(&client.read_response().await.unwrap(), 400);
    }
    assert_eq!(client_requests(&upstream).len(), 0);
}

#[tokio::test]
async fn the_authority_of_the_target_takes_precedence_over_host() {
    let pki = PkiFixture::new();
    let (upstream, bridge) = start_bridge(&pki).await;
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client
        .send("GET https://inner:6443/x HTTP/1.1\r\nHost: outer\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 200);
    let recorded = client_requests(&upstream).pop().unwrap();
    assert_eq!(recorded.all("host"), ["inner:6443"]);
    assert_eq!(recorded.target, "/x");
}

#[tokio::test]
async fn http2_targets_that_are_not_paths_are_rejected() {
    let pki = PkiFixture::new();
    let (upstream, bridge) = start_bridge(&pki).await;
    let client = pki.client().alpn(&["h2"]);
    for (authority, path) in [("u@k", "/x"), ("k", "*"), ("k", "/%zz")] {
        let mut io = client.connect(bridge.address(), "localhost").await.unwrap();
        h2frames::open(&mut io, &[]).await.unwrap();
        let block = h2frames::request_block("POST", authority, path);
        let whole = flag::END_HEADERS | flag::END_STREAM;
        io.write_all(&h2frames::headers(1, whole, &block))
            .await
            .unwrap();
        io.flush().await.unwrap();
        let body = h2frames::read_until(&mut io, kind::DATA).await.unwrap();
        let status: serde_json::Value = serde_json::from_slice(&body.payload).unwrap();
        assert_eq!(status["code"], 400, "{authority} {path}");
    }
    assert_eq!(client_requests(&upstream).len(), 0);
}

//! A request goes up as it came, and its answer comes back as it was.

mod common;

use common::Bed;
use http::{Request, Version};
use skewbridge_testkit::{ApiServer, ClientAuth, Options, Reply};

#[tokio::test]
async fn http1_and_http2_reach_upstream_in_their_own_protocol() {
    let bed = Bed::new();
    let options = Options::new(bed.upstream.clone())
        .clients(ClientAuth::Accept(&bed.front_proxy_ca))
        .alpn(&["h2", "http/1.1"]);
    let upstream =
        ApiServer::start(options, |seen| Reply::json(format!("\"{}\"", seen.target))).await;
    let bridge = bed.bridge(upstream.addr());

    let mut h1 = bed.client().http1(bridge.address()).await.unwrap();
    h1.send("GET /api/v1/pods?limit=1 HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    let response = h1.read_response().await.unwrap();
    assert_eq!(
        (response.status, response.text()),
        (200, "\"/api/v1/pods?limit=1\"".into())
    );

    let h2 = bed.client().http2(bridge.address()).await.unwrap();
    let request = Request::get("https://k/apis").body(()).unwrap();
    let response = h2.request(request, "").await.unwrap();
    assert_eq!(
        (response.status, response.text()),
        (200, "\"/apis\"".into())
    );

    let seen: Vec<_> = upstream
        .requests()
        .into_iter()
        .filter(|seen| seen.path() != "/readyz")
        .map(|seen| (seen.version, seen.authority))
        .collect();
    assert_eq!(seen[0].0, Version::HTTP_11);
    assert_eq!(seen[1], (Version::HTTP_2, Some("k".to_owned())));
}

//! Limits on headers: HPACK expansion, large and incomplete header blocks, and the headers that the
//! bridge adds.

use http::{Request, Version};
use skewbridge_testkit::h2frames::{self, code, flag, kind};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::support::exhaustion::{
    COMPLETE_REQUEST, HeaderBomb, SHORT_TIMEOUT, exhaustion_fixture, get_block, header_bytes,
    read_frame, write_flushed,
};
use crate::support::scripted_upstream::{assert_json_status, client_requests};

#[tokio::test]
async fn unauthenticated_hpack_expansion_closes_the_connection() {
    let fixture = exhaustion_fixture(|_| {}).await;
    let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
    let mut bomb = HeaderBomb { stream: 1 };
    // Without the limit, 54 KB of requests became 200 MB at upstream.
    for _ in 0..200 {
        if io.write_all(&bomb.request("/api")).await.is_err() {
            break;
        }
    }
    let _ = io.flush().await;
    let goaway = h2frames::read_until(&mut io, kind::GOAWAY);
    let goaway = timeout(TEST_TIMEOUT, goaway).await.expect("GOAWAY");
    // Unless the client was still sending and got a reset connection.
    if let Ok(goaway) = goaway {
        assert_eq!(goaway.error_code(), Some(code::ENHANCE_YOUR_CALM));
    }
    let sent_up = header_bytes(&client_requests(&fixture.upstream));
    assert!(sent_up < 8 << 20, "{} MiB", sent_up >> 20);
    assert_eq!(
        fixture.header_limit_count("expansion-ended").await,
        Some(1.0)
    );
    assert!(fixture.header_limit_count("expansion-delayed").await >= Some(1.0));
}

#[tokio::test]
async fn a_header_block_without_end_closes_the_connection() {
    let fixture = exhaustion_fixture(|limits| limits.read_header_timeout = SHORT_TIMEOUT).await;
    let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
    write_flushed(
        &mut io,
        h2frames::headers(1, COMPLETE_REQUEST, &get_block("/api")),
    )
    .await;
    read_frame(&mut io, kind::DATA, 1).await;
    let open = h2frames::headers(3, flag::END_STREAM, &get_block("/api"));
    write_flushed(&mut io, open).await;
    let ended = async { while h2frames::read_frame(&mut io).await.is_ok() {} };
    timeout(TEST_TIMEOUT, ended)
        .await
        .expect("the connection is closed");
}

#[tokio::test]
async fn a_valid_token_with_200_impersonated_groups_passes_repeatedly() {
    let fixture = exhaustion_fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    let token = format!("Bearer {}", "t".repeat(3000));
    for _ in 0..500 {
        let mut request = Request::get("https://k/api").header("authorization", &token);
        request = request.header("impersonate-user", "jane");
        for group in 0..200 {
            let group = format!("example.org:department-{group}:engineers");
            request = request.header("impersonate-group", group);
        }
        let answer = client.request(request.body(()).unwrap(), "").await.unwrap();
        assert_eq!(answer.status, 200);
    }
    let recorded = client_requests(&fixture.upstream);
    assert_eq!(recorded.len(), 500);
    // The first request is sent on its own connection: kube-apiserver has not accepted the token
    // yet.
    let (second, last) = (&recorded[1], &recorded[499]);
    assert_eq!(last.all("impersonate-group").len(), 200);
    assert_eq!(
        (last.connection, last.version),
        (second.connection, Version::HTTP_2)
    );
}

#[tokio::test]
async fn a_request_that_the_bridges_own_headers_make_too_large_is_431() {
    let fixture = exhaustion_fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    // 20 fields fill a mebibyte except for less than the bridge adds.
    let request = |spare: usize| {
        let mut request = Request::get("https://k/api");
        let each = (1 << 20) / 20 - 32 - "x-00".len();
        for number in 0..20 {
            let length = if number == 0 { each - spare } else { each };
            request = request.header(format!("x-{number:02}"), "x".repeat(length));
        }
        request.body(()).unwrap()
    };
    let answer = client.request(request(1000), "").await.unwrap();
    assert_eq!(answer.status, 200, "all headers fit");
    let answer = client.request(request(150), "").await.unwrap();
    assert_json_status(&answer, 431);
    assert_eq!(client_requests(&fixture.upstream).len(), 1);
    assert_eq!(
        fixture.header_limit_count("outgoing-too-large").await,
        Some(1.0)
    );
    assert_eq!(
        fixture.header_limit_count("request-too-large").await,
        Some(0.0)
    );
}

#[tokio::test]
async fn joined_header_values_are_capped() {
    let fixture = exhaustion_fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    let request = |name: &str, count: usize| {
        let mut request = Request::get("https://k/api");
        for number in 0..count {
            let value = format!("c{number}={}", "v".repeat(1000));
            request = request.header(name, value);
        }
        request.body(()).unwrap()
    };
    let answer = client.request(request("cookie", 60), "").await.unwrap();
    assert_eq!(answer.status, 200);
    let answer = client.request(request("cookie", 70), "").await.unwrap();
    assert_json_status(&answer, 431);
    let forwarded = request("x-forwarded-for", 200);
    let answer = client.request(forwarded, "").await.unwrap();
    assert_eq!(answer.status, 200);
    let recorded = client_requests(&fixture.upstream).pop().unwrap();
    let chain = recorded.all("x-forwarded-for").join(", ");
    assert!(chain.len() < 4200, "{}", chain.len());
    assert!(chain.ends_with(", 127.0.0.1"), "the newest hop stays");
    assert_eq!(
        fixture.header_limit_count("cookie-too-large").await,
        Some(1.0)
    );
    let shortened = fixture.header_limit_count("forwarded-for-shortened");
    assert_eq!(shortened.await, Some(1.0));
}

#[tokio::test]
async fn headers_that_are_too_large_on_arrival_are_431_and_counted() {
    let fixture = exhaustion_fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let mut request = Request::get("https://k/api");
    for number in 0..11 {
        request = request.header(format!("x-{number}"), "x".repeat(100_000));
    }
    let answer = client.unwrap().request(request.body(()).unwrap(), "").await;
    assert_json_status(&answer.unwrap(), 431);
    assert_eq!(
        fixture.header_limit_count("request-too-large").await,
        Some(1.0)
    );
    let client = fixture.pki.client().http1(fixture.bridge.address()).await;
    let mut client = client.unwrap();
    let large = "x".repeat(2 << 20);
    // The bridge may answer and close while the client still sends.
    let _ = client
        .send(format!("GET /api HTTP/1.1\r\nHost: k\r\nX: {large}"))
        .await;
    eventually("the exceeded limit is counted", TEST_TIMEOUT, async || {
        fixture.header_limit_count("request-too-large").await == Some(2.0)
    })
    .await;
    assert_eq!(client_requests(&fixture.upstream).len(), 0);
}

/// At most 64 of them are in flight at a time.
#[tokio::test]
async fn concurrent_requests_with_large_headers_are_bounded() {
    let fixture = exhaustion_fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    let large = "x".repeat(100_000);
    let request = |path: &str| {
        let request = Request::get(format!("https://k{path}")).header("x-large", &large);
        request.body(()).unwrap()
    };
    let mut under_way = Vec::new();
    for _ in 0..64 {
        let mut stream = client.stream(request("/never")).await.unwrap();
        stream.finish().unwrap();
        under_way.push(stream);
    }
    eventually("all requests are in flight", TEST_TIMEOUT, async || {
        fixture.header_limit_count("own-connection").await == Some(64.0)
    })
    .await;
    let refused = client.request(request("/api"), "").await.unwrap();
    assert_json_status(&refused, 503);
    // Retried once after a backoff, like every failed connection.
    let refused = fixture.header_limit_count("own-connection-refused").await;
    assert_eq!(refused, Some(2.0));
    drop(under_way);
}

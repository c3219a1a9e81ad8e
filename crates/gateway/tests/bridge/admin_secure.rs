//! The secure admin port: kube-apiserver decides who may read it, and unauthenticated clients cost little.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls_pki_types::ServerName;
use serde_json::json;
use skewbridge_gateway::config::UpstreamServer;
use skewbridge_testkit::{TEST_TIMEOUT, TlsClient, eventually, get as get_anonymously};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::support::pki::{self, PkiFixture};
use crate::support::secure_admin_port::{
    ACCESS_REVIEWS, Reviews, SCRAPER, TOKEN_REVIEWS, body, fixture, fixture_with, get, message,
    server,
};

#[tokio::test]
async fn a_token_reads_what_its_user_may_get() {
    let fixture = fixture().await;
    let response = fixture.get("/metrics", "good").await;
    assert_eq!(response.status, 200);
    assert!(response.text().contains("skewbridge_ready 1"));
    assert!(response.text().ends_with("# EOF\n"));

    let response = fixture.get("/debug/peers", "good").await;
    assert_eq!(response.status, 403);
    let expected = "forbidden: User \"scraper\" cannot get path \"/debug/peers\": by the rules";
    assert_eq!(message(&response), expected);
    let response = fixture.get("/metrics", "poor").await;
    assert_eq!(response.status, 403);
    assert!(message(&response).contains("\"visitor\""));
    assert_eq!(fixture.decisions("allowed").await, Some(1.0));
    assert_eq!(fixture.decisions("forbidden").await, Some(2.0));

    // The reviews are requests of the bridge's own user.
    let recorded = fixture.server.api.requests();
    let review = recorded.iter().find(|it| it.path() == TOKEN_REVIEWS);
    let review = review.unwrap();
    assert_eq!(review.header("x-remote-user"), Some("system:apiserver"));
    assert_eq!(review.header("authorization"), None);
}

#[tokio::test]
async fn credentials_that_are_missing_or_wrong_get_401() {
    let fixture = fixture().await;
    let mut client = fixture.open(&fixture.pki.client()).await;
    let response = get(&mut client, "/metrics", "").await;
    assert_eq!(response.status, 401);
    assert!(message(&response).contains("needs credentials"));
    assert_eq!(fixture.server.count(TOKEN_REVIEWS), 0);

    let response = fixture.get("/metrics", "wrong").await;
    assert_eq!(response.status, 401);
    let expected = "kube-apiserver does not accept the bearer token";
    assert_eq!(message(&response), expected);

    // A certificate of another CA.
    let other = skewbridge_testkit::Ca::new("other").client("eve", &["system:masters"]);
    let mut client = fixture.open(&fixture.pki.client().identity(&other)).await;
    let response = get(&mut client, "/metrics", "").await;
    assert_eq!(response.status, 401);
    assert!(message(&response).contains("client certificate is not accepted"));
    assert_eq!(fixture.server.count(ACCESS_REVIEWS), 0);
    assert_eq!(fixture.decisions("unauthenticated").await, Some(3.0));
}

#[tokio::test]
async fn headers_of_an_unauthenticated_client_assert_no_user() {
    let fixture = fixture().await;
    let mut client = fixture.open(&fixture.pki.client()).await;
    let headers = "X-Remote-User: root\r\nX-Remote-Group: system:masters\r\n";
    assert_eq!(get(&mut client, "/metrics", headers).await.status, 401);
    let mut client = fixture.open(&fixture.pki.user("visitor", &[])).await;
    assert_eq!(get(&mut client, "/metrics", headers).await.status, 403);
    // A front proxy asserts users, as on the main port.
    let mut client = fixture.open(&fixture.pki.peer()).await;
    assert_eq!(get(&mut client, "/metrics", headers).await.status, 200);
}

#[tokio::test]
async fn a_client_certificate_is_a_user_with_its_groups() {
    let fixture = fixture().await;
    let mut client = fixture
        .open(&fixture.pki.user("admin", &["system:masters"]))
        .await;
    assert_eq!(get(&mut client, "/debug/peers", "").await.status, 200);
    let recorded = fixture.server.api.requests();
    let review = recorded.iter().find(|it| it.path() == ACCESS_REVIEWS);
    let spec = body(review.unwrap())["spec"].clone();
    assert_eq!(spec["user"], "admin");
    assert_eq!(
        spec["groups"],
        json!(["system:masters", "system:authenticated"])
    );
    assert_eq!(fixture.server.count(TOKEN_REVIEWS), 0);
}

#[tokio::test]
async fn both_http_versions_are_served() {
    let fixture = fixture().await;
    let client = fixture.pki.user(SCRAPER, &[]);
    let client = client.http2(fixture.address()).await.unwrap();
    let response = client.get("/metrics").await.unwrap();
    assert_eq!(response.status, 200);
    assert!(response.text().contains("skewbridge_build_info"));
}

#[tokio::test]
async fn a_permission_is_cached_for_ten_seconds() {
    let fixture = fixture().await;
    for _ in 0..5 {
        assert_eq!(fixture.get("/metrics", "good").await.status, 200);
    }
    assert_eq!(fixture.server.count(TOKEN_REVIEWS), 1);
    assert_eq!(fixture.server.count(ACCESS_REVIEWS), 1);
    // A denial is not cached: a new right counts at once.
    for _ in 0..2 {
        assert_eq!(fixture.get("/metrics", "poor").await.status, 403);
    }
    assert_eq!(fixture.server.count(ACCESS_REVIEWS), 3);
    // A permission is cached per path.
    assert_eq!(fixture.get("/debug/peers", "good").await.status, 403);
}

#[tokio::test]
async fn health_is_a_status_without_credentials_and_a_list_with_them() {
    let fixture = fixture().await;
    let ca = &fixture.pki.serving_ca;
    for path in ["/healthz", "/livez", "/readyz", "/readyz?verbose"] {
        let response = get_anonymously(fixture.address(), ca, path).await;
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "ok"),
            "{path}"
        );
    }
    let single = get_anonymously(fixture.address(), ca, "/readyz/upstream").await;
    assert_eq!(single.status, 401);

    fixture.server.ready.store(false, Ordering::Relaxed);
    eventually("not ready", TEST_TIMEOUT, async || {
        let response = get_anonymously(fixture.address(), ca, "/readyz").await;
        response.status == 500 && response.text() == "not ok"
    })
    .await;
    let admin = fixture.pki.user("admin", &["system:masters"]);
    let mut client = fixture.open(&admin).await;
    let response = get(&mut client, "/readyz?verbose", "").await;
    assert_eq!(response.status, 500);
    assert!(
        response.text().contains("[-]upstream"),
        "{}",
        response.text()
    );
    // A wrong credential is an error, as at kube-apiserver.
    assert_eq!(fixture.get("/readyz", "wrong").await.status, 401);
}

#[tokio::test]
async fn a_review_that_is_refused_is_a_503_that_names_no_cause() {
    let fixture = fixture().await;
    fixture.server.answer(Reviews::Refuse);
    let response = fixture.get("/metrics", "good").await;
    assert_eq!(response.status, 503);
    assert!(response.header("retry-after").is_some());
    assert!(message(&response).contains("could not be authenticated"));
    assert!(!message(&response).contains("not for you"));
    assert_eq!(fixture.decisions("failed").await, Some(1.0));
    // The permission counts as soon as kube-apiserver answers again.
    fixture.server.answer(Reviews::Decide);
    assert_eq!(fixture.get("/metrics", "good").await.status, 200);
}

#[tokio::test]
async fn a_scraper_reads_on_while_kube_apiserver_does_not_answer() {
    let fixture = fixture().await;
    assert_eq!(fixture.get("/metrics", "good").await.status, 200);
    fixture.server.answer(Reviews::Refuse);
    // After ten seconds the permission is reviewed again.
    eventually("another review", TEST_TIMEOUT, async || {
        assert_eq!(fixture.get("/metrics", "good").await.status, 200);
        fixture.server.count(TOKEN_REVIEWS) > 1
    })
    .await;
    assert_eq!(fixture.get("/metrics", "good").await.status, 200);
    assert_eq!(fixture.get("/metrics", "poor").await.status, 503);
}

#[tokio::test]
async fn guesses_of_one_source_are_limited_and_good_tokens_are_not() {
    let fixture = fixture_with(|config| {
        config.limits.max_authentication_failures_per_source = 2;
    })
    .await;
    assert_eq!(fixture.get("/metrics", "good").await.status, 200);
    let mut statuses = Vec::new();
    for guess in 0..5 {
        let guess = format!("guess-{guess}");
        statuses.push(fixture.get("/metrics", &guess).await.status);
    }
    assert_eq!(statuses, [401, 401, 429, 429, 429]);
    assert_eq!(fixture.server.count(TOKEN_REVIEWS), 3);
    assert_eq!(fixture.get("/metrics", "good").await.status, 200);
    assert_eq!(fixture.decisions("limited").await, Some(3.0));
    let limited = "skewbridge_authentications_limited_total";
    assert_eq!(
        fixture.metric(limited, ("reason", "token")).await,
        Some(3.0)
    );
}

#[tokio::test]
async fn idle_unauthenticated_connections_do_not_keep_a_scraper_out() {
    let fixture = fixture().await;
    let mut idle = Vec::new();
    let client = fixture.pki.client();
    for _ in 0..64 {
        let opening = client.connect(fixture.address(), "localhost");
        idle.push(timeout(TEST_TIMEOUT, opening).await.unwrap().unwrap());
    }
    // One more from this source than may be unauthenticated: the oldest is closed.
    assert_eq!(fixture.get("/metrics", "good").await.status, 200);
    let mut byte = [0];
    let read = timeout(TEST_TIMEOUT, idle[0].read(&mut byte)).await;
    assert!(matches!(read.unwrap(), Ok(0) | Err(_)));
    let evictions = "skewbridge_admin_connection_evictions_total";
    let evicted = fixture.metric(evictions, ("reason", "source-limit")).await;
    assert!(evicted >= Some(1.0), "{evicted:?}");
    // The main port has separate slots.
    let evictions = "skewbridge_connection_evictions_total";
    let evicted = fixture.metric(evictions, ("reason", "source-limit")).await;
    assert_eq!(evicted, Some(0.0));
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let fixture = fixture_with(|config| {
        config.limits.handshake_timeout = Duration::from_millis(100);
        config.limits.read_header_timeout = Duration::from_millis(100);
    })
    .await;
    let client = fixture.pki.client();
    let mut idle = client
        .connect(fixture.address(), "localhost")
        .await
        .unwrap();
    let mut byte = [0];
    let read = timeout(TEST_TIMEOUT, idle.read(&mut byte)).await;
    assert!(matches!(read.unwrap(), Ok(0) | Err(_)));
}

#[tokio::test]
async fn only_reads_are_served() {
    let fixture = fixture().await;
    let mut client = fixture.open(&fixture.pki.user(SCRAPER, &[])).await;
    let request = "POST /metrics HTTP/1.1\r\nHost: k\r\nContent-Length: 2\r\n\r\n{}";
    client.send(request).await.unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 405);
    assert_eq!(fixture.server.count(ACCESS_REVIEWS), 0);
}

#[tokio::test]
async fn a_new_serving_certificate_is_used_for_new_connections() {
    let fixture = fixture().await;
    let serving_ca = skewbridge_testkit::Ca::new("next-serving-ca");
    let serving = serving_ca.server(&["localhost"]);
    fixture.pki.dir.write("serving.crt", &serving.cert_pem);
    fixture.pki.dir.write("serving.key", &serving.key_pem);
    let client = TlsClient::new(&serving_ca);
    eventually("the new certificate", TEST_TIMEOUT, async || {
        client.http1(fixture.address()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_review_is_sent_to_the_next_upstream_if_one_does_not_answer() {
    let pki = PkiFixture::new();
    let servers = [server(&pki).await, server(&pki).await];
    let mut config = pki.config(servers[0].api.addr());
    let other = servers[1].api.addr();
    config.upstream.others = vec![UpstreamServer {
        host: other.ip().to_string(),
        port: other.port(),
        server_name: ServerName::try_from("localhost").unwrap(),
    }];
    config.admin.secure_address = Some(([127, 0, 0, 1], 0).into());
    let bridge = pki::start(&config);
    let address = bridge.admin_secure_address().unwrap();
    servers[0].answer(Reviews::Refuse);
    for attempt in 0..8 {
        // A permission is cached per user.
        let name = format!("admin-{attempt}");
        let client = pki.user(&name, &["system:masters"]);
        let mut client = client.http1(address).await.unwrap();
        assert_eq!(get(&mut client, "/metrics", "").await.status, 200, "{name}");
    }
    assert_eq!(servers[1].count(ACCESS_REVIEWS), 8);
}

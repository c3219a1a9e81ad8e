//! The self-test detects a front-proxy certificate that upstream does not accept and CA files that
//! differ from upstream's, and names them by flag and file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use skewbridge_gateway::Handle;
use skewbridge_testkit::{Ca, RecordedRequest, Reply, TEST_TIMEOUT, eventually};

use crate::support::admin_client;
use crate::support::cluster::{ClusterFixture, SHARED_PATH};
use crate::support::pki::start;
use crate::support::self_test_responses::{AUTHENTICATION, REVIEWS_PATH, review};

const FORBIDDEN_PATH: &str = "/skewbridge-self-test";
const TESTS: [&str; 3] = ["front_proxy", "client_ca", "requestheader_ca"];

fn authentication(client_ca: &str, request_header_ca: &str) -> Reply {
    let data = json!({"client-ca-file": client_ca,
        "requestheader-client-ca-file": request_header_ca});
    Reply::json(json!({"kind": "ConfigMap", "data": data}).to_string())
}

fn unauthorized() -> Reply {
    let status = r#"{"kind":"Status","status":"Failure","message":"Unauthorized","code":401}"#;
    Reply::json(status).status(401)
}

async fn wait_for_readyz_text(bridge: &Handle, code: u16, text: &str) -> String {
    let readyz = async || admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    eventually(text, TEST_TIMEOUT, async || {
        let answer = readyz().await;
        answer.status == code && answer.body.contains(text)
    })
    .await;
    let answer = readyz().await;
    let line = answer
        .body
        .lines()
        .find(|line| line.contains("]self-test "));
    line.unwrap().to_owned()
}

async fn metric(bridge: &Handle, test: &str) -> Option<f64> {
    let metrics = admin_client::scrape(bridge.admin_address()).await;
    metrics.value("skewbridge_self_test_up", &[("test", test)])
}

#[tokio::test]
async fn an_upstream_with_matching_files_passes_every_test() {
    let cluster = ClusterFixture::new(&[]).await;
    let [users, proxies] = [
        cluster.pki.client_ca.pem(),
        cluster.pki.front_proxy_ca.pem(),
    ];
    cluster
        .local
        .set_hook(move |recorded| match recorded.path() {
            REVIEWS_PATH => Some(review(recorded)),
            AUTHENTICATION => Some(authentication(&users, &proxies)),
            _ => None,
        });
    let bridge = start(&cluster.config());
    let line = wait_for_readyz_text(&bridge, 200, "[+]self-test ok\n").await;
    assert_eq!(line, "[+]self-test ok");
    for test in TESTS {
        assert_eq!(metric(&bridge, test).await, Some(1.0), "{test}");
    }
    let reviews = cluster.local.gateway_requests(REVIEWS_PATH);
    assert_eq!(
        reviews[0].header("x-remote-user"),
        Some("skewbridge:self-test")
    );
    assert_eq!(reviews.len(), 1, "a passed self-test is not repeated");
}

#[tokio::test]
async fn a_front_proxy_certificate_that_upstream_rejects_is_named_by_flag() {
    type Answer = fn(&RecordedRequest) -> Reply;
    let other: Answer = |_| {
        let user = json!({"username": "front-proxy-client", "groups": []});
        let review = json!({"kind": "SelfSubjectReview", "status": {"userInfo": user}});
        Reply::json(review.to_string()).status(201)
    };
    let rows: [(Answer, &str); 2] = [
        (|_| unauthorized(), "answers 401 to a user"),
        (other, "as \"front-proxy-client\""),
    ];
    for (answer, text) in rows {
        let cluster = ClusterFixture::new(&[]).await;
        let corrected = Arc::new(AtomicBool::new(false));
        let accepts = corrected.clone();
        cluster
            .local
            .set_hook(move |recorded| match recorded.path() {
                REVIEWS_PATH if accepts.load(Ordering::Relaxed) => Some(review(recorded)),
                REVIEWS_PATH => Some(answer(recorded)),
                _ => None,
            });
        let bridge = start(&cluster.config());
        let line = wait_for_readyz_text(&bridge, 500, "[-]self-test failed: front_proxy: ").await;
        let file = cluster.pki.path().join("front-proxy.crt");
        for part in [
            &*format!("--proxy-client-cert-file {}: ", file.display()),
            text,
            "--requestheader-client-ca-file must hold the CA that issued it (CN=front-proxy-ca)",
            "--requestheader-allowed-names must be empty or contain \"front-proxy-client\"",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert_eq!(metric(&bridge, "front_proxy").await, Some(0.0));
        // A load balancer checks the main port.
        cluster.wait_for_status(&bridge, "/readyz", 500).await;
        let text = cluster.get(&bridge, "/readyz").await.text().clone();
        assert!(text.contains("the self-test has not passed"), "{text}");
        assert!(!text.contains("front-proxy"), "{text}");
        assert_eq!(cluster.get(&bridge, SHARED_PATH).await.status, 200);

        corrected.store(true, Ordering::Relaxed);
        cluster.wait_for_status(&bridge, "/readyz", 200).await;
        assert_eq!(metric(&bridge, "front_proxy").await, Some(1.0));
    }
}

#[tokio::test]
async fn a_client_ca_that_differs_from_upstreams_is_named_until_the_file_is_replaced() {
    let cluster = ClusterFixture::new(&[]).await;
    let upstreams = Ca::new("cluster-ca");
    let [users, proxies] = [upstreams.pem(), cluster.pki.front_proxy_ca.pem()];
    let pem = users.clone();
    cluster
        .local
        .set_hook(move |recorded| match recorded.path() {
            REVIEWS_PATH => Some(review(recorded)),
            AUTHENTICATION => Some(authentication(&pem, &proxies)),
            _ => None,
        });
    let bridge = start(&cluster.config());
    let line = wait_for_readyz_text(&bridge, 500, "[-]self-test failed: client_ca: ").await;
    let file = cluster.pki.path().join("client-ca.crt");
    for part in [
        &*format!("--client-ca-file {}: ", file.display()),
        "CN=client-ca",
        "CN=cluster-ca",
        "configure the same file for the bridge",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(metric(&bridge, "client_ca").await, Some(0.0));
    assert_eq!(metric(&bridge, "front_proxy").await, Some(1.0));

    // Both CAs in the file: a rotation, which is a warning.
    let both = format!("{users}{}", cluster.pki.client_ca.pem());
    cluster.pki.dir.write("client-ca.crt", &both);
    let line = wait_for_readyz_text(&bridge, 200, "[+]self-test ok: client_ca: warning: ").await;
    assert!(
        line.contains("only the bridge authenticates their users"),
        "{line}"
    );
    assert_eq!(metric(&bridge, "client_ca").await, Some(1.0));
    cluster.pki.dir.write("client-ca.crt", &users);
    wait_for_readyz_text(&bridge, 200, "[+]self-test ok\n").await;
}

#[tokio::test]
async fn a_server_without_reviews_is_tested_by_a_forbidden_path_and_missing_ca_data_is_not_an_error()
 {
    let cluster = ClusterFixture::new(&[]).await;
    cluster.local.set_hook(
        |recorded| match (recorded.path(), recorded.header("x-remote-user")) {
            (FORBIDDEN_PATH, Some(user)) => {
                let text =
                    format!("forbidden: User \"{user}\" cannot get path \"{FORBIDDEN_PATH}\"");
                let status = json!({"kind": "Status", "code": 403, "message": text});
                Some(Reply::json(status.to_string()).status(403))
            }
            _ => None,
        },
    );
    let bridge = start(&cluster.config());
    let line = wait_for_readyz_text(&bridge, 200, "[+]self-test ok: client_ca: not tested: ").await;
    assert!(
        line.contains("extension-apiserver-authentication"),
        "{line}"
    );
    assert!(!line.contains("front_proxy"), "{line}");
    assert_eq!(metric(&bridge, "front_proxy").await, Some(1.0));
    assert_eq!(metric(&bridge, "client_ca").await, None);
}

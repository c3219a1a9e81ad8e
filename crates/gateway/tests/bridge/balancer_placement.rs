//! Placement rules of a bridge in front of several kube-apiservers: requests, watches and metrics belong to
//! the server that answers.

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_testkit::{Reply, Response, TEST_TIMEOUT, eventually};

use crate::balancer::{Fixture, Watches};
use crate::support::admin_client;
use crate::support::cluster::{NEW, SHARED, SHARED_PATH, send_request, served_by, status_message};
use crate::support::fake_apiserver::{DiscoveryFormat, POLICIES, POLICY_KIND};

const NEWER: &str = "kubelet/v1.36.2 (linux/amd64) kubernetes/0e0e0e0";
const OBJECT_PATH: &str = "/apis/apps/v1/namespaces/a/deployments/d";

/// `a` and `b` have version 1.34.4, `c` has 1.36.4.
async fn mixed() -> Fixture {
    let fixture = Fixture::new().await;
    for server in &fixture.servers[..2] {
        server.set_version("v1.34.4", DiscoveryFormat::V2);
    }
    fixture
}

async fn send_as(
    fixture: &Fixture,
    bridge: &Handle,
    (method, path): (&str, &str),
    user_agent: &str,
) -> Response {
    let alice = fixture.pki.user("alice", &["dev"]);
    let headers = [
        ("user-agent", user_agent),
        ("content-type", "application/json"),
    ];
    let body = if method == "GET" { "" } else { "{}" };
    send_request(&alice, bridge, method, path, &headers, body).await
}

async fn backend_metric(fixture: &Fixture, bridge: &Handle, name: &str, index: usize) -> f64 {
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    let upstream = fixture.address(index).to_string();
    let long_running = [("class", "long-running"), ("upstream", &*upstream)];
    let labels = if name.ends_with("in_flight") {
        &long_running[..]
    } else {
        &long_running[1..]
    };
    scrape.value(name, labels).unwrap_or_default()
}

#[tokio::test]
async fn a_component_is_not_sent_to_an_older_server_and_counts_where_it_is_served() {
    let fixture = mixed().await;
    let bridge = fixture.start().await;
    for number in 0..30 {
        let method = if number % 2 == 0 { "GET" } else { "POST" };
        let answer = send_as(&fixture, &bridge, (method, SHARED_PATH), NEWER).await;
        assert_eq!(served_by(&answer), "c");
        assert_eq!(answer.header("warning"), None);
    }
    let name = "skewbridge_backend_requests_total";
    for (index, expected) in [(0, 0.0), (1, 0.0), (2, 30.0)] {
        let counted = backend_metric(&fixture, &bridge, name, index).await;
        assert!(
            (counted - expected).abs() < f64::EPSILON,
            "{index}: {counted}"
        );
    }
    // The only newer server ends: the others serve, and say so.
    fixture.servers[2].server.stop_listening().await;
    fixture.servers[2].server.kill_connections().await;
    for method in ["GET", "POST"] {
        let answer = send_as(&fixture, &bridge, (method, SHARED_PATH), NEWER).await;
        assert_ne!(served_by(&answer), "c");
        assert!(answer.header("warning").is_some(), "{method}");
    }
}

#[tokio::test]
async fn a_watch_belongs_to_the_server_that_serves_it() {
    let fixture = Fixture::new().await;
    // Only `c` serves the watched resource.
    for server in &fixture.servers[..2] {
        server.serve(&[NEW]);
    }
    fixture.servers[2].serve(&[SHARED, NEW]);
    let bridge = fixture.start().await;
    eventually("only one server serves it", TEST_TIMEOUT, async || {
        let path = format!("/debug/route?path={SHARED_PATH}");
        let route = admin_client::get(bridge.admin_address(), &path);
        route.await.body.contains("upstream-3")
    })
    .await;
    let mut watches = Watches::new(&fixture);
    for _ in 0..6 {
        watches.open(&fixture, &bridge).await;
    }
    assert_eq!(["a", "b", "c"].map(|it| watches.open_at(it)), [0, 0, 6]);
    let in_flight = "skewbridge_backend_requests_in_flight";
    for (index, expected) in [(0, 0.0), (1, 0.0), (2, 6.0)] {
        let counted = backend_metric(&fixture, &bridge, in_flight, index).await;
        assert!(
            (counted - expected).abs() < f64::EPSILON,
            "{index}: {counted}"
        );
    }
    // It is about to end: all of them are ended, whichever server was chosen first.
    fixture.servers[2].set_hook(|recorded| {
        let is_ready = recorded.path() == "/readyz";
        is_ready.then(|| Reply::new(500).body("shutdown"))
    });
    eventually("its watches are ended", TEST_TIMEOUT, async || {
        watches.open_at("c") == 0
    })
    .await;
}

/// The schema of a deployment with these fields of the spec.
fn schemas(fields: &[&str]) -> Value {
    let fields: serde_json::Map<_, _> = (fields.iter())
        .map(|name| ((*name).to_owned(), json!({"type": "string"})))
        .collect();
    json!({"components": {"schemas": {
        "io.k8s.api.apps.v1.Deployment": {
            "properties": {"spec": {"$ref": "#/components/schemas/Spec"}},
            "x-kubernetes-group-version-kind":
                [{"group": "apps", "version": "v1", "kind": "Deployment"}]},
        "Spec": {"properties": fields}}}})
}

#[tokio::test]
async fn writes_go_to_the_server_that_has_every_field() {
    let fixture = mixed().await;
    fixture.servers[2].serve(&[SHARED]);
    for (server, fields) in (fixture.servers.iter()).zip([&["old"][..], &["old"], &["old", "new"]])
    {
        let schemas = schemas(fields).to_string();
        server.set_hook(move |recorded| {
            let is_schema = recorded.path() == "/openapi/v3/apis/apps/v1";
            is_schema.then(|| Reply::json(schemas.clone()))
        });
    }
    let mut config = fixture.config();
    config.peers.guards.fields = FieldGuard::Writes;
    let bridge = fixture.start_with(&config).await;
    eventually("the fields are known", TEST_TIMEOUT, async || {
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        scrape.value("skewbridge_fields_known", &[]) == Some(1.0)
            && scrape.value("skewbridge_field_differences", &[]) == Some(1.0)
    })
    .await;
    for (method, path) in [
        ("POST", SHARED_PATH),
        ("PATCH", OBJECT_PATH),
        ("DELETE", OBJECT_PATH),
        ("GET", OBJECT_PATH),
    ] {
        for _ in 0..6 {
            let answer = send_as(&fixture, &bridge, (method, path), "kubectl/v1.34.4").await;
            assert_eq!(served_by(&answer), "c", "{method}");
        }
    }
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    let placed = scrape.value("skewbridge_placed_requests_total", &[("rule", "fields")]);
    assert!(placed > Some(0.0), "{placed:?}");
}

#[tokio::test]
async fn writes_go_to_the_server_that_enforces_a_policy_or_are_refused() {
    let fixture = mixed().await;
    fixture.servers[2].serve(&[SHARED, NEW, POLICY_KIND]);
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"],
        "resources": ["deployments"]}]);
    let policy =
        json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules}}});
    fixture.servers[2].put(POLICIES, policy);
    let bridge = fixture.start().await;
    eventually("the policy is known", TEST_TIMEOUT, async || {
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        let labels = [("resource", "mutatingadmissionpolicies")];
        scrape.value("skewbridge_guarded_policies", &labels) == Some(1.0)
            && scrape.value("skewbridge_unknown_policy_kinds", &[]) == Some(0.0)
    })
    .await;
    for _ in 0..12 {
        let answer = send_as(&fixture, &bridge, ("POST", SHARED_PATH), "kubectl/v1.34.4").await;
        assert_eq!(served_by(&answer), "c");
    }
    fixture.servers[2].server.stop_listening().await;
    fixture.servers[2].server.kill_connections().await;
    fixture
        .wait_for_readiness(&bridge, [true, true, false])
        .await;
    for _ in 0..6 {
        let answer = send_as(&fixture, &bridge, ("POST", SHARED_PATH), "kubectl/v1.34.4").await;
        let message = status_message(&answer, 503);
        assert!(
            message.contains("no available kube-apiserver enforces"),
            "{message}"
        );
        let read = send_as(&fixture, &bridge, ("GET", SHARED_PATH), "kubectl/v1.34.4").await;
        assert_ne!(served_by(&read), "c");
    }
}

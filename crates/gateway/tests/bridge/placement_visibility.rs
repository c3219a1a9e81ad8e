//! Placement rules that could not be satisfied are reported: in metrics by rule, in the
//! access log, in the log once for each component, and in a `Warning` header.

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_testkit::{RecordedRequest, Reply, Response, TEST_TIMEOUT, eventually};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, PeerServer, SHARED_PATH, send_request, served_by,
};
use crate::support::fake_apiserver::DiscoveryFormat;
use crate::support::log_capture;

const B: &str = "apiserver-b";

/// The local server has version 1.34.4, the peer 1.36.4. The bridge writes an access log.
async fn mixed_cluster() -> (ClusterFixture, PeerServer, Handle) {
    log_capture::capture();
    let cluster = ClusterFixture::new(&[]).await;
    (cluster.local).set_version("v1.34.4", DiscoveryFormat::V2);
    let b = cluster.peer(B, &[NEW]).await;
    let mut config = cluster.config();
    config.logs.verbosity = 2;
    let bridge = cluster.start_with(&config).await;
    (cluster, b, bridge)
}

async fn send(
    (cluster, bridge): (&ClusterFixture, &Handle),
    user: &str,
    path: &str,
    user_agent: &str,
) -> Response {
    let client = cluster.pki.user(user, &["dev"]);
    let headers = [("user-agent", user_agent)];
    send_request(&client, bridge, "GET", path, &headers, "").await
}

async fn count(bridge: &Handle, name: &str, rule: &str) -> Option<f64> {
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    scrape.value(name, &[("rule", rule)])
}

/// The access log line of the request of this user: each user here sends one.
async fn line_of(user: &str) -> String {
    let wanted = format!("caller={user} ");
    let mut found = Vec::new();
    eventually("the line is written", TEST_TIMEOUT, async || {
        found = log_capture::lines_with(&wanted);
        !found.is_empty()
    })
    .await;
    found.remove(0)
}

#[tokio::test]
async fn the_access_log_and_a_metric_name_the_rule_of_a_placed_request() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    let at = (&cluster, &bridge);
    let rows = [
        ("visible-local", SHARED_PATH, "kubectl/v1.36.2", OWN, None),
        (
            "visible-serves",
            NEW_PATH,
            "kubectl/v1.36.2",
            B,
            Some("serves"),
        ),
        (
            "visible-version",
            SHARED_PATH,
            "kubelet/v1.36.2 (linux)",
            B,
            Some("version"),
        ),
    ];
    for (user, path, user_agent, server, rule) in rows {
        let answer = send(at, user, path, user_agent).await;
        assert_eq!(served_by(&answer), server, "{user}");
        assert_eq!(answer.header("warning"), None, "{user}");
        let line = line_of(user).await;
        let placed = rule.map(|rule| format!(" placed={rule} "));
        match placed {
            Some(placed) => assert!(line.contains(&placed), "{line}"),
            None => assert!(!line.contains(" placed="), "{line}"),
        }
        assert!(!line.contains(" unmet="), "{line}");
        if let Some(rule) = rule {
            let placed = count(&bridge, "skewbridge_placed_requests_total", rule).await;
            assert_eq!(placed, Some(1.0), "{rule}");
        }
    }
}

#[tokio::test]
async fn a_rule_that_turns_out_not_to_be_satisfied_is_visible() {
    let (cluster, b, bridge) = mixed_cluster().await;
    b.shut_down().await;
    // The bridge does not know yet that the newer server has ended.
    let answer = send(
        (&cluster, &bridge),
        "visible-fallback",
        SHARED_PATH,
        "kubelet/v1.36.3 (linux)",
    )
    .await;
    assert_eq!(served_by(&answer), OWN);
    assert_eq!(
        answer.header("warning"),
        Some("299 - \"no available kube-apiserver is as new as this component\"")
    );
    let unmet = count(&bridge, "skewbridge_unmet_placements_total", "version").await;
    assert_eq!(unmet, Some(1.0));
    let line = line_of("visible-fallback").await;
    assert!(line.contains(" unmet=version "), "{line}");
    assert!(!line.contains(" placed="), "{line}");
    assert!(line.contains(" route=local "), "{line}");
    assert!(!line.contains(" peer="), "{line}");
}

#[tokio::test]
async fn a_component_without_a_server_as_new_is_counted_each_time_and_logged_once() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    // No other test uses this version.
    let agent = "kube-scheduler/v1.83.0 (linux) kubernetes/abc";
    for _ in 0..5 {
        let answer = send((&cluster, &bridge), "alice", SHARED_PATH, agent).await;
        assert_eq!(served_by(&answer), B, "the newest one");
        assert!(answer.header("warning").is_some());
    }
    let unmet = count(&bridge, "skewbridge_unmet_placements_total", "version").await;
    assert_eq!(unmet, Some(5.0));
    let lines = log_capture::lines_with("version=1.83.0");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("component=kube-scheduler"), "{lines:?}");
}

#[tokio::test]
async fn a_running_watch_is_not_moved_and_the_next_one_is() {
    let (cluster, b, bridge) = mixed_cluster().await;
    let agent = "kubelet/v1.36.4 (linux/amd64) kubernetes/abc";
    let watch_path = format!("{SHARED_PATH}?watch=true");
    let hook = || {
        let (senders, opened) = std::sync::mpsc::channel();
        let hook = move |recorded: &RecordedRequest| {
            let is_watch = recorded.path() == SHARED_PATH && recorded.query().is_some();
            is_watch.then(|| {
                let (reply, sender) = Reply::stream();
                let _ = senders.send(sender);
                reply.header("Content-Type", "application/json")
            })
        };
        (hook, opened)
    };
    let (at_local, opened_at_local) = hook();
    let (at_b, opened_at_b) = hook();
    cluster.local.set_hook(at_local);
    b.apiserver.set_hook(at_b);
    b.shut_down().await;
    let h2 = cluster.alice().http2(bridge.address()).await.unwrap();
    let open = async || {
        let request = http::Request::get(format!("https://k{watch_path}"))
            .header("user-agent", agent)
            .body(())
            .unwrap();
        let mut stream = h2.stream(request).await.unwrap();
        stream.finish().unwrap();
        assert_eq!(stream.head().await.unwrap().status, 200);
        stream
    };
    let running = open().await;
    let running_at_local = opened_at_local
        .try_recv()
        .expect("the older server serves it");
    b.apiserver.server.listen_again().await;
    let mut later = Vec::new();
    eventually(
        "a later watch is served by the newer server",
        TEST_TIMEOUT,
        async || {
            later.push(open().await);
            opened_at_b.try_recv().is_ok()
        },
    )
    .await;
    assert!(!running_at_local.is_cancelled(), "the running one stays");
    drop(running);
}

#[tokio::test]
async fn an_option_that_the_older_server_rejects_is_tried_at_a_newer_one() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    for status in [400, 422] {
        cluster.local.set_hook(move |recorded| {
            let has_options = recorded.path() == SHARED_PATH && recorded.query().is_some();
            has_options.then(|| Reply::new(status).body("not a known field selector"))
        });
        for query in [
            "fieldSelector=spec.x%3Da",
            "watch=true&fieldSelector=spec.x%3Da",
        ] {
            let path = format!("{SHARED_PATH}?{query}");
            let answer = send((&cluster, &bridge), "alice", &path, "kubectl/v1.34.4").await;
            assert_eq!(served_by(&answer), B, "{status} {query}");
        }
    }
    let placed = count(&bridge, "skewbridge_placed_requests_total", "version").await;
    assert_eq!(placed, Some(4.0));
}

/// The schema of a deployment with these fields of the spec.
fn schemas(fields: &[&str]) -> impl Fn(&RecordedRequest) -> Option<Reply> + use<> {
    let fields: serde_json::Map<_, _> = (fields.iter())
        .map(|name| ((*name).to_owned(), json!({"type": "string"})))
        .collect();
    let text = json!({"components": {"schemas": {
        "io.k8s.api.apps.v1.Deployment": {
            "properties": {"spec": {"$ref": "#/components/schemas/Spec"}},
            "x-kubernetes-group-version-kind":
                [{"group": "apps", "version": "v1", "kind": "Deployment"}]},
        "Spec": {"properties": fields}}}})
    .to_string();
    move |recorded| {
        let is_schema = recorded.path() == "/openapi/v3/apis/apps/v1";
        is_schema.then(|| Reply::json(text.clone()))
    }
}

async fn wait_until_fields_differ(bridge: &Handle) {
    eventually("the fields are known", TEST_TIMEOUT, async || {
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        scrape.value("skewbridge_fields_known", &[]) == Some(1.0)
            && scrape.value("skewbridge_field_differences", &[]) == Some(1.0)
    })
    .await;
}

async fn write_as(
    (cluster, bridge): (&ClusterFixture, &Handle),
    user: &str,
    user_agent: &str,
) -> Response {
    let client = cluster.pki.user(user, &["dev"]);
    let headers = [("user-agent", user_agent)];
    send_request(&client, bridge, "POST", SHARED_PATH, &headers, "{}").await
}

#[tokio::test]
async fn a_write_that_is_placed_by_its_fields_is_counted_and_explained() {
    log_capture::capture();
    let cluster = ClusterFixture::new(&[]).await;
    (cluster.local).set_version("v1.34.4", DiscoveryFormat::V2);
    cluster.local.set_hook(schemas(&["old"]));
    let b = cluster.peer(B, &[]).await;
    b.apiserver.set_hook(schemas(&["old", "new"]));
    let mut config = cluster.config();
    config.logs.verbosity = 2;
    config.peers.guards.fields = FieldGuard::Writes;
    let bridge = cluster.start_with(&config).await;
    wait_until_fields_differ(&bridge).await;
    let answer = write_as((&cluster, &bridge), "visible-fields", "kubectl/v1.34.4").await;
    assert_eq!(served_by(&answer), B);
    let placed = count(&bridge, "skewbridge_placed_requests_total", "fields").await;
    assert_eq!(placed, Some(1.0));
    let line = line_of("visible-fields").await;
    assert!(line.contains(" placed=fields "), "{line}");
    let path = format!("/debug/route?method=POST&path={SHARED_PATH}");
    let explained = admin_client::get(bridge.admin_address(), &path).await.body;
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(
        explained["reason"],
        "a peer satisfies the rule fields, the local server does not"
    );
    // As soon as the only server with every field is known to have ended, another one gets the write.
    b.shut_down().await;
    eventually("a write with a warning", TEST_TIMEOUT, async || {
        let answer = write_as((&cluster, &bridge), "visible-erasing", "kubectl/v1.34.4").await;
        let warning = "299 - \"no available kube-apiserver has all fields of this kind\"";
        answer.status == 200 && answer.header("warning") == Some(warning)
    })
    .await;
    eventually("a line with the rule", TEST_TIMEOUT, async || {
        let lines = log_capture::lines_with("caller=visible-erasing ");
        lines.iter().any(|line| line.contains(" unmet=fields "))
    })
    .await;
}

/// Each server has a field that the other lacks: the newest one gets the writes.
#[tokio::test]
async fn writes_of_a_kind_of_which_no_server_has_all_fields_go_to_the_newest() {
    let cluster = ClusterFixture::new(&[]).await;
    (cluster.local).set_version("v1.34.4", DiscoveryFormat::V2);
    cluster.local.set_hook(schemas(&["old", "removed"]));
    let b = cluster.peer(B, &[]).await;
    b.apiserver.set_hook(schemas(&["old", "new"]));
    let mut config = cluster.config();
    config.peers.guards.fields = FieldGuard::Writes;
    let bridge = cluster.start_with(&config).await;
    wait_until_fields_differ(&bridge).await;
    for _ in 0..3 {
        let answer = write_as((&cluster, &bridge), "alice", "kubectl/v1.34.4").await;
        assert_eq!(served_by(&answer), B);
    }
}

//! A kubelet of the new version does not use the old server while the new one is healthy, although
//! it is connected to the bridge of the old one.

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, User, Via, minors_of_one_plane,
    old_and_new_versions,
};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT};

const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";

/// A field of `CSIDriver` that 1.36 has and 1.34 does not: the old server neither shows nor keeps it.
const NEW_FIELD: &str = "serviceAccountTokenInSecrets";

fn driver(name: &str) -> String {
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name},
        "spec": {NEW_FIELD: true, "tokenRequests": [{"audience": "vault"}]},
    });
    driver.to_string()
}

/// Reads the driver through the bridge of the old server. Returns whether the new field is shown,
/// and the warning.
async fn shows_new_field(client: &mut HttpClient, user_agent: &str) -> (bool, Option<String>) {
    let request = Request::get(&format!("{DRIVERS}/vault")).header("user-agent", user_agent);
    let response = client.send(&request).await.unwrap();
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.status, 200, "{user_agent}: {text}");
    let object: Value = serde_json::from_str(&text).unwrap();
    let mut headers = response.headers.iter();
    let warning = headers.find(|(name, _)| name.eq_ignore_ascii_case("warning"));
    let warning = warning.map(|(_, value)| value.clone());
    (object["spec"][NEW_FIELD] == true, warning)
}

/// The audit events with this user agent at a server.
fn requests_of(plane: &ControlPlane, server: usize, user_agent: &str) -> usize {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| entry["userAgent"] == user_agent)
        .count()
}

#[tokio::test]
async fn a_new_kubelet_uses_the_new_server_while_it_is_healthy() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    // With the field guard every client would read the driver at the new server.
    let server = |version| {
        ServerSpec::of(version)
            .peer()
            .bridge_flag("--guard-fields=off")
    };
    let servers = [&old, &new].map(|version| server(version));
    let mut plane = ControlPlane::start(&servers).await;
    let new_kubelet = format!("kubelet/v{new} (linux/amd64) kubernetes/0e0e0e0");
    let old_kubelet = format!("kubelet/v{old} (linux/amd64) kubernetes/0e0e0e0");
    let kubectl = format!("kubectl/v{new} (linux/amd64) kubernetes/0e0e0e0");

    let mut direct = plane.http_client(NEW, Via::Server, Protocol::H2);
    let create = Request::new("POST", DRIVERS).body("application/json", &driver("vault"));
    let created = direct.send(&create).await.unwrap();
    assert_eq!(
        created.status,
        201,
        "{}",
        String::from_utf8_lossy(&created.body)
    );

    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    eventually(
        "the bridges know each other",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let page = plane.admin_page(OLD, "/readyz?verbose").await;
            page.contains("peers ok: 1 of 1 reachable")
        },
    )
    .await;
    for _ in 0..20 {
        assert_eq!(
            shows_new_field(&mut client, &new_kubelet).await,
            (true, None)
        );
    }
    // A write of the new kubelet keeps the field.
    let patch = Request::new("PATCH", &format!("{DRIVERS}/vault"))
        .header("user-agent", &new_kubelet)
        .body(
            "application/merge-patch+json",
            r#"{"metadata":{"labels":{"a":"b"}}}"#,
        );
    assert_eq!(client.send(&patch).await.unwrap().status, 200);
    assert_eq!(
        shows_new_field(&mut client, &new_kubelet).await,
        (true, None)
    );
    for user_agent in [&old_kubelet, &kubectl] {
        assert_eq!(
            shows_new_field(&mut client, user_agent).await,
            (false, None)
        );
    }
    // So does client-go with informers, as a kubelet uses it.
    let flags = [&format!("--user-agent={new_kubelet}"), "informers"];
    let output = plane
        .client_go(OLD, Via::Bridge, User::Admin, "kubelet", &flags)
        .await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    // The audit logs of the servers show which server has answered.
    assert_eq!(requests_of(&plane, OLD, &new_kubelet), 0);
    assert!(requests_of(&plane, NEW, &new_kubelet) >= 22);
    assert_eq!(requests_of(&plane, NEW, &old_kubelet), 0);

    // While the new server is down, the old one serves the kubelet. No request fails.
    plane.stop_server(NEW, "KILL");
    eventually("a warning", TEST_TIMEOUT, async || {
        let (shown, warning) = shows_new_field(&mut client, &new_kubelet).await;
        assert!(!shown);
        warning.is_some_and(|it| it.starts_with("299 "))
    })
    .await;
    plane.start_server(NEW);
    eventually("the new server is used again", TEST_TIMEOUT, async || {
        shows_new_field(&mut client, &new_kubelet).await == (true, None)
    })
    .await;
}

/// Two servers of these versions, whose bridges know each other.
async fn start_pair(servers: [ServerSpec; 2]) -> ControlPlane {
    let plane = ControlPlane::start(&servers.map(ServerSpec::peer)).await;
    eventually(
        "the bridges know each other",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let page = plane.admin_page(OLD, "/readyz?verbose").await;
            page.contains("peers ok: 1 of 1 reachable")
        },
    )
    .await;
    plane
}

/// Sends a read that the old server rejects, directly and through its bridge. Returns both responses.
async fn rejected_and_answered(plane: &ControlPlane, path: &str) -> [(u16, String); 2] {
    let mut responses = Vec::new();
    for via in [Via::Server, Via::Bridge] {
        let mut client = plane.http_client(OLD, via, Protocol::H2);
        let response = client.send(&Request::get(path)).await.unwrap();
        let text = String::from_utf8_lossy(&response.body).into_owned();
        responses.push((response.status, text));
    }
    responses.try_into().unwrap()
}

/// All field selectors of 1.36 for APIs that 1.34 serves are also in 1.34, so the option here is one of
/// watches. The old server has it turned off.
#[tokio::test]
async fn a_watch_with_an_option_that_the_old_server_rejects_is_answered_by_the_new_one() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [
        ServerSpec::of(&old).gate("WatchList", false),
        ServerSpec::of(&new),
    ];
    let plane = start_pair(servers).await;
    let path = "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1\
                &sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let [rejected, answered] = rejected_and_answered(&plane, path).await;
    assert_eq!(rejected.0, 422, "{}", rejected.1);
    assert!(rejected.1.contains("sendInitialEvents"), "{}", rejected.1);
    assert_eq!(answered.0, 200, "{}", answered.1);
    assert!(answered.1.contains("initial-events-end"), "{}", answered.1);
}

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// A field selector that 1.37 has and 1.36 does not, on control planes that have both (`--all`).
#[tokio::test]
async fn a_list_with_a_field_selector_of_1_37_is_answered_beside_1_36() {
    let Some([old, new]) = minors_of_one_plane([36, 37]) else {
        return;
    };
    let plane = start_pair([&old, &new].map(|it| ServerSpec::of(it))).await;
    let mut direct = plane.http_client(NEW, Via::Server, Protocol::H2);
    for pool in ["gpus", "nics"] {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("slice-{pool}")},
            "spec": {"driver": "devices.example.com", "nodeName": "node-1", "devices": [],
                "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}},
        });
        let create = Request::new("POST", SLICES).body("application/json", &slice.to_string());
        let created = direct.send(&create).await.unwrap();
        let text = String::from_utf8_lossy(&created.body).into_owned();
        assert_eq!(created.status, 201, "{text}");
    }
    let path = format!("{SLICES}?fieldSelector=spec.pool.name%3Dgpus");
    let [rejected, answered] = rejected_and_answered(&plane, &path).await;
    assert_eq!(rejected.0, 400, "{}", rejected.1);
    assert!(
        rejected.1.contains("field label not supported"),
        "{}",
        rejected.1
    );
    assert_eq!(answered.0, 200, "{}", answered.1);
    let slices: Value = serde_json::from_str(&answered.1).unwrap();
    assert_eq!(slices["items"].as_array().unwrap().len(), 1, "{slices}");
    assert_eq!(slices["items"][0]["spec"]["pool"]["name"], "gpus");
    // A selector that no server has is rejected by all of them.
    let path = format!("{SLICES}?fieldSelector=spec.unknown%3Dx");
    let responses = rejected_and_answered(&plane, &path).await;
    assert_eq!(responses.map(|(status, _)| status), [400, 400]);
}

#[tokio::test]
async fn route_explains_the_rules_of_a_real_bridge() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [&old, &new].map(|version| ServerSpec::of(version).peer());
    let plane = ControlPlane::start(&servers).await;
    let route = async |method: &str, path: &str, user_agent: &str| {
        let mut command = plane.skewbridge_command(OLD, Via::Bridge, User::Admin);
        command.args(["route", method, path]);
        command.arg(format!("--admin-address={}", plane.servers[OLD].admin));
        command.arg(format!("--user-agent={user_agent}"));
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let path = format!("{DRIVERS}/vault");
    let rows = [
        (
            "PATCH",
            format!("kubectl/v{old}"),
            "Route:     peer\nReason:    a peer satisfies the rule fields, the local server does not\n",
        ),
        (
            "LIST",
            format!("kubelet/v{new} (linux/amd64)"),
            "a peer satisfies the rule version, the local server does not\n",
        ),
        (
            "LIST",
            format!("kubectl/v{old}"),
            "Route:     local\nReason:    the local server satisfies every rule\n",
        ),
    ];
    for (method, user_agent, expected) in rows {
        let (method, path) = match method {
            "LIST" => ("GET", DRIVERS),
            method => (method, &*path),
        };
        let what = format!("{method} {path} of {user_agent}");
        eventually(&what, PEER_DISCOVERY_TIMEOUT, async || {
            let text = route(method, path, &user_agent).await;
            let is_expected = text.contains(expected);
            let mut lines = text.lines().filter(|line| line.ends_with("yes"));
            // Both servers are candidates, one of them without any rule that it does not satisfy.
            is_expected && lines.next().is_some()
        })
        .await;
    }
}

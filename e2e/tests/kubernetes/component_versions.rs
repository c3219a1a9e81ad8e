//! A kubelet of the new version does not use the old server while the new one is healthy, although
//! it is connected to the bridge of the old one.

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, Via, old_and_new_versions,
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
    let servers = [&old, &new].map(|version| ServerSpec::of(version).peer());
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
    // The servers' own audit logs say who has answered.
    assert_eq!(requests_of(&plane, OLD, &new_kubelet), 0);
    assert!(requests_of(&plane, NEW, &new_kubelet) >= 22);
    assert_eq!(requests_of(&plane, NEW, &old_kubelet), 0);

    // Without the new server the old one serves the kubelet. No request fails.
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

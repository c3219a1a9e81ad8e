//! A bridge in front of the kube-apiservers that the `EndpointSlices` list (`--upstream=endpoints`).

use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{TEST_TIMEOUT, eventually};

use crate::balancer::{Fixture, set};
use crate::field_guard::{NEW_FIELDS, OBJECT_PATH, OLD_FIELDS, Stored, object, serve};
use crate::support::admin_client;
use crate::support::cluster::{NEW, NEW_PATH, SHARED, SHARED_PATH, peers, send_request, served_by};
use crate::support::fake_apiserver::{DiscoveryFormat, POLICIES, POLICY_KIND};
use crate::support::pki::start;
use crate::version_changes::policy;

/// Only the first server is a value of `--upstream`.
fn config(fixture: &Fixture) -> Config {
    let mut config = fixture.config();
    config.upstream.others.clear();
    config.upstream.endpoints = Some(ServerName::try_from("kubernetes.default.svc").unwrap());
    config
}

/// All servers have the same objects, as over one etcd. Each slice has one address, because the
/// servers have different ports.
fn list(fixture: &Fixture, listed: &[usize]) {
    for server in &fixture.servers {
        for index in 0..fixture.servers.len() {
            let addresses = [fixture.address(index)];
            let addresses = if listed.contains(&index) {
                &addresses[..]
            } else {
                &[]
            };
            server.endpoints(&format!("kubernetes-{index}"), addresses);
        }
    }
}

async fn readyz(bridge: &Handle) -> String {
    admin_client::get(bridge.admin_address(), "/readyz?verbose")
        .await
        .body
}

/// Waits until all of these servers are ready, and no others are used.
async fn wait_until_ready(fixture: &Fixture, bridge: &Handle, indices: &[usize]) {
    eventually("the listed servers are ready", TEST_TIMEOUT, async || {
        let text = readyz(bridge).await;
        (0..fixture.servers.len()).all(|index| {
            let address = fixture.address(index).to_string();
            let line = text.lines().find(|it| it.contains(&address));
            let is_ready =
                line.is_some_and(|it| it.starts_with("[+]") && !it.contains("is not ready"));
            is_ready == indices.contains(&index)
        })
    })
    .await;
}

#[tokio::test]
async fn the_listed_servers_get_requests() {
    let fixture = Fixture::new().await;
    list(&fixture, &[0, 1, 2]);
    let bridge = start(&config(&fixture));
    wait_until_ready(&fixture, &bridge, &[0, 1, 2]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "b", "c"]));
    // Each is a peer of the others.
    for method in ["GET", "POST"] {
        for _ in 0..10 {
            assert_eq!(
                served_by(&fixture.send(&bridge, method, NEW_PATH).await),
                "c"
            );
        }
    }
    eventually("each server has two peers", TEST_TIMEOUT, async || {
        let view = peers(&bridge).await;
        let backends = view["backends"].as_array().unwrap();
        // No server is in the list twice.
        assert_eq!(backends.len(), 3, "{view}");
        let peers_of = |backend: &Value| backend["peers"].as_array().unwrap().len();
        backends.iter().all(|backend| peers_of(backend) == 2)
    })
    .await;
}

#[tokio::test]
async fn servers_are_added_and_drained_as_they_are_listed() {
    let fixture = Fixture::new().await;
    list(&fixture, &[0, 1]);
    let bridge = start(&config(&fixture));
    wait_until_ready(&fixture, &bridge, &[0, 1]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "b"]));
    list(&fixture, &[0, 1, 2]);
    wait_until_ready(&fixture, &bridge, &[0, 1, 2]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "b", "c"]));
    // The value of --upstream is not needed any more.
    list(&fixture, &[1, 2]);
    wait_until_ready(&fixture, &bridge, &[1, 2]).await;
    let text = readyz(&bridge).await;
    assert!(
        text.contains("it is not listed in the EndpointSlices of default/kubernetes"),
        "{text}"
    );
    assert_eq!(fixture.answering(&bridge).await, set(&["b", "c"]));
    fixture.servers[0].server.stop_listening().await;
    fixture.servers[0].server.kill_connections().await;
    list(&fixture, &[2]);
    wait_until_ready(&fixture, &bridge, &[2]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["c"]));
    // A server returns at its address.
    fixture.servers[0].server.listen_again().await;
    list(&fixture, &[0, 2]);
    wait_until_ready(&fixture, &bridge, &[0, 2]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "c"]));
}

#[tokio::test]
async fn the_endpoint_slices_are_read_through_another_server_when_one_ends() {
    let fixture = Fixture::new().await;
    list(&fixture, &[0, 1]);
    let bridge = start(&config(&fixture));
    wait_until_ready(&fixture, &bridge, &[0, 1]).await;
    fixture.servers[0].server.stop_listening().await;
    fixture.servers[0].server.kill_connections().await;
    wait_until_ready(&fixture, &bridge, &[1]).await;
    list(&fixture, &[1, 2]);
    wait_until_ready(&fixture, &bridge, &[1, 2]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["b", "c"]));
}

#[tokio::test]
async fn a_value_of_the_flag_that_is_another_name_of_a_listed_server_is_drained() {
    let fixture = Fixture::new().await;
    list(&fixture, &[0, 1]);
    let mut config = config(&fixture);
    // As a virtual address or a DNS name of the servers.
    config.upstream.host = "localhost".to_owned();
    let bridge = start(&config);
    wait_until_ready(&fixture, &bridge, &[0, 1]).await;
    let line = format!("localhost:{}", fixture.address(0).port());
    eventually("the name is drained", TEST_TIMEOUT, async || {
        let text = readyz(&bridge).await;
        let line = text.lines().find(|it| it.contains(&line));
        line.is_some_and(|it| it.contains("is not listed"))
    })
    .await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "b"]));
}

#[tokio::test]
async fn the_servers_of_the_flag_stay_in_use_while_no_listed_server_is_ready() {
    let fixture = Fixture::new().await;
    // Addresses that cannot be reached from here, as behind a translation of addresses.
    fixture.servers[2].server.stop_listening().await;
    list(&fixture, &[2]);
    let bridge = start(&config(&fixture));
    wait_until_ready(&fixture, &bridge, &[0]).await;
    let line = fixture.address(2).to_string();
    eventually("the listed server is known", TEST_TIMEOUT, async || {
        readyz(&bridge).await.contains(&line)
    })
    .await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a"]));
    fixture.servers[2].server.listen_again().await;
    wait_until_ready(&fixture, &bridge, &[2]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&["c"]));
}

/// The only newer server is not a value of `--upstream`, and down when the bridge restarts.
#[tokio::test]
async fn a_restart_keeps_the_apis_fields_and_policies_of_a_listed_server() {
    for with_policy in [false, true] {
        let fixture = Fixture::new().await;
        let etcd = Stored::default();
        *etcd.lock().unwrap() = object(&json!({"old": "x", "new": "y"}));
        for (index, server) in fixture.servers.iter().enumerate() {
            let (version, fields) = match index {
                2 => ("v1.36.4", NEW_FIELDS),
                _ => ("v1.34.4", OLD_FIELDS),
            };
            server.set_version(version, DiscoveryFormat::V2);
            let etcd = etcd.clone();
            server.set_hook(move |recorded| serve(recorded, fields, &etcd));
        }
        let c = &fixture.servers[2];
        c.serve(&[SHARED, NEW, POLICY_KIND]);
        if with_policy {
            c.put(POLICIES, policy("CREATE"));
        }
        list(&fixture, &[0, 1, 2]);
        let mut config = config(&fixture);
        config.peers.guards.fields = skewbridge_gateway::field_guard::FieldGuard::Writes;
        let state = fixture.pki.path().join("state");
        config.peers.state_dir = Some(state.clone());
        let bridge = start(&config);
        wait_until_ready(&fixture, &bridge, &[0, 1, 2]).await;
        let file = state.join("served").join(fixture.address(2).to_string());
        eventually("everything is stored", TEST_TIMEOUT, async || {
            let scrape = admin_client::scrape(bridge.admin_address()).await;
            let fields = std::fs::read_dir(state.join("fields"));
            let policies = std::fs::read_to_string(state.join("admission-policies.json"));
            scrape.value("skewbridge_fields_known", &[]) == Some(1.0)
                && scrape.value("skewbridge_field_differences", &[]) == Some(1.0)
                && fields.is_ok_and(|it| it.count() == 2)
                && policies.is_ok_and(|it| it.contains("CREATE") == with_policy)
                && file.exists()
        })
        .await;
        drop(bridge);
        c.server.stop_listening().await;
        c.server.kill_connections().await;
        list(&fixture, &[0, 1]);
        let bridge = start(&config);
        wait_until_ready(&fixture, &bridge, &[0, 1]).await;
        let alice = fixture.pki.user("alice", &["dev"]);
        for _ in 0..12 {
            assert_eq!(fixture.send(&bridge, "GET", NEW_PATH).await.status, 503);
            if with_policy {
                let created = fixture.send(&bridge, "POST", SHARED_PATH).await;
                assert_eq!(created.status, 503, "{}", created.text());
            } else {
                let headers = [("content-type", "application/strategic-merge-patch+json")];
                let patched =
                    send_request(&alice, &bridge, "PATCH", OBJECT_PATH, &headers, "{}").await;
                assert_eq!(patched.status, 503, "{}", patched.text());
                assert_eq!(etcd.lock().unwrap()["spec"]["new"], "y");
            }
        }
        // Nothing else is held back.
        assert_eq!(fixture.answering_reads(&bridge).await, set(&["a", "b"]));
    }
}

//! A server is replaced by another version while it is down, or was never read: no field is erased and no
//! policy is evaded before the bridge knows its version.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, RegistryKind};
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_testkit::{Reply, Response, TEST_TIMEOUT, TlsClient, eventually};
use tokio::sync::Notify;

use crate::balancer::Fixture;
use crate::field_guard::{NEW_FIELDS, OBJECT_PATH, OLD_FIELDS, Stored, object, serve};
use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, SHARED, SHARED_PATH, peers, send_request, served_by,
};
use crate::support::fake_apiserver::{DiscoveryFormat, FakeApiServer, POLICIES, POLICY_KIND};
use crate::support::pki::start;

const B: &str = "apiserver-b";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Old,
    New,
}
use Version::{New, Old};

/// Gives a server a version, and the fields of this version over the same etcd as the others.
fn set_version(server: &FakeApiServer, version: Version, etcd: &Stored) {
    let (text, fields) = match version {
        Old => ("v1.34.4", OLD_FIELDS),
        New => ("v1.36.4", NEW_FIELDS),
    };
    server.set_version(text, DiscoveryFormat::V2);
    let etcd = etcd.clone();
    server.set_hook(move |recorded| serve(recorded, fields, &etcd));
}

/// An object with the field that only the newer version has.
fn etcd() -> Stored {
    let etcd = Stored::default();
    restore(&etcd);
    etcd
}

fn restore(etcd: &Stored) {
    *etcd.lock().unwrap() = object(&json!({"old": "x", "new": "y"}));
}

async fn stop(server: &FakeApiServer) {
    server.server.stop_listening().await;
    server.server.kill_connections().await;
}

async fn patch(client: &TlsClient, bridge: &Handle) -> Response {
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    send_request(client, bridge, "PATCH", OBJECT_PATH, &headers, "{}").await
}

/// Patches the object until this holds. No patch erases the field; returns the status codes.
async fn patch_until(
    client: &TlsClient,
    bridge: &Handle,
    etcd: &Stored,
    is_over: impl AsyncFn() -> bool,
) -> Vec<u16> {
    let mut codes = Vec::new();
    let began = Instant::now();
    while began.elapsed() < TEST_TIMEOUT {
        let is_last = is_over().await;
        let answer = patch(client, bridge).await;
        let spec = etcd.lock().unwrap()["spec"].clone();
        assert_eq!(spec["new"], "y", "{} {}", answer.status, answer.text());
        codes.push(answer.status);
        if is_last {
            return codes;
        }
    }
    panic!("the change is not known after {} requests", codes.len());
}

/// The versions of the local server and its peers, in each view of the bridge.
async fn versions(bridge: &Handle) -> Vec<String> {
    let page = peers(bridge).await;
    let views = match page["backends"].as_array() {
        Some(backends) => backends.clone(),
        None => vec![page],
    };
    let version = |server: &Value| server["version"].as_str().unwrap_or_default().to_owned();
    let of_view = |view: &Value| {
        let peers = view["peers"].as_array().unwrap().iter().map(version);
        let mut all: Vec<_> = peers.chain([version(&view["local"])]).collect();
        all.sort_unstable();
        all.join(" ")
    };
    views.iter().map(of_view).collect()
}

async fn are_fields_known(bridge: &Handle) -> bool {
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    scrape.value("skewbridge_fields_known", &[]) == Some(1.0)
}

fn guarded(mut config: Config) -> Config {
    config.peers.guards.fields = FieldGuard::Writes;
    config
}

/// A bridge beside a server, and a peer, of these versions.
async fn pair(local: Version, peer: Version) -> (ClusterFixture, FakeApiServer, Handle, Stored) {
    let cluster = ClusterFixture::new(&[]).await;
    let etcd = etcd();
    set_version(&cluster.local, local, &etcd);
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let b = cluster.server(B, &[], leaf).await;
    set_version(&b, peer, &etcd);
    cluster.local.endpoints("kubernetes", &[b.server.addr()]);
    let mut config = guarded(cluster.config());
    config.peers.registry = RegistryKind::None;
    let bridge = start(&config);
    let expected = match (local, peer) {
        (Old, Old) => "1.34.4 1.34.4",
        (New, New) => "1.36.4 1.36.4",
        _ => "1.34.4 1.36.4",
    };
    eventually("both servers are known", TEST_TIMEOUT, async || {
        versions(&bridge).await == [expected] && are_fields_known(&bridge).await
    })
    .await;
    (cluster, b, bridge, etcd)
}

async fn wait_until_peer_is_down(bridge: &Handle) {
    eventually("the peer is down", TEST_TIMEOUT, async || {
        peers(bridge).await["peers"][0]["reachable"] == false
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_returns_with_a_newer_version_gets_the_writes_at_once() {
    let (cluster, b, bridge, etcd) = pair(Old, Old).await;
    stop(&b).await;
    wait_until_peer_is_down(&bridge).await;
    // Nothing is held back for long while it is down.
    *etcd.lock().unwrap() = object(&json!({"old": "x"}));
    for _ in 0..5 {
        assert_eq!(patch(&cluster.alice(), &bridge).await.status, 200);
    }
    set_version(&b, New, &etcd);
    // Another client creates an object with the new field.
    restore(&etcd);
    b.server.listen_again().await;
    let codes = patch_until(&cluster.alice(), &bridge, &etcd, async || {
        are_fields_known(&bridge).await && versions(&bridge).await[0].contains("1.36.4")
    })
    .await;
    assert!(codes.iter().all(|it| *it == 200), "{codes:?}");
}

#[tokio::test]
async fn a_peer_that_returns_with_an_older_version_erases_nothing() {
    let (cluster, b, bridge, etcd) = pair(Old, New).await;
    stop(&b).await;
    // A request notices it.
    assert_eq!(patch(&cluster.alice(), &bridge).await.status, 503);
    wait_until_peer_is_down(&bridge).await;
    set_version(&b, Old, &etcd);
    b.server.listen_again().await;
    let codes = patch_until(&cluster.alice(), &bridge, &etcd, async || {
        versions(&bridge).await == ["1.34.4 1.34.4"]
    })
    .await;
    // No server has the field any more.
    assert!(codes.iter().all(|it| *it == 503), "{codes:?}");
}

#[tokio::test]
async fn a_local_server_that_returns_with_an_older_version_erases_nothing() {
    let (cluster, _b, bridge, etcd) = pair(New, New).await;
    stop(&cluster.local).await;
    let client = cluster.alice();
    let codes = patch_until(&client, &bridge, &etcd, async || {
        let ready = admin_client::get(bridge.admin_address(), "/readyz/upstream").await;
        ready.status != 200
    })
    .await;
    assert!(codes.iter().all(|it| *it == 200), "{codes:?}");
    set_version(&cluster.local, Old, &etcd);
    let (released, waiting) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (release, count, stored) = (released.clone(), waiting.clone(), etcd.clone());
    cluster.local.set_hook(move |recorded| {
        let is_poll = recorded.path() == "/version" && recorded.header("x-remote-user").is_some();
        if is_poll {
            count.fetch_add(1, Ordering::Relaxed);
            return Some(Reply::json(r#"{"gitVersion": "v1.34.4"}"#).after(&release));
        }
        serve(recorded, OLD_FIELDS, &stored)
    });
    cluster.local.server.listen_again().await;
    eventually("it is ready, and not read yet", TEST_TIMEOUT, async || {
        let ready = admin_client::get(bridge.admin_address(), "/readyz/upstream").await;
        ready.status == 200 && waiting.load(Ordering::Relaxed) > 0
    })
    .await;
    let read_meanwhile = async {
        for _ in 0..3 {
            assert_eq!(cluster.get(&bridge, SHARED_PATH).await.status, 200);
        }
        set_version(&cluster.local, Old, &etcd);
        released.notify_one();
        released.notify_waiters();
    };
    let (held, ()) = tokio::join!(patch(&client, &bridge), read_meanwhile);
    assert_eq!(held.status, 200, "{}", held.text());
    assert_eq!(etcd.lock().unwrap()["spec"]["new"], "y");
    let codes = patch_until(&client, &bridge, &etcd, async || {
        are_fields_known(&bridge).await && versions(&bridge).await[0].contains("1.34.4")
    })
    .await;
    assert!(codes.iter().all(|it| *it == 200), "{codes:?}");
}

#[tokio::test]
async fn a_bridge_that_starts_erases_nothing_before_it_knows_its_peer() {
    for answers in [true, false] {
        let cluster = ClusterFixture::new(&[]).await;
        let etcd = etcd();
        set_version(&cluster.local, Old, &etcd);
        let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
        let b = cluster.server(B, &[POLICY_KIND], leaf).await;
        set_version(&b, New, &etcd);
        if !answers {
            b.set_hook(|_| Some(Reply::new(500)));
        }
        cluster.local.endpoints("kubernetes", &[b.server.addr()]);
        let mut config = guarded(cluster.config());
        config.peers.registry = RegistryKind::None;
        let bridge = start(&config);
        let client = cluster.alice();
        if !answers {
            // It runs, and nothing is known of it.
            let codes = patch_until(&client, &bridge, &etcd, async || {
                let view = peers(&bridge).await;
                view["waitingFor"].is_null() && view["peers"][0]["problem"].is_string()
            })
            .await;
            assert!(codes.iter().all(|it| *it == 503), "{codes:?}");
            let message = patch(&client, &bridge).await.text();
            assert!(message.contains("has not answered"), "{message}");
            let list = send_request(&client, &bridge, "GET", SHARED_PATH, &[], "").await;
            assert_eq!(served_by(&list), "apiserver-own", "reads are not held back");
            set_version(&b, New, &etcd);
        }
        let codes = patch_until(&client, &bridge, &etcd, async || {
            are_fields_known(&bridge).await && versions(&bridge).await[0].contains("1.36.4")
        })
        .await;
        assert_eq!(codes.last(), Some(&200));
    }
}

#[tokio::test]
async fn a_bridge_that_starts_evades_no_policy_before_it_knows_its_peer() {
    let cluster = ClusterFixture::new(&[]).await;
    cluster.local.set_version("v1.34.4", DiscoveryFormat::V2);
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let b = cluster.server(B, &[POLICY_KIND], leaf).await;
    b.put(POLICIES, policy("CREATE"));
    cluster.local.endpoints("kubernetes", &[b.server.addr()]);
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::None;
    let bridge = start(&config);
    let mut is_placed = false;
    let began = Instant::now();
    while began.elapsed() < TEST_TIMEOUT {
        let answer = cluster.post(&bridge, SHARED_PATH, "{}").await;
        is_placed = answer.status == 200;
        if is_placed {
            assert_eq!(served_by(&answer), B);
            break;
        }
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    assert!(is_placed);
}

pub(crate) fn policy(operation: &str) -> Value {
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": [operation],
        "resources": ["deployments"]}]);
    json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules}}})
}

/// A balancer in front of three servers of one version.
async fn balanced(version: Version) -> (Fixture, Handle, Stored) {
    let fixture = Fixture::new().await;
    let etcd = etcd();
    for server in &fixture.servers {
        server.serve(&[SHARED]);
        set_version(server, version, &etcd);
    }
    let bridge = fixture.start_with(&guarded(fixture.config())).await;
    let all = match version {
        Old => "1.34.4 1.34.4 1.34.4",
        New => "1.36.4 1.36.4 1.36.4",
    };
    wait_for_versions(&bridge, all).await;
    (fixture, bridge, etcd)
}

async fn wait_for_versions(bridge: &Handle, expected: &str) {
    eventually("all versions are known", TEST_TIMEOUT, async || {
        versions(bridge).await == [expected; 3] && are_fields_known(bridge).await
    })
    .await;
}

#[tokio::test]
async fn the_first_server_behind_a_balancer_that_is_upgraded_gets_the_writes_at_once() {
    let (fixture, bridge, etcd) = balanced(Old).await;
    let c = &fixture.servers[2];
    stop(c).await;
    fixture
        .wait_for_readiness(&bridge, [true, true, false])
        .await;
    set_version(c, New, &etcd);
    c.server.listen_again().await;
    let client = fixture.pki.user("alice", &["dev"]);
    let codes = patch_until(&client, &bridge, &etcd, async || {
        versions(&bridge).await == ["1.34.4 1.34.4 1.36.4"; 3] && are_fields_known(&bridge).await
    })
    .await;
    assert!(codes.iter().all(|it| *it == 200), "{codes:?}");
}

#[tokio::test]
async fn a_server_behind_a_balancer_that_is_rolled_back_erases_nothing() {
    let (fixture, bridge, etcd) = balanced(New).await;
    let a = &fixture.servers[0];
    stop(a).await;
    fixture
        .wait_for_readiness(&bridge, [false, true, true])
        .await;
    set_version(a, Old, &etcd);
    a.server.listen_again().await;
    let client = fixture.pki.user("alice", &["dev"]);
    let codes = patch_until(&client, &bridge, &etcd, async || {
        versions(&bridge).await == ["1.34.4 1.36.4 1.36.4"; 3] && are_fields_known(&bridge).await
    })
    .await;
    assert!(codes.iter().all(|it| *it == 200), "{codes:?}");
}

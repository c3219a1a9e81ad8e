//! `--peer-registry=endpoints`: kube-apiservers in the `EndpointSlices` of `default/kubernetes` are
//! peers without bridges. No server counts twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, RegistryKind};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::{Reply, TEST_TIMEOUT, eventually};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, PeerServer, UNSERVED_PATH, peers, send_request, served_by,
    status_message,
};
use crate::support::fake_apiserver::{ENDPOINT_SLICES, FakeApiServer};
use crate::support::pki::start;
use crate::support::served_records::{B, record_of_b, records};

const OTHER: &str = "apps/v1beta1 scales";
const OTHER_PATH: &str = "/apis/apps/v1beta1/namespaces/a/scales";

fn with_endpoints(cluster: &ClusterFixture) -> Config {
    let mut config = cluster.config();
    config.peers.endpoints = true;
    config
}

fn only_endpoints(cluster: &ClusterFixture) -> Config {
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::None;
    config
}

/// A kube-apiserver without a Lease, whose certificate also has these names.
async fn plain_server(
    cluster: &ClusterFixture,
    name: &str,
    serves: &[&str],
    hosts: &[&str],
) -> FakeApiServer {
    let names = [&["kubernetes.default.svc"], hosts].concat();
    let leaf = cluster.peer_ca.server(&names);
    cluster.server(name, serves, leaf).await
}

/// Lists servers, each in an `EndpointSlice` of its own because their ports differ.
fn list(cluster: &ClusterFixture, servers: &[SocketAddr]) {
    for (number, address) in servers.iter().enumerate() {
        cluster
            .local
            .endpoints(&format!("kubernetes-{number}"), &[*address]);
    }
}

/// The identities of all peers.
async fn identities(bridge: &Handle) -> Vec<String> {
    let view = peers(bridge).await;
    let all = view["peers"].as_array().unwrap().iter();
    all.map(|it| it["identity"].as_str().unwrap().to_owned())
        .collect()
}

async fn wait_for_identities(bridge: &Handle, expected: &[&str]) {
    let what = format!("the peers are {expected:?}");
    eventually(&what, TEST_TIMEOUT, async || {
        identities(bridge).await == expected
    })
    .await;
}

async fn view_of(bridge: &Handle, identity: &str) -> Value {
    crate::support::cluster::peer_view(bridge, identity).await
}

#[tokio::test]
async fn servers_without_bridges_and_leases_are_peers() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = plain_server(&cluster, B, &[NEW], &[]).await;
    let c = plain_server(&cluster, "apiserver-c", &[OTHER], &[]).await;
    list(&cluster, &[b.server.addr(), c.server.addr()]);
    let bridge = start(&only_endpoints(&cluster));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    cluster.wait_for_status(&bridge, OTHER_PATH, 200).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    assert_eq!(cluster.get(&bridge, UNSERVED_PATH).await.status, 404);
    let request = b.client_requests().pop().unwrap();
    assert_eq!(request.header("x-remote-user"), Some("alice"));

    let view = view_of(&bridge, &b.server.addr().to_string()).await;
    assert_eq!(view["addressSource"], "endpoints", "{view}");
    assert_eq!(view["bridge"], false);
    assert_eq!(view["reachable"], true, "{view}");
    assert_eq!(peers(&bridge).await["registry"]["kind"], "endpoints");
    let ready = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    for line in [
        "[+]registry ok: endpoints\n",
        "[+]peers ok: 2 of 2 reachable\n",
    ] {
        assert!(ready.body.contains(line), "{}", ready.body);
    }
    // One ends, and is no longer listed: its APIs are 503, because it may be restarting.
    b.server.stop_listening().await;
    b.server.kill_connections().await;
    cluster.wait_for_status(&bridge, NEW_PATH, 503).await;
    cluster.local.delete(ENDPOINT_SLICES, "kubernetes-0");
    eventually("it is no longer listed", TEST_TIMEOUT, async || {
        view_of(&bridge, &b.server.addr().to_string()).await["published"] == false
    })
    .await;
    status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
}

/// As kubeadm issues certificates: for the name of the node.
#[tokio::test]
async fn the_certificate_of_a_server_names_its_identity() {
    let cluster = ClusterFixture::new(&[]).await;
    let identity = Identity::of_hostname("cp-2");
    cluster.local.lease(identity.as_str(), "one");
    let b = plain_server(&cluster, B, &[NEW], &["cp-2"]).await;
    list(&cluster, &[b.server.addr()]);
    for config in [only_endpoints(&cluster), with_endpoints(&cluster)] {
        let bridge = start(&config);
        cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
        wait_for_identities(&bridge, &[identity.as_str()]).await;
        // The discovery that was read from the address is kept for the identity.
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
        let view = view_of(&bridge, identity.as_str()).await;
        assert_eq!(view["address"], b.server.addr().to_string());
        assert_eq!(view["addressSource"], "endpoints");
    }
}

#[tokio::test]
async fn this_bridge_is_none_of_its_peers() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = start(&with_endpoints(&cluster));
    // Another address of this bridge.
    let alias = plain_server(&cluster, OWN, &[], &[]).await;
    alias.set_hook(|recorded| {
        let reply = Reply::json(r#"{"gitVersion":"v1.36.4"}"#);
        (recorded.path() == "/version").then(|| reply.header("x-skewbridge-answered", OWN))
    });
    let b = plain_server(&cluster, B, &[NEW], &[]).await;
    list(
        &cluster,
        &[bridge.address(), alias.server.addr(), b.server.addr()],
    );
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    wait_for_identities(&bridge, &[&b.server.addr().to_string()]).await;
    let hop = [
        ("x-kubernetes-peer-proxied", "true"),
        ("X-Remote-User", "alice"),
    ];
    let answer = send_request(&cluster.pki.peer(), &bridge, "GET", "/version", &hop, "").await;
    assert_eq!(answer.header("x-skewbridge-answered"), Some(OWN));
}

#[tokio::test]
async fn an_address_outside_of_the_permitted_networks_gets_no_request() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = plain_server(&cluster, B, &[NEW], &[]).await;
    list(&cluster, &[b.server.addr()]);
    let mut config = with_endpoints(&cluster);
    config.peers.cidrs = vec!["10.0.0.0/8".parse().unwrap()];
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    cluster.wait_for_status(&bridge, NEW_PATH, 404).await;
    assert_eq!(identities(&bridge).await, [""; 0]);
    assert!(b.server.requests().is_empty());
    assert_eq!(b.server.connections(), 0);
}

#[tokio::test]
async fn a_missing_right_to_read_endpoint_slices_is_reported() {
    let cluster = ClusterFixture::new(&[]).await;
    cluster.local.set_hook(|recorded| {
        let is_list = recorded.path().starts_with(ENDPOINT_SLICES);
        is_list.then(|| Reply::new(403).body("no right to list endpointslices"))
    });
    let bridge = start(&with_endpoints(&cluster));
    let ready = async || {
        let page = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
        page.body
    };
    eventually("the registry is not ready", TEST_TIMEOUT, async || {
        let body = ready().await;
        body.contains("[-]registry failed") && body.contains("no right to list endpointslices")
    })
    .await;
    assert_eq!(peers(&bridge).await["registry"]["kind"], "memory,endpoints");
    cluster.local.remove_hook();
    eventually("the registry is ready", TEST_TIMEOUT, async || {
        ready().await.contains("[+]registry ok: memory,endpoints\n")
    })
    .await;
}

/// The bridge of a server is killed, leaves, and returns; the server is listed all the time.
#[tokio::test]
async fn no_request_fails_while_the_bridge_of_a_listed_server_starts_and_stops() {
    let cluster = ClusterFixture::new(&[]).await;
    let server = plain_server(&cluster, "server", &[NEW], &[]).await;
    list(&cluster, &[server.server.addr()]);
    let bridge = start(&with_endpoints(&cluster));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let alone = server.server.addr().to_string();
    wait_for_identities(&bridge, &[&alone]).await;

    let (stop, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let client = cluster.alice();
    let load = {
        let (stop, sent, address) = (stop.clone(), sent.clone(), bridge.address());
        tokio::spawn(async move {
            let h2 = client.http2(address).await.unwrap();
            while !stop.load(Ordering::Relaxed) {
                let request = http::Request::get(format!("https://k{NEW_PATH}"));
                let answer = h2.request(request.body(()).unwrap(), "").await.unwrap();
                assert_eq!(answer.status, 200, "{}", answer.text());
                sent.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let more_requests = async || {
        let before = sent.load(Ordering::Relaxed);
        eventually("more requests are answered", TEST_TIMEOUT, async || {
            assert!(!load.is_finished());
            sent.load(Ordering::Relaxed) > before + 20
        })
        .await;
    };
    let (_recorded, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    record.server = Some(server.server.addr());
    record.serving_keys.clear();
    for round in 0..2 {
        // The bridge starts.
        let mut of_b: PeerServer = cluster.peer(B, &[NEW]).await;
        record.bridge = Some(of_b.apiserver.server.addr());
        record.bridge_left_at = None;
        record.observed_at += std::time::Duration::from_secs(1);
        publish.send_replace(Some(Arc::new(record.clone())));
        eventually("the bridge is known", TEST_TIMEOUT, async || {
            let view = view_of(&bridge, B).await;
            view["bridge"] == true && view["fallbackAddress"] == alone
        })
        .await;
        assert_eq!(identities(&bridge).await, [B], "it counts once");
        let before = of_b.client_requests().len();
        more_requests().await;
        assert!(
            of_b.client_requests().len() > before,
            "the bridge is preferred"
        );
        if round == 0 {
            // It is killed: its address is withdrawn later.
            of_b.shut_down().await;
            eventually("the bridge does not answer", TEST_TIMEOUT, async || {
                !view_of(&bridge, B).await["problem"].is_null()
            })
            .await;
            more_requests().await;
        } else {
            // It leaves.
            record.bridge_left_at = Some(std::time::SystemTime::now());
            publish.send_replace(Some(Arc::new(record.clone())));
        }
        of_b.withdraw_address();
        eventually("the server is reached directly", TEST_TIMEOUT, async || {
            let view = view_of(&bridge, B).await;
            view["address"] == alone && view["reachable"] == true
        })
        .await;
        of_b.shut_down().await;
        more_requests().await;
        assert_eq!(identities(&bridge).await, [B], "it counts once");
    }
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
}

#[tokio::test]
async fn a_restart_keeps_what_an_unreachable_listed_server_serves() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = plain_server(&cluster, B, &[NEW], &[]).await;
    list(&cluster, &[b.server.addr()]);
    let mut config = only_endpoints(&cluster);
    config.peers.state_dir = Some(cluster.pki.path().join("state"));
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let file = cluster.pki.path().join("state/served");
    let file = file.join(b.server.addr().to_string());
    eventually("the record is stored", TEST_TIMEOUT, async || file.exists()).await;
    drop(bridge);
    b.server.stop_listening().await;
    b.server.kill_connections().await;
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    cluster.wait_for_status(&bridge, NEW_PATH, 503).await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains(&b.server.addr().to_string()), "{message}");
    b.server.listen_again().await;
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
}

#[tokio::test]
async fn an_entry_of_the_file_may_be_a_server_without_a_bridge() {
    let cluster = ClusterFixture::new(&[]).await;
    let identity = Identity::of_hostname("cp-2");
    cluster.local.lease(identity.as_str(), "one");
    let b = plain_server(&cluster, B, &[NEW], &["cp-2"]).await;
    let c = plain_server(&cluster, "apiserver-c", &[OTHER], &[]).await;
    let (b_address, c_address) = (b.server.addr(), c.server.addr());
    let named = format!("peers:\n- identity: {identity}\n  server: {b_address}\n");
    let unnamed = format!("peers:\n- server: {b_address}\n");
    for entries in [named, unnamed] {
        let text = format!("{entries}- server: {c_address}\n");
        let path = cluster.pki.dir.write("peers.yaml", text);
        let mut config = cluster.config();
        config.peers.registry = RegistryKind::File(path);
        let bridge = start(&config);
        cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
        cluster.wait_for_status(&bridge, OTHER_PATH, 200).await;
        wait_for_identities(&bridge, &[&c_address.to_string(), identity.as_str()]).await;
        let view = view_of(&bridge, identity.as_str()).await;
        assert_eq!(view["addressSource"], "file", "{view}");
    }
}

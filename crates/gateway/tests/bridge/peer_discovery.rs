//! How a bridge detects which servers exist and what each of them serves, and how it publishes the
//! address of the server behind it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::RegistryKind;
use skewbridge_peer_directory::{Identity, MicroTime};
use skewbridge_testkit::{RecordedRequest, Reply, TEST_TIMEOUT, eventually};
use tokio::sync::Notify;

use crate::support::admin_client;
use crate::support::cluster::{
    self, ClusterFixture, NEW, NEW_PATH, OWN, SHARED, UNSERVED_PATH, peer_view, peers,
    send_request, served_by, status_message,
};
use crate::support::fake_apiserver::{
    API_SERVICES, CRDS, DiscoveryFormat, LEASES, api_service, crd, lease,
};
use crate::support::pki::start;

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";
const ADDRESS: &str = "kubernetes.io/peer-advertise-address";
const BRIDGE_ADDRESS: &str = "skewbridge.io/peer-advertise-address";
const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const V2_BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

#[tokio::test]
async fn discovery_of_servers_of_every_version_is_understood() {
    let rows = [
        ("v1.36.4", DiscoveryFormat::V2),
        ("v1.29.15", DiscoveryFormat::V2Beta1),
        ("v1.25.16", DiscoveryFormat::Legacy),
    ];
    for (version, form) in rows {
        let cluster = ClusterFixture::new(&["v1 pods"]).await;
        let serves = [NEW, "v1 pods", "v1 pods/resize:patch"];
        let b = cluster.peer(B, &serves).await;
        b.apiserver.set_version(version, form);
        let bridge = cluster.start().await;
        let resize = "/api/v1/namespaces/a/pods/p/resize";
        let answer = send_request(&cluster.alice(), &bridge, "PATCH", resize, &[], "{}").await;
        assert_eq!(served_by(&answer), B, "{version}");
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
        assert_eq!(cluster.get(&bridge, UNSERVED_PATH).await.status, 404);
        let view = peer_view(&bridge, B).await;
        assert_eq!(view["version"], version[1..], "{view}");
        let alone = serde_json::json!([NEW, "v1 pods/resize"]);
        assert_eq!(view["servesAlone"], alone);
    }
}

/// Before 1.26 discovery is one list per group-version, and the server behind an aggregated API may
/// hang.
#[tokio::test]
async fn hanging_aggregated_apis_do_not_hide_the_apis_of_an_old_server() {
    const HANGING_APIS: usize = 40;
    let groups: Vec<_> = (0..HANGING_APIS)
        .map(|number| format!("hanging-{number}.example.com"))
        .collect();
    let lines: Vec<_> = (groups.iter())
        .map(|group| format!("{group}/v1 readings"))
        .collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let cluster = ClusterFixture::new(&[&lines[..], &["v1 pods"]].concat()).await;
    let b = cluster
        .peer(B, &[&lines[..], &["v1 pods", NEW]].concat())
        .await;
    for group in &groups {
        let service = serde_json::json!({"name": "readings", "namespace": "a"});
        cluster
            .local
            .put(API_SERVICES, api_service(group, &service));
    }
    let never = Arc::new(Notify::new());
    let hang = || {
        let never = never.clone();
        move |recorded: &RecordedRequest| {
            let hangs = recorded.path().starts_with("/apis/hanging-");
            hangs.then(|| Reply::new(200).after(&never))
        }
    };
    b.apiserver.set_version("v1.25.16", DiscoveryFormat::Legacy);
    b.apiserver.set_hook(hang());
    cluster
        .local
        .set_version("v1.25.16", DiscoveryFormat::Legacy);
    let bridge = cluster.start().await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    assert_eq!(cluster.get(&bridge, UNSERVED_PATH).await.status, 404);
    let view = peer_view(&bridge, B).await;
    assert_eq!(view["reachable"], true, "{view}");
    assert_eq!(view["servesAlone"], serde_json::json!([NEW]), "{view}");

    // The local server's earlier list is kept although the aggregated API hangs now.
    let apis = cluster.get(&bridge, "/apis").await.text().clone();
    assert!(groups.iter().all(|group| apis.contains(group)), "{apis}");
    cluster
        .local
        .serve(&[&lines[..], &["v1 pods", SHARED, NEW]].concat());
    cluster.local.set_hook(hang());
    cluster
        .local
        .put(CRDS, crd("stable.example.com", "crontabs"));
    eventually(
        "discovery of the local server is read again",
        TEST_TIMEOUT,
        async || {
            let view = peer_view(&bridge, B).await;
            view["servesAlone"].as_array().is_none_or(Vec::is_empty)
        },
    )
    .await;
    let accept = [("accept", V2)];
    let view = send_request(&cluster.alice(), &bridge, "GET", "/apis", &accept, "").await;
    for group in &groups {
        assert!(view.text().contains(group), "{}", view.text());
    }
}

#[tokio::test]
async fn peer_discovery_requests_look_like_those_of_kube_apiserver() {
    let (_cluster, [b], _bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    for path in ["/api", "/apis"] {
        let conditional_request = b.apiserver.gateway_requests(path).remove(0);
        let client = conditional_request.client.as_ref().unwrap();
        assert_eq!(client.common_name, "front-proxy-client");
        assert_eq!(
            conditional_request.all("x-remote-user"),
            ["system:apiserver"]
        );
        assert_eq!(
            conditional_request.all("x-remote-group"),
            ["system:authenticated"]
        );
        let accept = conditional_request.header("accept").unwrap();
        let offers: Vec<_> = accept.split(',').map(str::trim).collect();
        let nopeer = format!("{V2};profile=nopeer");
        let beta_nopeer = format!("{V2_BETA1};profile=nopeer");
        assert_eq!(
            offers,
            [&nopeer, V2, &beta_nopeer, V2_BETA1, "application/json"]
        );
        assert_eq!(conditional_request.header("if-none-match"), None);
    }
}

#[tokio::test]
async fn discovery_of_a_restarted_peer_is_conditional() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let request_count = b.apiserver.gateway_requests("/apis").len();
    cluster.local.lease(B, "two");
    for path in ["/apis", "/api"] {
        eventually(
            "discovery of the peer is requested again",
            TEST_TIMEOUT,
            async || b.apiserver.gateway_requests(path).len() > request_count,
        )
        .await;
        let conditional_request = b.apiserver.gateway_requests(path).remove(request_count);
        assert!(
            conditional_request.header("if-none-match").is_some(),
            "{conditional_request:#?}"
        );
    }
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);

    // Another version, whose ETags differ from those of the version before.
    let request_count = b.apiserver.gateway_requests("/apis").len();
    b.apiserver.set_version("v1.37.0", DiscoveryFormat::V2);
    b.apiserver.serve(&[SHARED]);
    cluster.local.lease(B, "three");
    cluster.wait_for_status(&bridge, NEW_PATH, 404).await;
    let later_requests = b
        .apiserver
        .gateway_requests("/apis")
        .split_off(request_count);
    let anew = |it: &RecordedRequest| it.header("if-none-match").is_none();
    assert!(later_requests.iter().any(anew), "{later_requests:#?}");
    assert_eq!(peer_view(&bridge, B).await["version"], "1.37.0");
}

#[tokio::test]
async fn the_last_discovery_of_an_unreachable_peer_is_used_until_its_lease_expires() {
    let (cluster, [mut b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    b.shut_down().await;
    cluster.local.lease(B, "two");
    eventually(
        "the peer is reported as unreachable",
        TEST_TIMEOUT,
        async || {
            let problem = &peer_view(&bridge, B).await["problem"];
            problem
                .as_str()
                .is_some_and(|it| it.contains("cannot connect"))
        },
    )
    .await;
    status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert_eq!(cluster.get(&bridge, UNSERVED_PATH).await.status, 404);

    // The server may be restarting behind its bridge, which keeps running.
    cluster.local.delete(LEASES, B);
    eventually(
        "the deletion of its Lease is known",
        TEST_TIMEOUT,
        async || peer_view(&bridge, B).await["alive"] == false,
    )
    .await;
    status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    b.withdraw_address();
    cluster.wait_for_status(&bridge, NEW_PATH, 404).await;
    assert_eq!(peers(&bridge).await["peers"], serde_json::json!([]));

    b.apiserver.server.listen_again().await;
    let _published = cluster.publish(B, b.apiserver.server.addr());
    cluster.local.lease(B, "three");
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
}

#[tokio::test]
async fn the_last_discovery_of_a_peer_is_kept_when_discovery_fails() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    b.apiserver.set_hook(|recorded: &RecordedRequest| {
        let broken = || Reply::json("{").header("X-Any", "thing");
        (recorded.path() == "/apis").then(broken)
    });
    cluster.local.lease(B, "two");
    eventually("the failure is reported", TEST_TIMEOUT, async || {
        !peer_view(&bridge, B).await["problem"].is_null()
    })
    .await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
}

#[tokio::test]
async fn a_peer_is_found_whether_its_lease_or_its_address_appears_first() {
    for lease_first in [true, false] {
        let cluster = ClusterFixture::new(&[]).await;
        let bridge = cluster.start().await;
        assert_eq!(cluster.get(&bridge, NEW_PATH).await.status, 404);
        let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
        let b = cluster.server(B, &[NEW], leaf).await;
        let mut published = None;
        if lease_first {
            cluster.local.lease(B, "one");
            // A running server without a discovery result may serve the resource.
            cluster.wait_for_status(&bridge, NEW_PATH, 503).await;
            let problem = &peer_view(&bridge, B).await["problem"];
            assert_eq!(problem, "it has published no address");
        } else {
            published = Some(cluster.publish(B, b.server.addr()));
        }
        if lease_first {
            published = Some(cluster.publish(B, b.server.addr()));
        } else {
            cluster.local.lease(B, "one");
        }
        cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
        drop(published);
    }
}

#[tokio::test]
async fn local_discovery_is_refreshed_when_it_may_have_changed() {
    type Change = fn(&ClusterFixture);
    let rows: [(&str, Change); 2] = [
        ("a CRD", |cluster| {
            cluster.local.put(CRDS, crd("other.example.com", "things"));
        }),
        ("an APIService", |cluster| {
            let built_in = api_service("other.k8s.io", &Value::Null);
            cluster.local.put(API_SERVICES, built_in);
        }),
    ];
    for (what, change) in rows {
        let (cluster, [_b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
        cluster.local.serve(&[SHARED, NEW]);
        change(&cluster);
        wait_until_served_locally(&cluster, &bridge, what).await;
    }

    let (cluster, [_b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    cluster.local.serve(&[SHARED, NEW]);
    cluster.local.set_version("v1.37.0", DiscoveryFormat::V2);
    cluster.local.server.listen_again().await;
    wait_until_served_locally(&cluster, &bridge, "a restart").await;
}

/// Long before the next periodic refresh, which comes after 24 s at the earliest.
async fn wait_until_served_locally(cluster: &ClusterFixture, bridge: &Handle, what: &str) {
    eventually(what, Duration::from_secs(15), async || {
        let answer = cluster.get(bridge, NEW_PATH).await;
        answer.status == 200 && served_by(&answer) == OWN
    })
    .await;
}

#[tokio::test]
async fn the_last_local_discovery_is_kept_while_the_local_server_is_unreachable() {
    let (cluster, [_b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    eventually(
        "the local server is reported as unreachable",
        TEST_TIMEOUT,
        async || {
            let metrics = admin_client::scrape(bridge.admin_address()).await;
            let name = "apiserver_peer_discovery_sync_errors_total";
            let count = metrics.value(name, &[("type", "lease_list")]);
            count.is_some_and(|count| count > 0.0)
        },
    )
    .await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    // What the local server serves, too: the peer is available.
    assert_eq!(
        served_by(&cluster.get(&bridge, cluster::SHARED_PATH).await),
        B
    );
}

#[tokio::test]
async fn the_bridge_maintains_the_lease_of_a_server_without_one_until_shutdown() {
    let cluster = ClusterFixture::new(&[]).await;
    cluster.local.delete(LEASES, OWN);
    let mut bridge = start(&cluster.config());
    // The server has ten seconds to create the Lease itself.
    eventually("the Lease exists", 2 * TEST_TIMEOUT, async || {
        cluster.local.object(LEASES, OWN).is_some()
    })
    .await;
    let lease = cluster.local.object(LEASES, OWN).unwrap();
    let labels = &lease["metadata"]["labels"];
    assert_eq!(labels["apiserver.kubernetes.io/identity"], "kube-apiserver");
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
    assert!(holder.starts_with("apiserver-own_"), "{holder}");
    let address = bridge.address().to_string();
    assert_eq!(lease["metadata"]["annotations"][ADDRESS], address);
    let renewed = async || {
        let lease = cluster.local.object(LEASES, OWN).unwrap();
        lease["spec"]["renewTime"].clone()
    };
    let first = renewed().await;
    eventually("the Lease is renewed", 2 * TEST_TIMEOUT, async || {
        renewed().await != first
    })
    .await;
    // Also when it has changed and the watch has not reported that yet.
    cluster.local.touch_without_event(LEASES, OWN);
    bridge.finish().await;
    assert!(
        cluster.local.object(LEASES, OWN).is_none(),
        "the Lease is deleted"
    );
}

#[tokio::test]
async fn the_stale_lease_of_an_earlier_run_is_deleted_at_startup() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut old = lease(OWN, "long ago");
    old["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z".into();
    cluster.local.put(LEASES, old);
    let _bridge = start(&cluster.config());
    eventually("the stale Lease is deleted", TEST_TIMEOUT, async || {
        cluster.local.object(LEASES, OWN).is_none()
    })
    .await;
}

#[tokio::test]
async fn the_address_is_published_until_the_bridge_shuts_down() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut addresses = cluster.addresses();
    let own = Identity::named(OWN).unwrap();
    let mut bridge = cluster.start().await;
    let known = addresses.wait_for(|all| all.contains_key(&own)).await;
    assert_eq!(known.unwrap()[&own].address, bridge.address());
    bridge.finish().await;
    let withdrawn = addresses.wait_for(|all| !all.contains_key(&own));
    assert!(tokio::time::timeout(TEST_TIMEOUT, withdrawn).await.is_ok());
}

#[tokio::test]
async fn a_lease_that_its_server_maintains_is_not_changed() {
    let (cluster, [_b], mut bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    bridge.finish().await;
    let mut written = cluster.local.server.requests();
    written.retain(|recorded| recorded.path().starts_with(LEASES) && recorded.method != "GET");
    assert!(written.is_empty(), "{written:#?}");
    assert!(cluster.local.object(LEASES, OWN).is_some());
}

#[tokio::test]
async fn addresses_are_read_from_leases_and_only_those_in_the_permitted_networks_are_used() {
    let cluster = ClusterFixture::new(&[]).await;
    let leaf = || cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let inside = cluster.server(B, &[NEW], leaf()).await;
    let annotated = |name: &str, address: &str| {
        let mut lease = lease(name, "one");
        lease["metadata"]["annotations"][ADDRESS] = address.into();
        lease
    };
    let address = inside.server.addr().to_string();
    cluster.local.put(LEASES, annotated(B, &address));
    // The same server under an address outside the permitted network.
    let outside = address.replace("127.0.0.1", "127.0.0.2");
    cluster.local.put(LEASES, annotated(C, &outside));
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::Leases;
    config.peers.cidrs = vec!["127.0.0.1/32".parse().unwrap()];
    let mut bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let view = peer_view(&bridge, C).await;
    assert!(view["address"].is_null(), "{view}");
    let problem = view["problem"].as_str().unwrap();
    assert!(
        problem.contains(&outside) && problem.contains("--peer-cidrs"),
        "{view}"
    );

    let annotation = |name: &str| {
        let lease = cluster.local.object(LEASES, OWN).unwrap();
        lease["metadata"]["annotations"][name].clone()
    };
    let own = Value::from(bridge.address().to_string());
    eventually(
        "the bridge's own address is written",
        TEST_TIMEOUT,
        async || annotation(BRIDGE_ADDRESS) == own,
    )
    .await;
    let lease = cluster.local.object(LEASES, OWN).unwrap();
    assert_eq!(
        lease["spec"]["holderIdentity"], "one",
        "the Lease is still the server's"
    );
    assert_eq!(
        annotation(ADDRESS),
        Value::Null,
        "the server's annotation is not written"
    );
    bridge.finish().await;
    assert_eq!(
        annotation(BRIDGE_ADDRESS),
        Value::Null,
        "the address is withdrawn"
    );
}

/// Since 1.36 a server writes its own address every 10 s.
#[tokio::test]
async fn a_server_and_its_bridge_do_not_overwrite_each_others_addresses() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::Leases;
    config.peers.cidrs = vec!["127.0.0.1/32".parse().unwrap()];
    let bridge = start(&config);
    let own = || cluster.local.object(LEASES, OWN).unwrap();
    let server = Value::from("127.0.0.1:1");
    let renew = || {
        let mut lease = own();
        lease["metadata"]["annotations"][ADDRESS] = server.clone();
        lease["spec"]["renewTime"] = Value::from(MicroTime::from(SystemTime::now()).to_string());
        cluster.local.put(LEASES, lease);
    };
    renew();
    let address = Value::from(bridge.address().to_string());
    eventually(
        "the bridge has written its address",
        TEST_TIMEOUT,
        async || own()["metadata"]["annotations"][BRIDGE_ADDRESS] == address,
    )
    .await;
    let written = || {
        let mut written = cluster.local.server.requests();
        written.retain(|recorded| recorded.path().starts_with(LEASES) && recorded.method != "GET");
        written.len()
    };
    assert_eq!(written(), 1);
    renew();
    // Each read of the Lease is followed by one of the other objects.
    cluster.local.lease(B, "one");
    eventually(
        "the bridge has read the Lease since",
        TEST_TIMEOUT,
        async || {
            !peer_view(&bridge, B).await.is_null()
                && peers(&bridge).await["local"]["leaseKeptBy"] == "kube-apiserver"
        },
    )
    .await;
    assert_eq!(written(), 1);
    let annotations = &own()["metadata"]["annotations"];
    assert_eq!(annotations[ADDRESS], server);
    assert_eq!(annotations[BRIDGE_ADDRESS], address);
}

//! Served records outlive the process that wrote them: in the registry and in `--state-dir`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skewbridge_discovery::{ServerDiscoveryList, servers};
use skewbridge_gateway::config::RegistryKind;
use skewbridge_peer_directory::{Records, ServedRecord};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};

use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, SHARED_PATH, UNSERVED_PATH, peer_view, peers, send_request,
    served_by, status_message,
};
use crate::support::fake_apiserver::{API_SERVICES, CRDS, LEASES, api_service, crd};
use crate::support::pki::start;
use crate::support::served_records::{
    B, SERVED_ANNOTATION, age_departure_of_b, record_of, record_of_b, records,
    wait_until_b_is_known, with_state_dir,
};

#[tokio::test]
async fn the_apis_of_a_dead_peer_are_known_after_a_restart_of_the_bridge() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut b = cluster.peer(B, &[NEW]).await;
    let config = with_state_dir(&cluster);
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let file = cluster.pki.path().join("state/served").join(B);
    eventually("the record is stored", TEST_TIMEOUT, async || file.exists()).await;
    b.shut_down().await;
    b.withdraw_address();
    drop(bridge);

    let bridge = start(&config);
    wait_until_b_is_known(&bridge).await;
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    let answer = cluster.get(&bridge, NEW_PATH).await;
    let message = status_message(&answer, 503);
    assert!(message.contains("has published an address"), "{message}");
    assert_eq!(answer.header("retry-after"), Some("1"));
    let discovery = cluster.get(&bridge, "/apis/storage.k8s.io/v1alpha1").await;
    assert_eq!(
        discovery.status, 200,
        "discovery includes the dead peer's API"
    );

    // When the Lease expires, the record is dropped.
    cluster.local.delete(LEASES, B);
    cluster.wait_for_status(&bridge, NEW_PATH, 404).await;
}

#[tokio::test]
async fn the_apis_of_a_peer_that_was_never_reachable_are_known_from_the_registry() {
    let cluster = ClusterFixture::new(&[]).await;
    let (_recorded, publish) = records(&cluster);
    let record = record_of_b(&cluster).await;
    publish.send_replace(Some(Arc::new(record)));
    // An address without a listener.
    let _address = cluster.publish(B, SocketAddr::from(([127, 0, 0, 1], 1)));
    let bridge = start(&cluster.config());
    wait_until_b_is_known(&bridge).await;
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains("cannot connect"), "{message}");
    assert_eq!(
        peer_view(&bridge, B).await["secondsSinceSync"],
        serde_json::Value::Null
    );
}

/// Records omit the group-versions that all servers share.
#[tokio::test]
async fn shared_group_versions_are_not_a_difference_to_a_peer_known_from_a_record() {
    const CUSTOM: &str = "stable.example.com/v1 crontabs";
    const AGGREGATED: &str = "metrics.example.com/v1 readings";
    let cluster = ClusterFixture::new(&[CUSTOM, AGGREGATED]).await;
    let custom = crd("stable.example.com", "crontabs");
    cluster.local.put(CRDS, custom);
    let service = serde_json::json!({"name": "readings", "namespace": "a"});
    let aggregated = api_service("metrics.example.com", &service);
    cluster.local.put(API_SERVICES, aggregated);
    let (_recorded, publish) = records(&cluster);
    let record = record_of_b(&cluster).await;
    publish.send_replace(Some(Arc::new(record)));
    let bridge = start(&cluster.config());
    wait_until_b_is_known(&bridge).await;
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    let view = peers(&bridge).await;
    assert_eq!(
        view["local"]["servesAlone"],
        serde_json::json!([]),
        "{view}"
    );
    assert_eq!(view["peers"][0]["servesAlone"], serde_json::json!([NEW]));

    let accept = [("accept", servers::ACCEPT)];
    let answer = send_request(&cluster.alice(), &bridge, "GET", "/apis", &accept, "").await;
    let list = ServerDiscoveryList::parse(&answer.body).unwrap();
    assert_eq!(list.servers.len(), 2);
    for server in list.servers {
        let groups = server.groups.unwrap();
        for group in ["stable.example.com", "metrics.example.com"] {
            let has_it = groups.iter().any(|it| it.name() == group);
            assert!(has_it, "{group} of {}: {groups:?}", server.identity);
        }
    }
}

#[tokio::test]
async fn a_bridge_publishes_its_served_record_and_announces_its_departure() {
    let cluster = ClusterFixture::new(&[NEW]).await;
    let (mut recorded, _publish) = records(&cluster);
    let mut bridge = cluster.start().await;
    let published = recorded
        .wait_for(|all| record_of(all.as_ref(), OWN).is_some())
        .await;
    let record = record_of(published.unwrap().as_ref(), OWN).unwrap().clone();
    assert!(record.bridge_left_at.is_none());
    let resource = record.served.index.serves_resource(
        "storage.k8s.io",
        "v1alpha1",
        "volumeattributesclasses",
    );
    assert!(resource, "{record:?}");
    assert_eq!(
        record.server, None,
        "loopback is not reachable from other hosts"
    );

    bridge.finish().await;
    let left = |all: &Option<Records>| {
        record_of(all.as_ref(), OWN).is_some_and(|it| it.bridge_left_at.is_some())
    };
    recorded.wait_for(left).await.unwrap();
    drop(bridge);
    // The next bridge withdraws the announcement, even if its server does not answer.
    cluster
        .local
        .set_hook(|_| Some(skewbridge_testkit::Reply::new(500).body("not yet")));
    let _bridge = start(&cluster.config());
    recorded.wait_for(|all| !left(all)).await.unwrap();
}

#[tokio::test]
async fn a_server_whose_bridge_has_departed_is_reached_directly() {
    let cluster = ClusterFixture::new(&[]).await;
    let (_recorded, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    let b = cluster.server(B, &[NEW], leaf).await;
    record.bridge_left_at = Some(SystemTime::now());
    record.server = Some(b.server.addr());
    publish.send_replace(Some(Arc::new(record)));
    let bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    assert_eq!(peer_view(&bridge, B).await["state"], "bridge-left");
}

/// The clocks of hosts may differ by hours in either direction, so the time in a record does not
/// tell how long ago a bridge departed.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_apis_of_an_unreachable_server_whose_bridge_has_departed_are_503_during_a_rollout() {
    const HOUR_MILLIS: u64 = 3_600_000;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = u64::try_from(now.unwrap().as_millis()).unwrap();
    for announced in [now, now - 9 * HOUR_MILLIS, now + 9 * HOUR_MILLIS] {
        let cluster = ClusterFixture::new(&[]).await;
        let (_recorded, publish) = records(&cluster);
        let mut record = record_of_b(&cluster).await;
        record.bridge_left_at = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(announced));
        publish.send_replace(Some(Arc::new(record)));
        let config = with_state_dir(&cluster);
        // The first process has just observed the departure, the second one observed it long ago.
        for status in [503, 404] {
            let bridge = start(&config);
            eventually("the departure is known", TEST_TIMEOUT, async || {
                peer_view(&bridge, B).await["state"] == "bridge-left"
            })
            .await;
            cluster.wait_for_status(&bridge, "/readyz", 200).await;
            assert_eq!(cluster.get(&bridge, NEW_PATH).await.status, status);
            assert_eq!(cluster.get(&bridge, UNSERVED_PATH).await.status, status);
            if status == 503 {
                age_departure_of_b(&cluster, Duration::from_mins(6)).await;
            }
        }
    }
}

/// The options of `/proc` for a service with this unit (systemd.exec(5)).
#[cfg(target_os = "linux")]
fn proc_options(unit: &str) -> String {
    let options = unit.lines().filter_map(|line| match line.split_once('=')? {
        ("ProtectProc", value) => Some(format!("hidepid={value}")),
        ("ProcSubset", "pid") => Some("subset=pid".to_owned()),
        _ => None,
    });
    options.collect::<Vec<_>>().join(",")
}

/// The test above, by a process that has the same `/proc` as the service.
#[cfg(target_os = "linux")]
#[test]
fn a_departure_survives_restarts_with_the_proc_of_the_systemd_unit() {
    const UNIT: &str = include_str!("../../../cli/src/manifest/skewbridge.service");
    const TEST: &str =
        "the_apis_of_an_unreachable_server_whose_bridge_has_departed_are_503_during_a_rollout";
    let options = proc_options(UNIT);
    if skewbridge_testkit::unprivileged_user().is_none() {
        return;
    }
    let module = module_path!().split_once("::").unwrap().1;
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c"])
        .arg("mount -t proc -o \"$1\" proc /proc && shift && exec \"$@\"")
        .args(["sh", &options])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{TEST}")])
        .output()
        .unwrap();
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}{stderr}");
}

#[tokio::test]
async fn with_leases_as_the_registry_served_records_are_annotations() {
    let cluster = ClusterFixture::new(&[]).await;
    let record = record_of_b(&cluster).await;
    let mut lease = cluster.local.object(LEASES, B).unwrap();
    lease["metadata"]["annotations"][SERVED_ANNOTATION] =
        STANDARD.encode(record.encode().unwrap()).into();
    cluster.local.put(LEASES, lease);
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::Leases;
    config.peers.cidrs = vec!["127.0.0.1/32".parse().unwrap()];
    let mut bridge = start(&config);
    wait_until_b_is_known(&bridge).await;
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains("published an address"), "{message}");

    let own = || {
        let lease = cluster.local.object(LEASES, OWN)?;
        let bytes = STANDARD.decode(lease["metadata"]["annotations"][SERVED_ANNOTATION].as_str()?);
        ServedRecord::decode(&bytes.ok()?).ok()
    };
    eventually(
        "the bridge's own record is written",
        TEST_TIMEOUT,
        async || {
            own().is_some_and(|it| {
                it.bridge_left_at.is_none() && it.bridge == Some(bridge.address())
            })
        },
    )
    .await;
    bridge.finish().await;
    assert!(
        own().is_some_and(|it| it.bridge_left_at.is_some()),
        "the bridge announces its departure"
    );

    // Invalid records are ignored, and so is the record of another server.
    let mut lease = cluster.local.object(LEASES, B).unwrap();
    for wrong in [
        "",
        "!",
        "AAAA",
        &STANDARD.encode(own().unwrap().encode().unwrap()),
    ] {
        lease["metadata"]["annotations"][SERVED_ANNOTATION] = wrong.into();
        cluster.local.put(LEASES, lease.clone());
        let bridge = start(&config);
        cluster.wait_for_status(&bridge, "/readyz", 200).await;
        let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
        assert!(message.contains("not served here"), "{wrong} {message}");
    }
}

/// Since 1.35 a restarting server deletes its Lease, and the annotations with it.
#[tokio::test]
async fn with_leases_as_the_registry_the_record_of_a_restarting_server_is_kept() {
    for left in [None, Some(std::time::SystemTime::now())] {
        let cluster = ClusterFixture::new(&[]).await;
        let mut record = record_of_b(&cluster).await;
        record.bridge_left_at = left;
        let mut lease = cluster.local.object(LEASES, B).unwrap();
        let annotations = &mut lease["metadata"]["annotations"];
        annotations[SERVED_ANNOTATION] = STANDARD.encode(record.encode().unwrap()).into();
        if left.is_none() {
            annotations["skewbridge.io/peer-advertise-address"] = "127.0.0.1:1".into();
        }
        cluster.local.put(LEASES, lease);
        let mut config = cluster.config();
        config.peers.registry = RegistryKind::Leases;
        config.peers.cidrs = vec!["127.0.0.1/32".parse().unwrap()];
        let bridge = start(&config);
        wait_until_b_is_known(&bridge).await;
        cluster.wait_for_status(&bridge, NEW_PATH, 503).await;
        cluster.local.delete(LEASES, B);
        eventually(
            "the deletion of the Lease is known",
            TEST_TIMEOUT,
            async || peer_view(&bridge, B).await["alive"] != true,
        )
        .await;
        let answer = cluster.get(&bridge, NEW_PATH).await;
        assert_eq!(answer.status, 503, "{left:?} {}", answer.text());
    }
}

#[tokio::test]
async fn an_unusable_state_dir_is_a_startup_error() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut config = cluster.config();
    let file = cluster.pki.dir.write("file", "");
    config.peers.state_dir = Some(file.clone());
    // The error drops its runtime, which has to happen outside of this one.
    let started = tokio::task::spawn_blocking(move || skewbridge_gateway::start(&config));
    let error = started.await.unwrap().unwrap_err().to_string();
    let expected = format!("--state-dir: {}: ", file.display());
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.ends_with("set a directory that the bridge may create and write to"));
}

#[tokio::test]
async fn the_state_dir_is_used_after_the_registry_has_not_answered_in_time() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    let mut config = with_state_dir(&cluster);
    let bridge = start(&config);
    let file = cluster.pki.path().join("state/served").join(B);
    eventually("the record is stored", TEST_TIMEOUT, async || file.exists()).await;
    drop(bridge);
    b.shut_down().await;

    // An address without a listener.
    config.peers.registry = RegistryKind::Etcd;
    config.peers.etcd.servers = vec!["http://127.0.0.1:1".parse().unwrap()];
    let bridge = start(&config);
    eventually(
        "the bridge waits for the registry",
        TEST_TIMEOUT,
        async || {
            let answer = cluster.get(&bridge, NEW_PATH).await;
            answer.status == 503 && answer.text().contains("in the registry")
        },
    )
    .await;
    cluster.wait_for_status(&bridge, SHARED_PATH, 200).await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains("1 servers serve this"), "{message}");
}

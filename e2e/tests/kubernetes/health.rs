//! Health reports with real kube-apiservers: the self-test, and peers by host name.

use std::time::Duration;

use skewbridge_e2e::{
    Bridge, ControlPlane, ServerSpec, VersionSpecificApi, Via, control_planes, old_and_new_versions,
};
use skewbridge_testkit::{Ca, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, identity, wait_until_served};

/// For the self-test of a bridge, whose server may have just started.
const SELF_TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `/readyz?verbose` of a bridge has a line with this prefix.
async fn line_of(bridge: &Bridge, beginning: &str) -> String {
    let find = async || {
        let (_, text) = bridge.admin_page("/readyz?verbose").await?;
        let line = text.lines().find(|line| line.starts_with(beginning));
        line.map(str::to_owned)
    };
    eventually(beginning, SELF_TEST_TIMEOUT, async || {
        find().await.is_some()
    })
    .await;
    find().await.unwrap()
}

#[tokio::test]
async fn the_self_test_passes_and_reports_files_that_differ_from_the_upstream() {
    for versions in control_planes() {
        let servers: Vec<_> = versions.iter().map(|it| ServerSpec::of(it)).collect();
        let plane = ControlPlane::start(&servers).await;
        for (number, version) in versions.iter().enumerate() {
            eventually("the self-test passes", SELF_TEST_TIMEOUT, async || {
                let ready = plane.admin_page(number, "/readyz?verbose").await;
                ready.contains("[+]self-test ok\n")
            })
            .await;
            let metrics = plane.admin_page(number, "/metrics").await;
            for test in ["front_proxy", "client_ca", "requestheader_ca"] {
                let line = format!("skewbridge_self_test_up{{test=\"{test}\"}} 1");
                assert!(metrics.contains(&line), "{version}: {line}");
            }
        }
        // The oldest and the newest version behave alike: one of them is enough for the rest.
        let upstream = plane.servers[0].address;
        let foreign = Ca::new("foreign-ca");
        let leaf = foreign.client("front-proxy-client", &[]);
        let crt = plane.file("foreign.crt", &leaf.cert_pem);
        let key = plane.file("foreign.key", &leaf.key_pem);
        let flags = [
            &*format!("--proxy-client-cert-file={crt}"),
            &format!("--proxy-client-key-file={key}"),
        ];
        let bridge = plane.spawn_bridge_for(upstream, &flags);
        let line = line_of(&bridge, "[-]self-test failed: front_proxy: ").await;
        println!("{}: {line}", versions[0]);
        let named = format!("--proxy-client-cert-file {crt}: ");
        assert!(line.contains(&named), "{line}");
        assert!(line.contains("(CN=foreign-ca)"), "{line}");

        let ca = plane.file("foreign-ca.crt", &foreign.pem());
        let flag = format!("--client-ca-file={ca}");
        let bridge = plane.spawn_bridge_for(upstream, &[&flag]);
        let line = line_of(&bridge, "[-]self-test failed: client_ca: ").await;
        println!("{}: {line}", versions[0]);
        for part in [&*format!("--client-ca-file {ca}: "), "CN=kubernetes"] {
            assert!(line.contains(part), "{line}");
        }
    }
}

#[tokio::test]
async fn a_killed_peer_is_named_by_host_and_its_requests_are_counted() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|version| ServerSpec::of(&version).peer());
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    // Requests reach a peer before its discovery has been read: a kube-apiserver that has just
    // started refuses discovery until its RBAC rules exist.
    for line in ["[+]peers ok: 1 of 1 reachable\n", "[+]registry ok: etcd\n"] {
        eventually(line, PEER_DISCOVERY_TIMEOUT, async || {
            let ready = plane.admin_page(OLD, "/readyz?verbose").await;
            ready.contains(line)
        })
        .await;
    }

    plane.stop_bridge(NEW, "KILL");
    plane.stop_server(NEW, "KILL");
    let policies = VersionSpecificApi::POLICIES.path;
    assert_eq!(plane.status(OLD, Via::Bridge, policies).await, 503);
    let (host, identity) = (plane.servers[NEW].host.clone(), identity(&plane, NEW));
    let line = format!("[+]peers ok: 0 of 1 reachable; unreachable: {host} ({identity}): ");
    eventually(&line, PEER_DISCOVERY_TIMEOUT, async || {
        let ready = plane.admin_page(OLD, "/readyz?verbose").await;
        ready.contains(&line)
    })
    .await;
    let metrics = plane.admin_page(OLD, "/metrics").await;
    let labels = format!("peer=\"{identity}\",host=\"{host}\"");
    for line in [
        format!("skewbridge_peer_up{{{labels}}} 0"),
        format!("skewbridge_rerouted_requests_total{{{labels},code=\"503\"}} 1"),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

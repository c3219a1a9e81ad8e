//! `skewbridge check` of a cluster with bridges.

use std::net::SocketAddr;

use skewbridge_e2e::{ControlPlane, Node};
use skewbridge_testkit::eventually;

use super::{PORT, Report, cluster, kubeconfig, loopback, node, shell};
use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT};

/// `--exec` through both bridges.
async fn commands_in_pods(plane: &ControlPlane, directory: &str) {
    let _node = plane.start_node().await;
    let namespace = format!("--namespace={}", Node::NAMESPACE);
    let in_pod = async |pod: &str| {
        let exec = format!("--exec={pod}");
        cluster(plane, directory, &[&exec, &namespace]).await
    };
    let runs = |outcome: &str, report: &Report| -> Vec<String> {
        let found = report.with(outcome).into_iter();
        let names = found.filter_map(|it| it["name"].as_str());
        let names = names.filter(|it| it.contains("a command runs in the pod"));
        names.map(str::to_owned).collect()
    };
    let report = in_pod(Node::POD).await;
    report.passes();
    let succeeded = runs("ok", &report);
    assert_eq!(succeeded.len(), 2, "{succeeded:?}");
    for server in [OLD, NEW] {
        let bridge = SocketAddr::new(node(server), PORT).to_string();
        let of_bridge = succeeded.iter().any(|it| it.contains(&bridge));
        assert!(of_bridge, "{bridge}: {succeeded:?}");
    }
    let report = in_pod("missing").await;
    let failure = report.failure("a command runs in the pod streams/missing");
    let why = failure["message"].as_str().unwrap();
    assert!(why.contains("\"missing\" not found"), "{why}");
    assert_eq!(
        failure["remedy"]["command"],
        "skewbridge exec -v1 -n streams missing -- true"
    );
    assert_eq!(runs("failure", &report).len(), 2);
}

/// All is well, then: a component that uses kube-apiserver directly, and a bridge with another
/// registry.
pub(super) async fn of_the_cluster(plane: &mut ControlPlane) -> usize {
    let directory = plane.directory().join("kubernetes");
    std::fs::create_dir_all(&directory).unwrap();
    let directory = directory.display().to_string();
    let bridge = SocketAddr::new(node(OLD), PORT);
    for name in ["controller-manager", "scheduler", "kubelet"] {
        kubeconfig(plane, &format!("kubernetes/{name}.conf"), bridge);
    }
    let report = cluster(plane, &directory, &["--wait=30s"]).await;
    report.passes();
    let unknown = report.with("notKnown");
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert_eq!(report.warnings_but_for_the_versions(), Vec::<&str>::new());
    let names: Vec<_> = report
        .with("ok")
        .iter()
        .map(|it| it["name"].to_string())
        .collect();
    let has = |text: &str| names.iter().any(|it| it.contains(text));
    for text in [
        "the bridge is ready",
        "has a bridge at",
        "all bridges have the same version",
        "discovery has the APIs of all servers",
        "is rerouted",
        "a write works",
        "leads to a bridge at 10.78.0.1:6443",
        "leads to a bridge at 10.78.0.2:6443",
        "kube-scheduler",
        "kubelet (",
        "the serving certificate of",
        "the clocks of this machine",
    ] {
        assert!(has(text), "{text}: {names:#?}");
    }

    commands_in_pods(plane, &directory).await;

    kubeconfig(plane, "kubernetes/scheduler.conf", loopback(OLD));
    let report = cluster(plane, &directory, &[]).await;
    let remedy = &report.failure("kube-scheduler")["remedy"];
    let command = remedy["command"].as_str().unwrap().to_owned();
    let own = format!(" --server=https://{bridge}");
    assert!(command.ends_with(&own), "{command}");
    shell(plane, &command).await;
    cluster(plane, &directory, &[]).await.passes();

    // Another prefix is another registry.
    plane.stop_bridge(NEW, "TERM");
    let other = "--etcd-prefix=/other";
    plane.add_bridge_flag(NEW, other);
    plane.start_bridge(NEW);
    plane
        .wait_for_ready("the bridge", SocketAddr::new(node(NEW), PORT))
        .await;
    let name = "which reaches the same servers";
    let mut report = cluster(plane, &directory, &[]).await;
    eventually(
        "the bridge with another registry is found",
        PEER_DISCOVERY_TIMEOUT * 2,
        async || {
            report = cluster(plane, &directory, &[]).await;
            let failures = report.with("failure");
            let mut names = failures.iter().filter_map(|it| it["name"].as_str());
            names.any(|it| it.contains(name))
        },
    )
    .await;
    let found = report.failure(name);
    let title = found["name"].as_str().unwrap();
    let host = &plane.servers[NEW].host;
    assert!(title.starts_with(host.as_str()), "{title}");
    let address = SocketAddr::new(node(NEW), PORT).to_string();
    assert!(title.contains(&address), "{title}");
    let remedy = &found["remedy"];
    println!("{name}: {remedy:#}");
    let text = format!("give the bridge of {host} ");
    let remedy = remedy["text"].as_str().unwrap();
    assert!(remedy.starts_with(&text), "{remedy}");
    assert!(remedy.contains("the same registry and flags"), "{remedy}");
    // The remedy: those of the other bridge.
    plane.stop_bridge(NEW, "TERM");
    plane.remove_bridge_flag(NEW, other);

    plane.start_bridge(NEW);
    plane
        .wait_for_ready("the bridge", SocketAddr::new(node(NEW), PORT))
        .await;
    cluster(plane, &directory, &["--wait=60s"]).await.passes();
    2
}

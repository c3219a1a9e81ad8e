//! `skewbridge check` where clients of the published addresses use kube-apiservers by design. The
//! layout with another port is tested by the suite `install_kubeadm`.

use std::net::SocketAddr;

use skewbridge_e2e::{ControlPlane, ServerSpec, old_and_new_versions, run_in_network_namespace};

use super::{PORT, Report, kubeconfig, node, run, wait_until_published};
use crate::peer_pair::{NEW, OLD};

#[tokio::test]
async fn a_balancer_leaves_published_addresses_to_kube_apiservers() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let test = "check::layouts::a_balancer_leaves_published_addresses_to_kube_apiservers";
    if !run_in_network_namespace(test, &[node(OLD), node(NEW)]) {
        return;
    }
    let [first, second] = [OLD, NEW].map(|server| SocketAddr::new(node(server), PORT));
    let spec = |version: &str, address| {
        let spec = ServerSpec::of(version).published_at(address);
        spec.without_bridge()
            .flag(&format!("--bind-address={}", address.ip()))
    };
    let plane = ControlPlane::start(&[spec(&old, first), spec(&new, second)]).await;
    let other = format!("--upstream=https://{second}");
    wait_until_published(&plane).await;
    let bridge = plane.start_bridge_for(first, &[&other]).await;

    let admin = kubeconfig(&plane, "balancer.conf", bridge.address);
    let directory = plane.directory().join("kubernetes");
    std::fs::create_dir_all(&directory).unwrap();
    kubeconfig(&plane, "kubernetes/kubelet.conf", bridge.address);
    kubeconfig(&plane, "kubernetes/scheduler.conf", first);
    let check = async |layout: &str, wait: &str| -> Report {
        let words = [
            "check",
            "-ojson",
            &format!("--kubeconfig={admin}"),
            &format!("--kubernetes-dir={}", directory.display()),
            &format!("--layout={layout}"),
            &format!("--wait={wait}"),
        ];
        run(&plane, &[], &words.map(str::to_owned)).await
    };
    let report = check("balancer", "30s").await;
    report.passes();
    let unknown = report.with("notKnown");
    assert!(unknown.is_empty(), "{unknown:#?}");
    let names = |outcome| -> Vec<String> {
        let found = report.with(outcome).into_iter();
        found.map(|it| it["name"].to_string()).collect()
    };
    let warnings = report.warnings_but_for_the_versions();
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
    for name in [&first.to_string(), &second.to_string(), "kube-scheduler ("] {
        assert!(
            warnings.iter().any(|it| it.contains(name)),
            "{name}: {warnings:#?}"
        );
    }
    let good = names("ok");
    assert!(good.iter().any(|it| it.contains("kubelet (")), "{good:#?}");

    let report = check("same-port", "0s").await;
    assert_eq!(report.code, Some(1));
    assert_eq!(report.with("failure").len(), 3, "{:#}", report.document);
}

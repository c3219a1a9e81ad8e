//! The steps of plans, for clusters of released versions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use skewbridge_upgrade_check::facts::{Bridge, Component, ObjectCount, Server};
use skewbridge_upgrade_check::plan::{Phase, Step, minors, steps};
use skewbridge_upgrade_check::{Direction, Facts, apis, evaluate};
use support::{clean, release, releases};

/// A clean cluster with servers of these versions; the first is `10.0.0.11:6443`.
fn cluster(versions: &[&str]) -> Facts {
    let current = release(versions[0]);
    let mut facts = clean(&current, &current);
    let server = facts.servers.remove(0);
    let servers = versions.iter().zip(11..).map(|(version, host)| Server {
        name: format!("10.0.0.{host}:6443"),
        version: Ok(release(version).version),
        ..server.clone()
    });
    facts.servers = servers.collect();
    facts
}

fn component(name: &str, instance: &str, version: &str) -> Component {
    Component {
        name: name.to_owned(),
        instance: instance.to_owned(),
        version: Ok(version.parse().unwrap()),
    }
}

/// The plan to a minor version.
fn plan(facts: &Facts, direction: Direction, target: &str) -> Vec<Step> {
    let target = release(target);
    // No API that goes has objects.
    let mut facts = facts.clone();
    let counted = apis::to_count(&facts.servers, releases(), &target).into_iter();
    facts.objects = counted
        .map(|(it, _)| (it, Ok(ObjectCount::default())))
        .collect();
    let facts = &facts;
    let report = evaluate(facts, direction, releases(), &target);
    let path = minors(facts, &report).into_iter();
    let path: Vec<_> = path.map(|it| release(&it.to_string()).version).collect();
    steps(facts, &report, &path)
}

/// `PHASE: TITLE`
fn titles(steps: &[Step]) -> Vec<String> {
    let phase = |phase| match phase {
        Phase::Before => "before".to_owned(),
        Phase::To(minor) => minor.to_string(),
        Phase::After => "after".to_owned(),
    };
    let title = |it: &Step| format!("{}: {}", phase(it.phase), it.title);
    steps.iter().map(title).collect()
}

fn commands(steps: &[Step], title: &str) -> String {
    let step = steps.iter().find(|it| it.title.contains(title));
    step.expect(title).commands.join("\n")
}

#[test]
fn an_upgrade_passes_each_minor_version_and_kubelets_are_last() {
    let mut facts = cluster(&["1.34", "1.34"]);
    facts.kubelets = Ok(vec![
        component("kubelet", "cp-1", "1.34.4"),
        component("kubelet", "node-1", "1.32.0"),
    ]);
    facts.components.found = vec![
        component("kube-controller-manager", "cp-1", "1.34.4"),
        component("kube-scheduler", "cp-1", "1.34.4"),
    ];
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    assert_eq!(
        titles(&steps),
        [
            "before: Save a snapshot of etcd",
            "1.35: Check the upgrade to 1.35",
            "1.35: Upgrade the kube-apiserver 10.0.0.11:6443 from 1.34.4 to 1.35.8",
            "1.35: Upgrade the kube-apiserver 10.0.0.12:6443 from 1.34.4 to 1.35.8",
            "1.35: Check that the other components are 1.35.8",
            "1.35: Decide: stay with 1.35, or return to 1.34",
            "1.36: Check the upgrade to 1.36",
            // Four minor versions would be too many.
            "1.36: Upgrade 1 kubelet to 1.35.8",
            "1.36: Upgrade the kube-apiserver 10.0.0.11:6443 from 1.35.8 to 1.36.4",
            "1.36: Upgrade the kube-apiserver 10.0.0.12:6443 from 1.35.8 to 1.36.4",
            "1.36: Check that the other components are 1.36.4",
            "1.36: Decide: stay with 1.36, or return to 1.35",
            "after: Upgrade 2 kubelets to 1.36.4",
            "after: Check the cluster",
        ]
    );
    // kubeadm changes the first node of a version in another way than the others.
    assert!(
        commands(&steps, "10.0.0.11:6443 from 1.34.4").contains("kubeadm upgrade apply v1.35.8")
    );
    assert!(commands(&steps, "10.0.0.12:6443 from 1.34.4").ends_with("kubeadm upgrade node"));
    let first = &steps[2];
    let rollback = first.rollback.as_ref().unwrap();
    assert!(
        rollback.commands.join("\n").contains("':v1.34\\.'"),
        "{rollback:?}"
    );
    assert!(
        first.notes[0].starts_with("No bridge is in front of it"),
        "{first:?}"
    );
    assert!(
        first.notes[1].starts_with("It is the first one of 1.35"),
        "{first:?}"
    );
}

#[test]
fn findings_come_first_except_for_those_that_the_plan_resolves() {
    let mut facts = cluster(&["1.35"]);
    facts.kubelets = Ok(vec![component("kubelet", "node-1", "1.37.0")]);
    facts.components.found = vec![component("kube-scheduler", "cp-1", "1.34.0")];
    facts.migrations = Err("forbidden".to_owned());
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    assert_eq!(
        titles(&steps)[..4],
        [
            "before: Resolve kubelet on node-1",
            "before: Find out about StorageVersionMigrations",
            "before: Find out about kube-controller-manager",
            "before: Save a snapshot of etcd",
        ]
    );
}

#[test]
fn a_mixed_cluster_goes_on_with_its_oldest_server() {
    let facts = cluster(&["1.36", "1.34", "1.35"]);
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    let of_servers = |steps: &[Step]| {
        let titles = titles(steps).into_iter();
        titles
            .filter(|it| it.contains("kube-apiserver"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of_servers(&steps),
        [
            "1.35: Upgrade the kube-apiserver 10.0.0.12:6443 from 1.34.4 to 1.35.8",
            "1.36: Upgrade the kube-apiserver 10.0.0.12:6443 from 1.35.8 to 1.36.4",
            "1.36: Upgrade the kube-apiserver 10.0.0.13:6443 from 1.35.8 to 1.36.4",
        ]
    );
    // A server of this version has been upgraded before: the others follow.
    assert!(commands(&steps, "10.0.0.12:6443 from 1.35.8").ends_with("kubeadm upgrade node"));
    // On the way back the newest one is the last.
    let steps = plan(&facts, Direction::Rollback, "1.34");
    assert_eq!(
        of_servers(&steps),
        [
            "1.35: Return the kube-apiserver 10.0.0.11:6443 from 1.36.4 to 1.35",
            "1.34: Return the kube-apiserver 10.0.0.13:6443 from 1.35.8 to 1.34",
            "1.34: Return the kube-apiserver 10.0.0.11:6443 from 1.35.8 to 1.34",
        ]
    );
}

#[test]
fn a_rollback_begins_with_what_must_not_be_newer_than_a_server() {
    let mut facts = cluster(&["1.36", "1.35"]);
    facts.kubelets = Ok(vec![
        component("kubelet", "node-1", "1.36.4"),
        component("kubelet", "node-2", "1.35.8"),
    ]);
    facts.components.found = vec![
        component("kube-controller-manager", "cp-1", "1.36.4"),
        component("kube-scheduler", "cp-1", "1.36.4"),
        component("kube-proxy", "the Nodes of DaemonSet kube-proxy", "1.36.4"),
    ];
    let steps = plan(&facts, Direction::Rollback, "1.35");
    assert_eq!(
        titles(&steps),
        [
            "before: Save a snapshot of etcd",
            "1.35: Check the return to 1.35",
            "1.35: Return 1 kubelet to 1.35.8",
            "1.35: Return 1 kube-proxy to 1.35.8",
            "1.35: Return 1 kube-controller-manager and 1 kube-scheduler to 1.35",
            "1.35: Return the kube-apiserver 10.0.0.11:6443 from 1.36.4 to 1.35",
            "after: Return kubeadm and its configuration to 1.35.8",
            "after: Check the cluster",
        ]
    );
    let last = steps
        .iter()
        .find(|it| it.title.contains("kube-apiserver "))
        .unwrap();
    assert!(
        last.notes
            .iter()
            .any(|it| it.starts_with("It is the last one")),
        "{last:?}"
    );
    assert!(last.commands.join("\n").contains("':v1.35\\.'"), "{last:?}");
}

#[test]
fn kubelets_are_upgraded_once_more_only_if_the_policy_demands_it() {
    let mut facts = cluster(&["1.33"]);
    facts.kubelets = Ok(vec![
        component("kubelet", "node-1", "1.30.0"),
        component("kubelet", "node-2", "1.33.0"),
    ]);
    let steps = plan(&facts, Direction::Upgrade, "1.37");
    let kubelets = |steps: &[Step]| {
        let titles = titles(steps).into_iter();
        titles
            .filter(|it| it.contains("kubelet"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        kubelets(&steps),
        [
            "1.34: Upgrade 1 kubelet to 1.33.13",
            "1.37: Upgrade 2 kubelets to 1.36.4",
            "after: Upgrade 2 kubelets to 1.37.1",
        ]
    );
    let last = &steps
        .iter()
        .rfind(|it| it.title.contains("kubelet"))
        .unwrap();
    assert_eq!(
        last.notes,
        ["kubelet on node-1 (1.36.4), kubelet on node-2 (1.36.4)"]
    );
    // On the way back they return once, to the oldest version that the servers of now allow.
    let mut facts = cluster(&["1.37"]);
    facts.kubelets = Ok(vec![component("kubelet", "node-1", "1.37.1")]);
    facts.components.found = vec![
        component("kube-proxy", "the Nodes of DaemonSet kube-proxy", "1.37.1"),
        component("kube-scheduler", "cp-1", "1.37.1"),
    ];
    let steps = plan(&facts, Direction::Rollback, "1.33");
    let titles = titles(&steps).into_iter();
    let others = titles.filter(|it| it.contains("Return 1"));
    assert_eq!(
        others.collect::<Vec<_>>(),
        [
            "1.36: Return 1 kubelet to 1.34.4",
            "1.36: Return 1 kube-proxy to 1.34.4",
            "1.36: Return 1 kube-scheduler to 1.36",
            "1.35: Return 1 kube-scheduler to 1.35",
            "1.34: Return 1 kube-scheduler to 1.34",
            "1.33: Return 1 kubelet to 1.33.13",
            "1.33: Return 1 kube-proxy to 1.33.13",
            "1.33: Return 1 kube-scheduler to 1.33",
        ]
    );
}

#[test]
fn the_commands_for_nodes_are_those_of_the_runbook() {
    let mut facts = cluster(&["1.35"]);
    facts.kubelets = Ok(vec![component("kubelet", "node-1", "1.35.8")]);
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    assert_eq!(
        commands(&steps, "Upgrade 1 kubelet"),
        "\
# for each Node, with NODE as its name, the control plane nodes first
kubectl drain NODE --ignore-daemonsets
# on the Node
apt-get update && apt-get install -y --allow-change-held-packages kubeadm='1.36.4-*'
# on a worker node only: a control plane node has had it with its kube-apiserver, and without --patches it would give the port of a bridge to kube-apiserver
test -e /etc/kubernetes/manifests/kube-apiserver.yaml || kubeadm upgrade node
# on the Node
apt-get update && apt-get install -y --allow-change-held-packages kubelet='1.36.4-*' kubectl='1.36.4-*'
systemctl daemon-reload && systemctl restart kubelet
# where kubectl was used before
kubectl uncordon NODE"
    );
    let mut facts = cluster(&["1.36"]);
    facts.kubelets = Ok(vec![component("kubelet", "node-1", "1.36.4")]);
    facts.components.found = vec![component("kube-proxy", "DaemonSet kube-proxy", "1.36.4")];
    let steps = plan(&facts, Direction::Rollback, "1.35");
    assert_eq!(
        commands(&steps, "Return 1 kubelet"),
        "\
# for each Node, with NODE as its name, the control plane nodes first
kubectl drain NODE --ignore-daemonsets
# on the Node
apt-get update && apt-get install -y --allow-downgrades --allow-change-held-packages kubelet='1.35.8-*' kubectl='1.35.8-*'
systemctl daemon-reload && systemctl restart kubelet
# where kubectl was used before
kubectl uncordon NODE"
    );
    assert_eq!(
        commands(&steps, "Return 1 kube-proxy"),
        "\
image=$(kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].image}')
image=${image%@*}
kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=\"${image%:*}:v1.35.8\""
    );
    assert_eq!(
        commands(&steps, "Return kubeadm"),
        "\
# on each control plane node that was upgraded
apt-get update && apt-get install -y --allow-downgrades --allow-change-held-packages kubeadm='1.35.8-*'
# on one of them
kubectl -n kube-system get configmap kubeadm-config -o yaml | sed 's/kubernetesVersion: v.*/kubernetesVersion: v1.35.8/' | kubectl replace -f -"
    );
    // Not upgraded by kubeadm, and too old for 1.36.
    let mut facts = cluster(&["1.35"]);
    facts.components.found = vec![component("kube-proxy", "DaemonSet kube-proxy", "1.32.0")];
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    assert_eq!(
        commands(&steps, "Upgrade 1 kube-proxy to 1.35.8"),
        "\
image=$(kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].image}')
image=${image%@*}
kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=\"${image%:*}:v1.35.8\""
    );
}

#[test]
fn bridges_in_front_are_named_and_waited_for() {
    let mut facts = cluster(&["1.35", "1.35", "1.35"]);
    facts.servers[0].bridge = Some(Bridge::Peer);
    facts.servers[1].bridge = Some(Bridge::Peer);
    facts.servers[2].bridge = Some(Bridge::LocalOnly("the gate is off".to_owned()));
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    let servers: Vec<_> = steps
        .iter()
        .filter(|it| it.title.contains("kube-apiserver "))
        .collect();
    assert_eq!(
        servers[0].notes[0],
        "In front of it: the bridge at 10.0.0.11:6443. While kube-apiserver restarts, its /readyz \
         fails, and load balancers use the bridges at 10.0.0.12:6443."
    );
    assert!(servers[2].notes[0].contains("local-only (the gate is off)"));
    let patches = " --patches=/etc/kubernetes/patches";
    assert!(
        servers
            .iter()
            .all(|it| it.commands.join("\n").ends_with(patches))
    );
    let expected: Vec<_> = servers[0].checks.iter().map(|it| &*it.expected).collect();
    assert!(
        expected[2].contains("`[+]peers ok: 2 of 2 reachable`"),
        "{expected:?}"
    );
    assert_eq!(expected[3], "no ✗");
}

/// On a control plane node with a bridge, `kubeadm upgrade` without `--patches` gives its port to
/// kube-apiserver.
#[test]
fn no_plan_upgrades_a_control_plane_node_with_a_bridge_without_patches() {
    for (direction, versions, target) in [
        (Direction::Upgrade, ["1.34", "1.34"], "1.36"),
        (Direction::Upgrade, ["1.36", "1.35"], "1.36"),
        (Direction::Rollback, ["1.36", "1.36"], "1.34"),
        (Direction::Rollback, ["1.36", "1.35"], "1.35"),
    ] {
        for bridge in [
            Bridge::Peer,
            Bridge::LocalOnly("the gate is off".to_owned()),
        ] {
            let mut facts = cluster(&versions);
            for (server, host) in facts.servers.iter_mut().zip(1..) {
                server.bridge = Some(bridge.clone());
                let version = server.version.clone().unwrap().to_string();
                let kubelet = component("kubelet", &format!("cp-{host}"), &version);
                facts.kubelets.as_mut().unwrap().push(kubelet);
            }
            let steps = plan(&facts, direction, target);
            let rollbacks = steps.iter().filter_map(|it| it.rollback.as_ref());
            let commands = steps.iter().flat_map(|it| &it.commands);
            let commands = commands.chain(rollbacks.flat_map(|it| &it.commands));
            for command in commands.filter(|it| it.contains("kubeadm upgrade ")) {
                let is_of_worker_nodes = command
                    .starts_with("test -e /etc/kubernetes/manifests/kube-apiserver.yaml || ");
                let has_patches = command.ends_with(" --patches=/etc/kubernetes/patches");
                assert!(is_of_worker_nodes || has_patches, "{command}");
            }
        }
    }
}

#[test]
fn without_a_server_to_change_there_are_no_steps() {
    let facts = cluster(&["1.36", "1.36"]);
    assert_eq!(plan(&facts, Direction::Upgrade, "1.36"), []);
    // A server whose version is not known is changed last.
    let mut facts = cluster(&["1.35", "1.35"]);
    facts.servers[0].version = Err("no answer".to_owned());
    let steps = plan(&facts, Direction::Upgrade, "1.36");
    let servers: Vec<_> = steps
        .iter()
        .filter(|it| it.title.contains("Upgrade the"))
        .collect();
    let expected = "Upgrade the kube-apiserver 10.0.0.11:6443 to 1.36.4";
    assert_eq!(servers[1].title, expected);
}

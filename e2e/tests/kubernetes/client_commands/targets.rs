//! Workloads and services: which of their pods a command selects, and which port of it.

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Node, RunningKubectl, ServerSpec, Via, control_planes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::{COMMAND_TIMEOUT, CommandPair, echo, ports_are_forwarded, run};

/// The labels of all pods here.
const LABELS: (&str, &str) = ("app", "web");

#[tokio::test]
async fn targets_resolve_to_the_same_pod_as_with_kubectl() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        let servers: Vec<_> = versions
            .iter()
            .map(|version| ServerSpec::of(version))
            .collect();
        let plane = ControlPlane::start(&servers).await;
        let _node = plane.start_node().await;
        let (target, _echo) = echo().await;
        create_workloads(&plane, target.port()).await;
        for server in 0..servers.len() {
            let pair = CommandPair {
                plane: &plane,
                server,
                via: Via::Server,
            };
            the_same_pod_is_chosen(&pair).await;
            attach_accepts_a_target_of_two_words(&pair).await;
            let forward = ["port-forward", "--address=127.0.0.1"];
            let rows = [
                ["svc/web", ":80"],
                ["svc/web", ":web"],
                ["best", ":http"],
                ["deploy/web", ":http"],
            ];
            for row in rows {
                let words = [forward, row].concat();
                ports_are_forwarded(pair.kubectl(&words, &[]), target).await;
                ports_are_forwarded(pair.skewbridge(&words), target).await;
            }
            for row in [["svc/web", ":53"], ["svc/web", ":dns"], ["best", ":53"]] {
                pair.equal_output(&[forward, row].concat(), &[], "").await;
            }
            a_forwarded_port_reaches_the_pod(&pair).await;
        }
    }
}

/// Three pods, of which one is preferred, and workloads that own them.
async fn create_workloads(plane: &ControlPlane, port: u16) {
    let (key, value) = LABELS;
    let labels = json!({ key: value });
    let namespace = Node::NAMESPACE;
    let core = format!("/api/v1/namespaces/{namespace}");
    let apps = format!("/apis/apps/v1/namespaces/{namespace}");
    let spec = json!({
        "nodeName": "node",
        "containers": [{
            "name": Node::CONTAINER,
            "image": "none",
            "stdin": true,
            "ports": [
                {"name": "http", "containerPort": port},
                {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            ],
        }],
    });
    // The first of the list is not the preferred one.
    let pods = [
        ("again", "Running", Some("2026-01-01T00:00:00Z"), 5),
        ("best", "Running", Some("2026-01-01T00:00:00Z"), 0),
        ("late", "Running", Some("2026-01-02T00:00:00Z"), 0),
        ("none", "Pending", None, 0),
    ];
    for (name, phase, ready, restarts) in pods {
        let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        plane
            .send_object("POST", &format!("{core}/pods"), &pod)
            .await;
        let conditions: Vec<Value> = ready
            .map(|since| json!({"type": "Ready", "status": "True", "lastTransitionTime": since}))
            .into_iter()
            .collect();
        let status = json!({"status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [{
                "name": Node::CONTAINER, "image": "none", "imageID": "none",
                "ready": ready.is_some(), "restartCount": restarts, "state": {"running": {}},
            }],
        }});
        let at = format!("{core}/pods/{name}/status");
        plane.send_object("PATCH", &at, &status).await;
    }
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": Node::CONTAINER, "image": "none"}]},
    });
    let workload = json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    for kind in ["deployments", "statefulsets", "replicasets", "daemonsets"] {
        plane
            .send_object("POST", &format!("{apps}/{kind}"), &workload)
            .await;
    }
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": [
            {"name": "web", "port": 80, "targetPort": "http"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]},
    });
    plane
        .send_object("POST", &format!("{core}/services"), &service)
        .await;
}

async fn the_same_pod_is_chosen(pair: &CommandPair<'_>) {
    let file = pair.plane.file(
        "web.json",
        &json!({
            "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {(LABELS.0): LABELS.1}}},
        })
        .to_string(),
    );
    let in_file = format!("--filename={file}");
    let all = [
        "deploy/web",
        "sts/web",
        "statefulset/web",
        "rs/web",
        "ds/web",
        "svc/web",
        &in_file,
    ];
    for named in all {
        // The error for a missing container names the pod.
        let words = ["exec", named, "-c", "nowhere"];
        let kubectl = run(pair.kubectl(&words, &["true"]), "").await;
        let skewbridge = run(pair.skewbridge_with(&words, &["true"]), "").await;
        assert_eq!(
            skewbridge.code, kubectl.code,
            "{named}: {}",
            skewbridge.stderr
        );
        let pod = " is not valid for pod best";
        for (client, stderr) in [("kubectl", &kubectl.stderr), ("we", &skewbridge.stderr)] {
            assert!(stderr.contains(pod), "{named}, {client}: {stderr}");
        }
        let output = run(
            pair.skewbridge_with(&["exec", named], &["echo", "hello"]),
            "",
        )
        .await;
        assert_eq!(output.stdout, "hello\n", "{named}: {}", output.stderr);
    }
}

async fn attach_accepts_a_target_of_two_words(pair: &CommandPair<'_>) {
    let words = ["attach", "-i", "-q", "deployment", "web"];
    let output = pair.equal_output(&words, &[], "by two words\n").await;
    assert_eq!(output.stdout, "by two words\n", "{}", output.stderr);
}

async fn a_forwarded_port_reaches_the_pod(pair: &CommandPair<'_>) {
    let socket = pair.plane.file(&format!("socket-{}", pair.server), "");
    std::fs::remove_file(&socket).unwrap();
    let port = format!("unix:{socket}:http");
    let mut command = pair.skewbridge(&["port-forward", "deploy/web", &port]);
    let mut forward = RunningKubectl::start(&mut command);
    let line = forward.line().await;
    assert!(line.starts_with("Forwarding from unix:"), "{line}");
    let mut connection = UnixStream::connect(&socket).await.unwrap();
    let exchange = async {
        connection.write_all(b"by a socket").await?;
        connection.shutdown().await?;
        let mut received = String::new();
        connection.read_to_string(&mut received).await?;
        std::io::Result::Ok(received)
    };
    let received = tokio::time::timeout(COMMAND_TIMEOUT, exchange).await;
    assert_eq!(received.expect("an echo in time").unwrap(), "by a socket");
    let line = forward.line().await;
    assert!(line.starts_with("Handling connection for unix:"), "{line}");
    forward.end().await;
}

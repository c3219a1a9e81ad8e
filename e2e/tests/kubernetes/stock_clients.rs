//! Unmodified clients under `skewbridge run`: in Go, Python and Rust, helm and k9s. None of
//! them has a credential or supports plugins.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Node, Playground, ServerSpec, StockClient, Tmux, VirtualIp, is_since, newest,
    versions,
};
use skewbridge_testkit::ScratchDir;

/// For a bridge that rejects signatures from before its start.
const SIGNATURE_TIMEOUT: Duration = Duration::from_mins(1);

#[tokio::test]
async fn clients_in_go_python_and_rust_and_helm_need_no_change() {
    let versions = versions();
    let mut plane = ControlPlane::prepare(&[ServerSpec::of(newest(&versions)).without_bridge()]);
    plane.start_all();
    let server = &plane.servers[0];
    plane.wait_for_ready(&server.version, server.address).await;
    let _node = plane.start_node().await;
    let clients = ClientRun {
        plane: &plane,
        server: server.address,
        agent: plane.file_signer_flags("admin"),
    };
    go(&clients).await;
    python(&clients).await;
    rust(&clients).await;
    helm(&clients).await;
    signed(&plane).await;
}

/// The timeout of a port-forward of the Python client.
const PORT_FORWARD_TIMEOUT: Duration = Duration::from_mins(2);

#[tokio::test]
async fn the_python_client_forwards_ports_of_the_playground() {
    let playground = Playground::start().await;
    let kubeconfig = playground.kubeconfig();
    for release in ["1.28", "1.34", "1.36"] {
        for context in [format!("server-{release}"), format!("bridge-{release}")] {
            let mut command = playground.python("port_forward.py");
            command.arg(&kubeconfig);
            command.args([&*context, "default", "web", "8080"]);
            let ran = tokio::time::timeout(PORT_FORWARD_TIMEOUT, command.output()).await;
            let ran = ran.expect("an end in time").unwrap();
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{context}: {stderr}");
            let seen: Value = serde_json::from_slice(&ran.stdout).unwrap();
            let response = seen["response"].as_str().unwrap();
            let expected = "\r\n\r\nHello from pod web, port 8080.\n";
            assert!(response.ends_with(expected), "{context}: {seen}");
            let error = seen["error"].as_str().unwrap();
            assert!(
                error.starts_with("error forwarding port 9 to pod web"),
                "{seen}"
            );
        }
    }
}

/// Lists and watches, and a shell through the kubectl that it runs.
#[tokio::test]
#[ignore = "k9s takes minutes to build"]
async fn k9s_needs_no_change() {
    let versions = versions();
    let plane = ControlPlane::start(&[ServerSpec::of(newest(&versions)).without_bridge()]).await;
    let _node = plane.start_node().await;
    let agent = plane.file_signer_flags("admin");
    let words = [
        "--splashless",
        "--logoless",
        "-n",
        Node::NAMESPACE,
        "-c",
        "pods",
    ];
    let server = plane.servers[0].address;
    let command = plane.stock_client_command(server, &agent, StockClient::K9s, &words);
    let tmux = Tmux::start("k9s", &command).await;
    tmux.run(&["resize-window", "-x", "160", "-y", "40"]).await;
    tmux.types(&format!("{}\r", tmux.line)).await;
    // The title with the count appears only after the list is loaded.
    tmux.wait_until_shown(&format!("pods({})[1]", Node::NAMESPACE))
        .await;
    tmux.types("s").await;
    tmux.wait_until_shown("<<K9s-Shell>>").await;
    tmux.types("PS1='remote''> '\r").await;
    tmux.wait_until_shown("remote> ").await;
    tmux.types("echo in the p''od\r").await;
    tmux.wait_until_shown("in the pod").await;
    tmux.run(&["send-keys", "C-d"]).await;
    tmux.wait_until_shown(&format!("pods({})", Node::NAMESPACE))
        .await;
    tmux.types(":q\r").await;
    tmux.wait_until_shown("ended with 0").await;
}

/// The server and the plugin for a client.
struct ClientRun<'a> {
    plane: &'a ControlPlane,
    server: SocketAddr,
    agent: Vec<String>,
}

impl ClientRun<'_> {
    /// The exit code, stdout and stderr.
    async fn run(&self, client: StockClient, words: &[&str]) -> (Option<i32>, String, String) {
        let run = self
            .plane
            .stock_client(self.server, &self.agent, client, words)
            .await;
        let kubeconfig = &run.kubeconfig;
        assert!(kubeconfig.is_absolute(), "{client:?}: {run:?}");
        let directory = kubeconfig.parent().unwrap();
        assert!(!directory.exists(), "{} is left", directory.display());
        (run.output.code, run.output.stdout, run.output.stderr)
    }

    async fn ok(&self, client: StockClient, words: &[&str]) -> String {
        let (code, printed, stderr) = self.run(client, words).await;
        assert_eq!(code, Some(0), "{client:?} {words:?}: {stderr}");
        printed
    }
}

/// Informers, and commands with both protocols.
async fn go(clients: &ClientRun<'_>) {
    let seen = clients
        .ok(StockClient::Go, &["--namespace=by-go", "informers"])
        .await;
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["Events"].as_array().unwrap().len(), 4, "{seen}");
    let expected = json!({"Bytes": 1 << 20, "Stderr": "err\n", "Code": 7});
    // kube-apiserver translates v5, the only version that client-go offers, from 1.30 on.
    let websocket = is_since(&clients.plane.servers[0].version, 30).then_some("exec-websocket");
    for check in ["exec-spdy"].into_iter().chain(websocket) {
        let namespace = format!("--namespace={}", Node::NAMESPACE);
        let words = ["--pod", Node::POD, "--container", Node::CONTAINER, check];
        let words = [&[namespace.as_str()], &words[..]].concat();
        let ran = clients.ok(StockClient::Go, &words).await;
        let ran: Value = serde_json::from_str(&ran).unwrap();
        assert_eq!(ran, expected, "{check}");
    }
}

async fn python(clients: &ClientRun<'_>) {
    let words = [Node::NAMESPACE, Node::POD, Node::CONTAINER];
    let seen = clients.ok(StockClient::Python, &words).await;
    let seen: Value = serde_json::from_str(&seen).unwrap();
    let expected = json!({
        "user": "admin",
        "pods": [Node::POD],
        "events": ["ADDED", "MODIFIED", "DELETED"],
        "command": {"stdout": "to the pod and back", "stderr": "err\n", "code": 7},
        "strict_tls_status": 200,
    });
    assert_eq!(seen, expected);
}

/// The command in the pod: all its output and its exit code are checked.
const COMMAND: [&str; 4] = [Node::POD, "sh", "-c", "echo out; echo err >&2; exit 7"];

async fn rust(clients: &ClientRun<'_>) {
    let (code, printed, stderr) = clients.run(StockClient::Rust, &COMMAND).await;
    assert_eq!((code, &*printed), (Some(7), "out\n"), "{stderr}");
    assert_eq!(stderr, "err\n");
}

/// From the installation of a chart to its removal.
async fn helm(clients: &ClientRun<'_>) {
    let chart = chart();
    let chart = chart.path().to_str().unwrap();
    let helm = async |words: &[&str]| {
        let words = [words, &["--namespace=default"]].concat();
        clients.ok(StockClient::Helm, &words).await
    };
    let installed = helm(&["install", "ours", chart, "--set=greeting=good morning"]).await;
    assert!(installed.contains("STATUS: deployed"), "{installed}");
    let listed = helm(&["list", "-o", "json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["name"], "ours", "{listed}");
    assert_eq!(listed[0]["chart"], "small-0.1.0", "{listed}");
    helm(&["upgrade", "ours", chart, "--set=greeting=good evening"]).await;
    let manifest = helm(&["get", "manifest", "ours"]).await;
    assert!(manifest.contains("good evening"), "{manifest}");
    let removed = helm(&["uninstall", "ours", "--wait"]).await;
    assert!(removed.contains("uninstalled"), "{removed}");
    let listed = helm(&["list", "--all", "-o", "json"]).await;
    assert_eq!(listed.trim(), "[]");
}

/// The Rust client where a bridge accepts signatures, without any other credential.
async fn signed(plane: &ControlPlane) {
    // Signatures include an address, which has to be known before the bridge starts.
    let vip = VirtualIp::start(plane.servers[0].address).await;
    let keys = plane.file(
        "keys.yaml",
        "keys:\n  laptop:\n    algorithm: hmac-sha256\n    \
         secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n    \
         user: signer\n    groups: ['system:masters']\n",
    );
    let secret = plane.file("secret", "0123456789abcdef0123456789abcdef");
    let flags = [
        format!("--http-signature-keys={keys}"),
        format!("--http-signature-authorities={}", vip.address),
        "--http-signature-clock-skew=1s".to_owned(),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let bridge = plane
        .start_bridge_for(plane.servers[0].address, &flags)
        .await;
    vip.redirect(bridge.address).await;
    let clients = ClientRun {
        plane,
        server: vip.address,
        agent: vec![
            "--signer=http-signature".to_owned(),
            format!("--http-signature-secret={secret}"),
            "--http-signature-key-id=laptop".to_owned(),
        ],
    };
    let began = Instant::now();
    loop {
        let (code, printed, stderr) = clients.run(StockClient::Rust, &COMMAND).await;
        if code == Some(7) {
            assert_eq!((&*printed, &*stderr), ("out\n", "err\n"));
            break;
        }
        let is_early = stderr.contains("ServiceUnavailable") || stderr.contains("503");
        assert!(is_early && began.elapsed() < SIGNATURE_TIMEOUT, "{stderr}");
    }
    let audit = std::fs::read_to_string(&plane.servers[0].audit_log).unwrap_or_default();
    assert!(audit.contains(r#""username":"signer""#), "no signature");
}

/// A chart with one object.
fn chart() -> ScratchDir {
    let directory = ScratchDir::new();
    directory.write(
        "Chart.yaml",
        "apiVersion: v2\nname: small\nversion: 0.1.0\n",
    );
    directory.write("values.yaml", "greeting: hello\n");
    std::fs::create_dir(directory.path().join("templates")).unwrap();
    directory.write(
        "templates/greeting.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\n\
         data:\n  greeting: {{ .Values.greeting | quote }}\n",
    );
    directory
}

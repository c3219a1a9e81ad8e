//! A real kubectl and a real kube-apiserver, with a key that exists only in a token.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Node, RunningKubectl, ServerSpec, User, Via, newest, versions};
use skewbridge_testkit::{ScratchDir, SoftToken};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

/// For a command that takes a second or two on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Much more than all buffers on the path.
const FILE_BYTES: usize = 8 << 20;

#[tokio::test]
async fn kubectl_works_with_a_key_that_exists_only_in_a_token() {
    let Some(token) = SoftToken::new("jane", "246810") else {
        return;
    };
    let versions = versions();
    let mut plane = ControlPlane::prepare(&[ServerSpec::of(newest(&versions)).without_bridge()]);
    plane.start_all();
    let server = &plane.servers[0];
    plane.wait_for_ready(&server.version, server.address).await;
    let node = plane.start_node().await;
    for (kind, label, id) in [("EC:prime256v1", "ecdsa", "01"), ("rsa:2048", "rsa", "02")] {
        let key = token.generate(kind, label, id);
        let groups = ["system:masters"];
        let certificate = plane
            .ca()
            .client_with_key(&key, "jane-of-the-token", &groups);
        token.store(&certificate, label, id);
        for web_sockets in [false, true] {
            println!("{label}, WebSocket {web_sockets}");
            let kubectl = Kubectl::new(&plane, &token, label, web_sockets);
            the_user_is_that_of_the_key(&kubectl).await;
            objects_are_listed_and_watched(&kubectl).await;
            commands_run(&kubectl).await;
            files_are_copied(&kubectl, &node).await;
            ports_are_forwarded(&kubectl).await;
        }
    }
}

struct Kubectl<'a> {
    plane: &'a ControlPlane,
    token: &'a SoftToken,
    config: String,
    web_sockets: bool,
}

impl<'a> Kubectl<'a> {
    fn new(plane: &'a ControlPlane, token: &'a SoftToken, label: &str, web_sockets: bool) -> Self {
        let pin = plane.file("pin", "246810\n");
        let file = |name: &str| {
            let path = std::path::Path::new(&pin).with_file_name(name);
            path.display().to_string()
        };
        let config = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{}", plane.servers[0].address),
                "certificate-authority": file("ca.crt"),
            }}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": std::env::var("SKEWBRIDGE_E2E_BRIDGE").unwrap(),
                "args": [
                    "agent",
                    "--signer=pkcs11",
                    format!("--pkcs11-module={}", token.library().display()),
                    format!("--pkcs11-uri=pkcs11:token=jane;object={label}"),
                    format!("--pkcs11-pin-file={pin}"),
                ],
                "interactiveMode": "Never",
                "provideClusterInfo": true,
            }}}],
        });
        let config = plane.file(&format!("{label}.kubeconfig"), &config.to_string());
        Self {
            plane,
            token,
            config,
            web_sockets,
        }
    }

    /// kubectl under `skewbridge run`: it has no credential of its own.
    fn command(&self, words: &[&str]) -> Command {
        let direct = self.plane.kubectl_command(0, Via::Server, User::Admin);
        let web_sockets = self.web_sockets.to_string();
        let mut command = Command::new(std::env::var("SKEWBRIDGE_E2E_BRIDGE").unwrap());
        command
            .args(["run", "--kubeconfig", &self.config, "--"])
            .arg(direct.as_std().get_program())
            .args(["-n", Node::NAMESPACE])
            .args(words)
            .env("SOFTHSM2_CONF", self.token.configuration())
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &web_sockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &web_sockets)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, words: &[&str], stdin: &[u8]) -> (Option<i32>, String, String) {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let writing_stdin = async move {
            // A command may exit before it has read its input.
            let _ = input.write_all(stdin).await;
        };
        let both = async { tokio::join!(writing_stdin, child.wait_with_output()).1 };
        let output = timeout(COMMAND_TIMEOUT, both).await;
        let output = output
            .unwrap_or_else(|_| panic!("{words:?} hangs"))
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, stderr) = (text(&output.stdout), text(&output.stderr));
        (output.status.code(), printed, stderr)
    }

    async fn ok(&self, words: &[&str]) -> String {
        let (code, printed, stderr) = self.run(words, b"").await;
        assert_eq!(code, Some(0), "{words:?}: {stderr}");
        printed
    }
}

async fn the_user_is_that_of_the_key(kubectl: &Kubectl<'_>) {
    let review = kubectl.ok(&["auth", "whoami", "-o", "json"]).await;
    let review: Value = serde_json::from_str(&review).unwrap();
    assert_eq!(
        review["status"]["userInfo"]["username"],
        "jane-of-the-token"
    );
}

async fn objects_are_listed_and_watched(kubectl: &Kubectl<'_>) {
    let listed = kubectl.ok(&["get", "pods", "-o", "name"]).await;
    assert_eq!(listed.trim(), format!("pod/{}", Node::POD));
    let words = ["get", "pods", "--watch", "-o", "name"];
    let mut watch = RunningKubectl::start(&mut kubectl.command(&words));
    assert_eq!(watch.line().await, format!("pod/{}", Node::POD));
    // The watch has started, because kubectl lists first.
    let label = format!("seen={}", kubectl.web_sockets);
    let words = ["label", "--overwrite", "pod", Node::POD, &label];
    kubectl.ok(&words).await;
    assert_eq!(watch.line().await, format!("pod/{}", Node::POD));
    kubectl.ok(&["label", "pod", Node::POD, "seen-"]).await;
}

async fn commands_run(kubectl: &Kubectl<'_>) {
    let script = "cat; echo err >&2; exit 7";
    let words = ["exec", "-i", Node::POD, "--", "sh", "-c", script];
    let (code, printed, stderr) = kubectl.run(&words, b"to the pod and back").await;
    assert_eq!(code, Some(7), "{stderr}");
    assert_eq!(printed, "to the pod and back");
    assert!(stderr.contains("err"), "{stderr}");
}

async fn files_are_copied(kubectl: &Kubectl<'_>, node: &Node) {
    let directory = ScratchDir::new();
    let contents: Vec<u8> = (0_u32..)
        .flat_map(u32::to_le_bytes)
        .take(FILE_BYTES)
        .collect();
    let original = directory.write("original", &contents);
    let in_pod = node.directory.join("copy");
    let remote = format!("{}:{}", Node::POD, in_pod.display());
    let back = directory.path().join("back");
    kubectl
        .ok(&["cp", original.to_str().unwrap(), &remote])
        .await;
    kubectl.ok(&["cp", &remote, back.to_str().unwrap()]).await;
    assert!(std::fs::read(&back).unwrap() == contents);
    std::fs::remove_file(in_pod).unwrap();
}

async fn ports_are_forwarded(kubectl: &Kubectl<'_>) {
    let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = format!(":{}", echo.local_addr().unwrap().port());
    let echoing = tokio::spawn(async move {
        let (mut stream, _) = echo.accept().await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    });
    let words = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
    let mut forward = RunningKubectl::start(&mut kubectl.command(&words));
    let line = forward.line().await;
    let address = line.strip_prefix("Forwarding from ").expect(&line);
    let (address, _) = address.split_once(" -> ").expect(&line);
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"through the token").await.unwrap();
    let mut received = [0; 17];
    let reading = timeout(COMMAND_TIMEOUT, stream.read_exact(&mut received)).await;
    reading.unwrap().unwrap();
    assert_eq!(&received, b"through the token");
    echoing.abort();
}

//! Real kubectls under `skewbridge run`: none of them has a credential, and all of them
//! work as usual.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, Node, RunningKubectl, ServerSpec, control_planes, is_since, newest, versions,
};
use skewbridge_testkit::ScratchDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

use crate::kubectl_terminal::Terminal;

/// For a command that takes a second or two on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Much more than all buffers on the path.
const FILE_BYTES: usize = 8 << 20;

#[tokio::test]
async fn kubectl_works_without_a_credential() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        let servers = versions.iter().map(|version| ServerSpec::of(version));
        let servers: Vec<_> = servers.map(ServerSpec::without_bridge).collect();
        let mut plane = ControlPlane::prepare(&servers);
        plane.start_all();
        for server in &plane.servers {
            plane.wait_for_ready(&server.version, server.address).await;
        }
        let node = plane.start_node().await;
        for server in 0..servers.len() {
            let agent = plane.file_signer_flags("admin");
            for &protocol in StreamProtocol::of(&plane.servers[server].version) {
                let kubectl = Kubectl {
                    plane: &plane,
                    server,
                    agent: &agent,
                    protocol,
                };
                println!("{} by {protocol:?}", plane.servers[server].version);
                the_user_is_that_of_the_key(&kubectl).await;
                objects_are_read_written_and_watched(&kubectl).await;
                commands_run_and_return_their_exit_codes(&kubectl).await;
                a_terminal_works(&kubectl).await;
                files_are_copied(&kubectl, &node).await;
                ports_are_forwarded(&kubectl).await;
            }
        }
    }
}

#[tokio::test]
async fn kubectl_shows_why_its_requests_cannot_be_signed() {
    let versions = versions();
    let newest = newest(&versions);
    let plane = ControlPlane::start(&[ServerSpec::of(newest).without_bridge()]).await;
    let removed_file = plane.file("headers", "x-badge: 1\n");
    std::fs::remove_file(&removed_file).unwrap();
    let headers = vec![
        "--signer=headers".to_owned(),
        format!("--headers-file={removed_file}"),
    ];
    // The key is loaded when the plugin starts.
    let aws = vec![
        "--signer=sigv4".to_owned(),
        "--sigv4-region=eu-west-1".to_owned(),
        "--sigv4-profile=none-of-this-name".to_owned(),
    ];
    for (agent, code, expected) in [
        (headers, 1, format!("headers: {removed_file}: No such file")),
        (
            aws,
            125,
            "--signer=sigv4: the AWS profile \"none-of-this-name\"".to_owned(),
        ),
    ] {
        let mut command = plane.kubectl_under_run(0, &agent);
        let ran = timeout(COMMAND_TIMEOUT, command.args(["get", "pods"]).output()).await;
        let ran = ran.expect("an end in time").unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(code), "{stderr}");
        let last = stderr.trim().lines().last().unwrap();
        assert!(last.contains(&expected), "{stderr}");
        assert!(!stderr.contains("unknown"), "{stderr}");
    }
}

/// The stream protocol that kubectl is configured to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamProtocol {
    Spdy,
    WebSocket,
}

impl StreamProtocol {
    /// The protocols that both kubectl and kube-apiserver of this version support.
    fn of(version: &str) -> &'static [Self] {
        if is_since(version, 31) {
            &[Self::Spdy, Self::WebSocket]
        } else {
            &[Self::Spdy]
        }
    }
}

struct Kubectl<'a> {
    plane: &'a ControlPlane,
    server: usize,
    agent: &'a [String],
    protocol: StreamProtocol,
}

impl Kubectl<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let web_sockets = (self.protocol == StreamProtocol::WebSocket).to_string();
        let mut command = self.plane.kubectl_under_run(self.server, self.agent);
        command
            .args(["-n", Node::NAMESPACE])
            .args(words)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &web_sockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &web_sockets);
        command
    }

    /// Its exit code, stdout and stderr.
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
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
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
    assert_eq!(review["status"]["userInfo"]["username"], "admin");
    // The message of kubectl itself is compared.
    let words = ["auth", "whoami", "-o", "json", "--as=carol"];
    let review: Value = serde_json::from_str(&kubectl.ok(&words).await).unwrap();
    assert_eq!(review["status"]["userInfo"]["username"], "carol");
    let alice = kubectl.plane.file_signer_flags("alice");
    let other = Kubectl {
        agent: &alice,
        ..*kubectl
    };
    let review = other.ok(&["auth", "whoami", "-o", "json"]).await;
    let review: Value = serde_json::from_str(&review).unwrap();
    assert_eq!(review["status"]["userInfo"]["username"], "alice");
    let (code, _, stderr) = other.run(&["get", "secrets"], b"").await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("forbidden"), "{stderr}");
}

async fn objects_are_read_written_and_watched(kubectl: &Kubectl<'_>) {
    let name = format!("by-{:?}-{}", kubectl.protocol, kubectl.server).to_lowercase();
    let selector = format!("--field-selector=metadata.name={name}");
    let words = ["get", "configmaps", "--watch-only", "-o=name", &selector];
    let mut watch = RunningKubectl::start(&mut kubectl.command(&words));
    // The watch may start after the object is created: the object is changed until the
    // watch has seen it.
    kubectl
        .ok(&["create", "configmap", &name, "--from-literal=a=b"])
        .await;
    let changing = async {
        for round in 0_u32.. {
            let label = format!("round={round}");
            kubectl
                .ok(&["label", "--overwrite", "configmap", &name, &label])
                .await;
        }
    };
    let seen = tokio::select! {
        line = watch.line() => line,
        () = changing => unreachable!(),
    };
    assert_eq!(seen, format!("configmap/{name}"));
    drop(watch);
    let listed = kubectl.ok(&["get", "configmaps", "-o", "name"]).await;
    assert!(listed.contains(&name), "{listed}");
    kubectl.ok(&["delete", "configmap", &name]).await;
}

async fn commands_run_and_return_their_exit_codes(kubectl: &Kubectl<'_>) {
    let words = [
        "exec",
        "-i",
        Node::POD,
        "--",
        "sh",
        "-c",
        "cat; echo err >&2; exit 7",
    ];
    let (code, printed, stderr) = kubectl.run(&words, b"to the pod and back").await;
    assert_eq!(code, Some(7), "{stderr}");
    assert_eq!(printed, "to the pod and back");
    assert!(stderr.contains("err"), "{stderr}");
}

async fn a_terminal_works(kubectl: &Kubectl<'_>) {
    let script = "trap 'echo interrupted; exit 5' INT; \
                  until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; echo sized; \
                  read line; echo \"heard $line\"; while :; do sleep 0.1; done";
    let words = ["exec", "-i", "-t", Node::POD, "--", "sh", "-c", script];
    let mut terminal = Terminal::start(&kubectl.command(&words));
    terminal.resize(33, 77).await;
    terminal.line_with("sized").await;
    terminal.types("hello\n").await;
    terminal.line_with("heard hello").await;
    // ^C is for the command in the pod: neither kubectl nor its parent exits.
    terminal.types("\u{3}").await;
    terminal.line_with("interrupted").await;
    assert_eq!(terminal.end().await, Some(5));
}

async fn files_are_copied(kubectl: &Kubectl<'_>, node: &Node) {
    let dir = ScratchDir::new();
    let contents: Vec<u8> = (0..=250).cycle().take(FILE_BYTES).collect();
    let local = dir.write("local", &contents);
    let in_pod = node.directory.join("copied");
    let remote = format!("{}:{}", Node::POD, in_pod.display());
    kubectl.ok(&["cp", local.to_str().unwrap(), &remote]).await;
    let back = dir.path().join("back");
    kubectl.ok(&["cp", &remote, back.to_str().unwrap()]).await;
    assert!(std::fs::read(back).unwrap() == contents, "another file");
    std::fs::remove_file(in_pod).unwrap();
}

async fn ports_are_forwarded(kubectl: &Kubectl<'_>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = connection.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    });
    let ports = format!(":{port}");
    let words = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
    let mut forward = RunningKubectl::start(&mut kubectl.command(&words));
    let line = forward.line().await;
    let address = line.strip_prefix("Forwarding from ").expect(&line);
    let (address, _) = address.split_once(" -> ").expect(&line);
    let address: SocketAddr = address.parse().unwrap();
    let mut connection = TcpStream::connect(address).await.unwrap();
    let exchange = async {
        connection.write_all(b"through all of them").await.unwrap();
        let mut received = [0; 19];
        connection.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"through all of them");
    };
    timeout(COMMAND_TIMEOUT, exchange)
        .await
        .expect("an echo in time");
    echo.abort();
}

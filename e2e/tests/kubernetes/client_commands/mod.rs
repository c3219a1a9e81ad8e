//! skewbridge's exec, attach and port-forward compared with kubectl's, against real
//! servers: directly, through a bridge, and through a proxy that supports no upgrade other
//! than WebSocket.

mod completion;
mod late_reader;
mod targets;
mod terminal;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{
    ControlPlane, Node, Output, RunningKubectl, ServerSpec, User, Via, control_planes, is_since,
};
use skewbridge_testkit::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::streaming::allow;

/// For a command that takes a second or two on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// A bound for the restart of a server.
const RESTART_TIMEOUT: Duration = Duration::from_mins(5);

/// Much more than all buffers on the path.
const STDIN_BYTES: usize = 2 << 20;

#[tokio::test]
async fn skewbridge_commands_behave_like_kubectl() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        let servers: Vec<_> = versions
            .iter()
            .map(|version| ServerSpec::of(version))
            .collect();
        let plane = ControlPlane::start(&servers).await;
        let _node = plane.start_node().await;
        for server in 0..servers.len() {
            for via in [Via::Server, Via::Bridge] {
                let pair = CommandPair {
                    plane: &plane,
                    server,
                    via,
                };
                exit_codes_are_equal(&pair).await;
                stdin_arrives_completely(&pair).await;
                attach_reaches_the_process(&pair).await;
                errors_are_equal(&pair).await;
                the_transport_matches_the_server(&pair).await;
                let (target, _echo) = echo().await;
                let ports = format!(":{}", target.port());
                let words = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
                ports_are_forwarded(pair.skewbridge(&words), target).await;
                kubectl_finds_its_plugin(&pair).await;
            }
            kubectl_completes_its_plugin(&plane, server).await;
            completion::offers_what_kubectl_offers(&plane, server).await;
            a_pod_needs_no_kubeconfig(&plane, server).await;
        }
    }
}

/// kubectl of the server's version and skewbridge, with the same target.
struct CommandPair<'a> {
    plane: &'a ControlPlane,
    server: usize,
    via: Via,
}

impl CommandPair<'_> {
    fn skewbridge(&self, words: &[&str]) -> Command {
        let mut command = self
            .plane
            .skewbridge_command(self.server, self.via, User::Admin);
        command.args(words).args(["-n", Node::NAMESPACE]);
        command
    }

    fn skewbridge_with(&self, words: &[&str], command: &[&str]) -> Command {
        let mut it = self.skewbridge(words);
        it.arg("--").args(command);
        it
    }

    fn kubectl(&self, words: &[&str], command: &[&str]) -> Command {
        let mut it = self
            .plane
            .kubectl_command(self.server, self.via, User::Admin);
        it.args(["-n", Node::NAMESPACE]).args(words);
        if !command.is_empty() {
            it.arg("--").args(command);
        }
        it
    }

    /// The common output of both: the two outputs have to be equal.
    async fn equal_output(&self, words: &[&str], command: &[&str], stdin: &str) -> Output {
        let kubectl = run(self.kubectl(words, command), stdin).await;
        let skewbridge = match command {
            [] => self.skewbridge(words),
            command => self.skewbridge_with(words, command),
        };
        let skewbridge = run(skewbridge, stdin).await;
        let what = format!("{words:?} {command:?} by {:?}", self.via);
        assert_eq!(
            skewbridge.code, kubectl.code,
            "{what}: {}",
            skewbridge.stderr
        );
        assert_eq!(skewbridge.stderr, kubectl.stderr, "{what}");
        let (length, expected) = (skewbridge.stdout.len(), kubectl.stdout.len());
        assert!(
            skewbridge.stdout == kubectl.stdout,
            "{what}: {length} bytes instead of {expected}"
        );
        skewbridge
    }
}

async fn run(mut command: Command, stdin: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().unwrap();
    let writing_stdin = async move {
        // A command may exit before it has read its input.
        let _ = input.write_all(stdin.as_bytes()).await;
    };
    let both = async { tokio::join!(writing_stdin, child.wait_with_output()).1 };
    let output = tokio::time::timeout(COMMAND_TIMEOUT, both).await;
    let output = output.expect("it hangs").unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn exit_codes_are_equal(pair: &CommandPair<'_>) {
    let script = "echo out; echo err >&2; exit 7";
    let output = pair
        .equal_output(&["exec", Node::POD], &["sh", "-c", script], "")
        .await;
    assert_eq!(output.code, Some(7), "{}", output.stderr);
    assert_eq!(output.stdout, "out\n");
    let output = pair
        .equal_output(&["exec", Node::POD], &["sh", "-c", "kill -9 $$"], "")
        .await;
    assert_eq!(output.code, Some(137), "{}", output.stderr);
    let output = pair
        .equal_output(&["exec", Node::POD], &["seq", "100000"], "")
        .await;
    assert_eq!(output.stdout.lines().count(), 100_000);
}

async fn stdin_arrives_completely(pair: &CommandPair<'_>) {
    let lines = (0..STDIN_BYTES / 8).map(|number| format!("{number:07}"));
    let stdin = lines.collect::<Vec<_>>().join("\n");
    let counted = pair
        .equal_output(&["exec", "-i", Node::POD], &["wc", "-c"], &stdin)
        .await;
    assert_eq!(counted.stdout.trim(), stdin.len().to_string());
    let returned = pair
        .equal_output(&["exec", "-i", Node::POD], &["cat"], &stdin)
        .await;
    assert!(returned.stdout == stdin, "{}", returned.stdout.len());
}

async fn attach_reaches_the_process(pair: &CommandPair<'_>) {
    let words = ["attach", "-i", Node::POD];
    let skewbridge = run(pair.skewbridge(&words), "to the container\n").await;
    let kubectl = run(pair.kubectl(&words, &[]), "to the container\n").await;
    assert_eq!(skewbridge.code, Some(0), "{}", skewbridge.stderr);
    assert_eq!(skewbridge.stdout, "to the container\n");
    assert_eq!(
        (skewbridge.code, skewbridge.stdout),
        (kubectl.code, kubectl.stdout)
    );
    // Older versions print fewer warnings.
    assert!(
        skewbridge.stderr.ends_with(&kubectl.stderr),
        "{}",
        kubectl.stderr
    );
}

async fn errors_are_equal(pair: &CommandPair<'_>) {
    let skewbridge = run(pair.skewbridge_with(&["exec", "pud"], &["true"]), "").await;
    let kubectl = run(pair.kubectl(&["exec", "pud"], &["true"]), "").await;
    assert_eq!(skewbridge.code, kubectl.code);
    // skewbridge prints more.
    assert!(
        skewbridge.stderr.starts_with(&kubectl.stderr),
        "{} {}",
        skewbridge.stderr,
        kubectl.stderr
    );
    assert!(
        skewbridge.stderr.contains("did you mean pod?"),
        "{}",
        skewbridge.stderr
    );
    let skewbridge = run(
        pair.skewbridge_with(&["exec", Node::POD], &["no-such-program"]),
        "",
    )
    .await;
    assert_eq!(skewbridge.code, Some(1));
    assert!(
        skewbridge.stderr.contains("executable file not found"),
        "{}",
        skewbridge.stderr
    );
}

async fn the_transport_matches_the_server(pair: &CommandPair<'_>) {
    let output = run(
        pair.skewbridge_with(&["exec", "-v=1", Node::POD], &["true"]),
        "",
    )
    .await;
    let version = &pair.plane.servers[pair.server].version;
    // A bridge supports WebSockets even if its server does not.
    let by = if is_since(version, 30) || pair.via == Via::Bridge {
        "skewbridge: using WebSocket\n"
    } else {
        "skewbridge: using SPDY, because WebSocket was refused: "
    };
    assert!(
        output.stderr.starts_with(by),
        "{version} {:?}: {}",
        pair.via,
        output.stderr
    );
}

/// As `kubectl skewbridge exec`, with the kubectl of the server's version.
async fn kubectl_finds_its_plugin(pair: &CommandPair<'_>) {
    let CommandPair { plane, server, via } = *pair;
    let mut plugin = plane.kubectl_skewbridge(server, via, User::Admin);
    plugin.args(["exec", "-i", "-n", Node::NAMESPACE, Node::POD]);
    let output = run_script(plugin, "cat; echo err >&2; exit 7", "by kubectl\n").await;
    assert_eq!(output.code, Some(7), "{via:?}: {}", output.stderr);
    assert_eq!(output.stdout, "by kubectl\n");
    assert_eq!(output.stderr, "err\ncommand terminated with exit code 7\n");
}

/// As `kubectl skewbridge ex<TAB>`.
async fn kubectl_completes_its_plugin(plane: &ControlPlane, server: usize) {
    let mut kubectl = plane.kubectl_with_plugin(server, Via::Server, User::Admin);
    kubectl.args(["__complete", "skewbridge", "ex"]);
    let output = run(kubectl, "").await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let expected = "exec\tRun a command in a container\n:4\n";
    assert_eq!(output.stdout, expected, "{}", output.stderr);
}

/// With a command that forwards to an echo server. The service account determines the user,
/// the server and the namespace.
async fn a_pod_needs_no_kubeconfig(plane: &ControlPlane, server: usize) {
    let verbs = ["get", "create"];
    let account = format!("in-pod-{server}");
    let token = allow(plane, &account, &verbs).await;
    let words = ["exec", "-i", Node::POD, "--", "sh", "-c", "cat; exit 3"];
    let command = |token: &str| {
        let mut command = plane.skewbridge_in_pod(server, Node::NAMESPACE, token);
        command.args(words);
        command
    };
    let output = run(command(&token), "from a pod").await;
    assert_eq!(output.stdout, "from a pod", "{}", output.stderr);
    assert_eq!(output.code, Some(3));
    let output = run(command("somebody-else"), "").await;
    assert_eq!(output.code, Some(1), "{}", output.stderr);
}

async fn ports_are_forwarded(mut command: Command, target: SocketAddr) {
    let mut forward = RunningKubectl::start(&mut command);
    let line = forward.line().await;
    let address = line.strip_prefix("Forwarding from ").expect(&line);
    let (address, remote) = address.split_once(" -> ").expect(&line);
    assert_eq!(remote, target.port().to_string());
    let address: SocketAddr = address.parse().unwrap();
    let mut exchanges = JoinSet::new();
    for number in 0..8u8 {
        exchanges.spawn(async move {
            let mut connection = TcpStream::connect(address).await.unwrap();
            let sent = vec![b'a' + number; 100_000];
            let mut received = Vec::new();
            let (mut reader, mut writer) = connection.split();
            let writing = async {
                writer.write_all(&sent).await?;
                writer.shutdown().await
            };
            let both = async { tokio::try_join!(writing, reader.read_to_end(&mut received)) };
            let result = tokio::time::timeout(COMMAND_TIMEOUT, both).await;
            result.expect("an echo in time").unwrap();
            assert!(received == sent, "{} bytes", received.len());
        });
    }
    exchanges.join_all().await;
    for _ in 0..8 {
        let line = forward.line().await;
        assert!(line.starts_with("Handling connection for "), "{line}");
    }
    forward.end().await;
}

/// An echo server that keeps the second half open.
async fn echo() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut reader, mut writer) = connection.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn commands_work_through_a_proxy_that_supports_only_websocket() {
    for versions in control_planes() {
        let servers: Vec<_> = versions
            .iter()
            .map(|version| ServerSpec::of(version))
            .collect();
        let plane = ControlPlane::start(&servers).await;
        let _node = plane.start_node().await;
        for (number, version) in versions.iter().enumerate() {
            for via in [Via::Server, Via::Bridge] {
                let nginx = plane.start_nginx(plane.servers[number].at(via)).await;
                let skewbridge = |words: &[&str]| {
                    let mut command = plane.skewbridge_at(&nginx.kubeconfig);
                    command.args(words).args(["-n", Node::NAMESPACE, "-v=1"]);
                    command
                };
                let (target, _echo) = echo().await;
                let ports = format!(":{}", target.port());
                let forward = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
                let exec = skewbridge(&["exec", "-i", Node::POD]);
                let script = "cat; echo err >&2; exit 7";
                let output = run_script(exec, script, "through\n").await;
                let attached = run(skewbridge(&["attach", "-i", Node::POD]), "attached\n").await;
                if via == Via::Server && !is_since(version, 31) {
                    // This kubectl supports only SPDY, which the proxy does not forward.
                    let refused = run(skewbridge(&forward), "").await;
                    for output in [output, attached, refused] {
                        assert_eq!(output.code, Some(1), "{}", output.stderr);
                        // Both attempts are reported.
                        assert!(
                            output.stderr.contains("because WebSocket was refused"),
                            "{}",
                            output.stderr
                        );
                    }
                    continue;
                }
                assert_eq!(output.code, Some(7), "{version} {via:?}: {}", output.stderr);
                assert_eq!(output.stdout, "through\n");
                let expected =
                    "skewbridge: using WebSocket\nerr\ncommand terminated with exit code 7\n";
                assert_eq!(output.stderr, expected);
                assert_eq!(attached.code, Some(0), "{via:?}: {}", attached.stderr);
                assert_eq!(attached.stdout, "attached\n");
                let by = "skewbridge: using WebSocket\n";
                assert!(attached.stderr.ends_with(by), "{}", attached.stderr);
                ports_are_forwarded(skewbridge(&forward), target).await;
            }
        }
    }
}

async fn run_script(mut command: Command, script: &str, stdin: &str) -> Output {
    command.args(["--", "sh", "-c", script]);
    run(command, stdin).await
}

#[tokio::test]
async fn a_forwarded_port_survives_a_restart_of_the_server() {
    let version = skewbridge_e2e::newest(&skewbridge_e2e::versions()).to_owned();
    let mut plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let _node = plane.start_node().await;
    let (target, _echo) = echo().await;
    let ports = format!(":{}", target.port());
    let mut command = plane.skewbridge_command(0, Via::Server, User::Admin);
    command.args([
        "port-forward",
        "--address=127.0.0.1",
        // Independent of how long a server takes to start on a busy machine.
        "--pod-running-timeout=1h",
        "-n",
        Node::NAMESPACE,
        Node::POD,
        &ports,
    ]);
    let mut forward = RunningKubectl::start(&mut command);
    let line = forward.line().await;
    let address = line.strip_prefix("Forwarding from ").expect(&line);
    let address: SocketAddr = address.split_once(" -> ").expect(&line).0.parse().unwrap();
    let exchange = async |word: &[u8]| {
        let mut connection = TcpStream::connect(address).await.unwrap();
        // A connection that is cut early fails.
        let _ = connection.write_all(word).await;
        let _ = connection.shutdown().await;
        let mut received = Vec::new();
        let _ = connection.read_to_end(&mut received).await;
        received
    };
    assert_eq!(exchange(b"before").await, b"before");
    plane.stop_server(0, "KILL");
    plane.start_server(0);
    // A connection that is opened too early may only be cut.
    eventually("an echo again", RESTART_TIMEOUT, async || {
        exchange(b"after").await == b"after"
    })
    .await;
}

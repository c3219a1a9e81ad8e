//! Our exec, attach and port-forward beside kubectl's, against real servers: straight,
//! through a bridge, and through a proxy that knows no upgrade but that to WebSocket.

mod at_a_terminal;
mod read_late;
mod targets;

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
const BOUND: Duration = Duration::from_mins(1);

/// For a server that starts again; no measure of anything.
const RESTART: Duration = Duration::from_mins(5);

/// Much more than all the buffers on its way.
const STDIN: usize = 2 << 20;

#[tokio::test]
async fn our_commands_do_what_kubectl_does() {
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
                let pair = Pair {
                    plane: &plane,
                    server,
                    via,
                };
                commands_end_the_same(&pair).await;
                input_arrives_whole(&pair).await;
                an_attached_process_answers(&pair).await;
                what_is_refused_is_told_the_same(&pair).await;
                it_is_carried_as_the_server_can(&pair).await;
                let (target, _echo) = echo().await;
                let ports = format!(":{}", target.port());
                let words = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
                ports_are_forwarded(pair.ours(&words), target).await;
                kubectl_finds_its_plugin(&pair).await;
            }
            kubectl_completes_its_plugin(&plane, server).await;
            a_pod_needs_no_kubeconfig(&plane, server).await;
        }
    }
}

/// kubectl of the server's version and our program, by the same way.
struct Pair<'a> {
    plane: &'a ControlPlane,
    server: usize,
    via: Via,
}

impl Pair<'_> {
    fn ours(&self, words: &[&str]) -> Command {
        let mut command = self
            .plane
            .skewbridge_command(self.server, self.via, User::Admin);
        command.args(words).args(["-n", Node::NAMESPACE]);
        command
    }

    fn ours_with(&self, words: &[&str], command: &[&str]) -> Command {
        let mut it = self.ours(words);
        it.arg("--").args(command);
        it
    }

    fn theirs(&self, words: &[&str], command: &[&str]) -> Command {
        let mut it = self
            .plane
            .kubectl_command(self.server, self.via, User::Admin);
        it.args(["-n", Node::NAMESPACE]).args(words);
        if !command.is_empty() {
            it.arg("--").args(command);
        }
        it
    }

    /// What both say, which is the same.
    async fn same(&self, words: &[&str], command: &[&str], stdin: &str) -> Output {
        let theirs = run(self.theirs(words, command), stdin).await;
        let ours = match command {
            [] => self.ours(words),
            command => self.ours_with(words, command),
        };
        let ours = run(ours, stdin).await;
        let what = format!("{words:?} {command:?} by {:?}", self.via);
        assert_eq!(ours.code, theirs.code, "{what}: {}", ours.stderr);
        assert_eq!(ours.stderr, theirs.stderr, "{what}");
        let (length, expected) = (ours.stdout.len(), theirs.stdout.len());
        assert!(
            ours.stdout == theirs.stdout,
            "{what}: {length} bytes instead of {expected}"
        );
        ours
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
    let feeding = async move {
        // A command may end before its input does.
        let _ = input.write_all(stdin.as_bytes()).await;
    };
    let both = async { tokio::join!(feeding, child.wait_with_output()).1 };
    let output = tokio::time::timeout(BOUND, both).await;
    let output = output.expect("it hangs").unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn commands_end_the_same(pair: &Pair<'_>) {
    let script = "echo out; echo err >&2; exit 7";
    let output = pair
        .same(&["exec", Node::POD], &["sh", "-c", script], "")
        .await;
    assert_eq!(output.code, Some(7), "{}", output.stderr);
    assert_eq!(output.stdout, "out\n");
    let output = pair
        .same(&["exec", Node::POD], &["sh", "-c", "kill -9 $$"], "")
        .await;
    assert_eq!(output.code, Some(137), "{}", output.stderr);
    let output = pair
        .same(&["exec", Node::POD], &["seq", "100000"], "")
        .await;
    assert_eq!(output.stdout.lines().count(), 100_000);
}

async fn input_arrives_whole(pair: &Pair<'_>) {
    let lines = (0..STDIN / 8).map(|number| format!("{number:07}"));
    let stdin = lines.collect::<Vec<_>>().join("\n");
    let counted = pair
        .same(&["exec", "-i", Node::POD], &["wc", "-c"], &stdin)
        .await;
    assert_eq!(counted.stdout.trim(), stdin.len().to_string());
    let returned = pair
        .same(&["exec", "-i", Node::POD], &["cat"], &stdin)
        .await;
    assert!(returned.stdout == stdin, "{}", returned.stdout.len());
}

async fn an_attached_process_answers(pair: &Pair<'_>) {
    let words = ["attach", "-i", Node::POD];
    let ours = run(pair.ours(&words), "to the container\n").await;
    let theirs = run(pair.theirs(&words, &[]), "to the container\n").await;
    assert_eq!(ours.code, Some(0), "{}", ours.stderr);
    assert_eq!(ours.stdout, "to the container\n");
    assert_eq!((ours.code, ours.stdout), (theirs.code, theirs.stdout));
    // Older ones warn of less.
    assert!(ours.stderr.ends_with(&theirs.stderr), "{}", theirs.stderr);
}

async fn what_is_refused_is_told_the_same(pair: &Pair<'_>) {
    let ours = run(pair.ours_with(&["exec", "pud"], &["true"]), "").await;
    let theirs = run(pair.theirs(&["exec", "pud"], &["true"]), "").await;
    assert_eq!(ours.code, theirs.code);
    // Ours says more.
    assert!(
        ours.stderr.starts_with(&theirs.stderr),
        "{} {}",
        ours.stderr,
        theirs.stderr
    );
    assert!(ours.stderr.contains("did you mean pod?"), "{}", ours.stderr);
    let ours = run(
        pair.ours_with(&["exec", Node::POD], &["no-such-program"]),
        "",
    )
    .await;
    assert_eq!(ours.code, Some(1));
    assert!(
        ours.stderr.contains("executable file not found"),
        "{}",
        ours.stderr
    );
}

async fn it_is_carried_as_the_server_can(pair: &Pair<'_>) {
    let output = run(pair.ours_with(&["exec", "-v=1", Node::POD], &["true"]), "").await;
    let version = &pair.plane.servers[pair.server].version;
    // A bridge has what its server has not.
    let by = if is_since(version, 30) || pair.via == Via::Bridge {
        "skewbridge: by WebSocket\n"
    } else {
        "skewbridge: by SPDY, because a WebSocket was refused: "
    };
    assert!(
        output.stderr.starts_with(by),
        "{version} {:?}: {}",
        pair.via,
        output.stderr
    );
}

/// As `kubectl skewbridge exec`, by the kubectl of the server's version.
async fn kubectl_finds_its_plugin(pair: &Pair<'_>) {
    let Pair { plane, server, via } = *pair;
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

/// By a command that forwards to an echo.
/// Its service account tells who it is, where its server is, and its own namespace.
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
    let mut talks = JoinSet::new();
    for number in 0..8u8 {
        talks.spawn(async move {
            let mut connection = TcpStream::connect(address).await.unwrap();
            let sent = vec![b'a' + number; 100_000];
            let mut heard = Vec::new();
            let (mut reader, mut writer) = connection.split();
            let writing = async {
                writer.write_all(&sent).await?;
                writer.shutdown().await
            };
            let both = async { tokio::try_join!(writing, reader.read_to_end(&mut heard)) };
            let talked = tokio::time::timeout(BOUND, both).await;
            talked.expect("an echo in time").unwrap();
            assert!(heard == sent, "{} bytes", heard.len());
        });
    }
    talks.join_all().await;
    for _ in 0..8 {
        let line = forward.line().await;
        assert!(line.starts_with("Handling connection for "), "{line}");
    }
    forward.end().await;
}

/// A server that gives back what it gets, while the second half is kept.
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
async fn a_proxy_that_knows_only_websocket_is_no_obstacle() {
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
                let ours = |words: &[&str]| {
                    let mut command = plane.skewbridge_at(&nginx.kubeconfig);
                    command.args(words).args(["-n", Node::NAMESPACE, "-v=1"]);
                    command
                };
                let (target, _echo) = echo().await;
                let ports = format!(":{}", target.port());
                let forward = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
                let exec = ours(&["exec", "-i", Node::POD]);
                let script = "cat; echo err >&2; exit 7";
                let output = run_script(exec, script, "through\n").await;
                let attached = run(ours(&["attach", "-i", Node::POD]), "attached\n").await;
                if via == Via::Server && !is_since(version, 31) {
                    // It has nothing but SPDY, and that does not pass.
                    let refused = run(ours(&forward), "").await;
                    for output in [output, attached, refused] {
                        assert_eq!(output.code, Some(1), "{}", output.stderr);
                        // Both ways are told.
                        assert!(
                            output
                                .stderr
                                .contains("a WebSocket had been refused before"),
                            "{}",
                            output.stderr
                        );
                    }
                    continue;
                }
                assert_eq!(output.code, Some(7), "{version} {via:?}: {}", output.stderr);
                assert_eq!(output.stdout, "through\n");
                let expected =
                    "skewbridge: by WebSocket\nerr\ncommand terminated with exit code 7\n";
                assert_eq!(output.stderr, expected);
                assert_eq!(attached.code, Some(0), "{via:?}: {}", attached.stderr);
                assert_eq!(attached.stdout, "attached\n");
                let by = "skewbridge: by WebSocket\n";
                assert!(attached.stderr.ends_with(by), "{}", attached.stderr);
                ports_are_forwarded(ours(&forward), target).await;
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
        // However long a server takes to start on a machine that has much to do.
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
    let talk = async |word: &[u8]| {
        let mut connection = TcpStream::connect(address).await.unwrap();
        // What is cut off early fails.
        let _ = connection.write_all(word).await;
        let _ = connection.shutdown().await;
        let mut heard = Vec::new();
        let _ = connection.read_to_end(&mut heard).await;
        heard
    };
    assert_eq!(talk(b"before").await, b"before");
    plane.stop_server(0, "KILL");
    plane.start_server(0);
    // Who connects too early may be cut off, and no more.
    eventually("an echo again", RESTART, async || {
        talk(b"after").await == b"after"
    })
    .await;
}

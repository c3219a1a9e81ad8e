//! Streams to and from a pod behave through a bridge as they do directly.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{
    ControlPlane, Node, Output, RunningKubectl, ServerSpec, User, Via, control_planes, is_since,
};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

/// For a command that takes a second or two on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Much more than all buffers on the path.
const STDIN_BYTES: usize = 4 << 20;

/// A typical size for copies to and from pods.
const FILE_BYTES: usize = 50 << 20;

/// The number of concurrent connections through one port-forward.
const CONNECTIONS: usize = 8;

#[tokio::test]
async fn every_control_plane_streams_the_same_through_its_bridges() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        check_control_plane(&versions).await;
    }
}

async fn check_control_plane(versions: &[String]) {
    let servers = versions.iter().map(|version| ServerSpec::of(version));
    let servers: Vec<_> = servers.collect();
    let plane = ControlPlane::start(&servers).await;
    let node = plane.start_node().await;
    let contents = noise(FILE_BYTES);
    for server in 0..servers.len() {
        for &protocol in Protocol::of(&plane.servers[server].version) {
            let kubectl = Kubectl {
                plane: &plane,
                server,
                protocol,
            };
            exit_codes_are_equal(&kubectl).await;
            stdin_arrives_completely(&kubectl).await;
            attach_reaches_the_process(&kubectl).await;
            errors_are_equal(&kubectl).await;
            ports_are_forwarded(&kubectl).await;
            files_are_copied(&kubectl, &node, &contents).await;
        }
        logs_are_the_same(&plane, server).await;
    }
}

/// The protocol that kubectl uses after an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Spdy,
    WebSocket,
}

impl Protocol {
    /// The protocols that both kubectl and kube-apiserver of this version support.
    fn of(version: &str) -> &'static [Self] {
        // Both ends use WebSocket by default from 1.31 on.
        if is_since(version, 31) {
            &[Self::Spdy, Self::WebSocket]
        } else {
            &[Self::Spdy]
        }
    }

    /// kubectl requests SPDY by POST. A WebSocket opening handshake is a GET (RFC 6455,
    /// section 4.1), and kubectl falls back to SPDY if it is rejected: a GET with the
    /// response 101 is the proof.
    fn method(self) -> &'static str {
        match self {
            Self::Spdy => "POST",
            Self::WebSocket => "GET",
        }
    }
}

/// kubectl of a server's version, with the pod's namespace and a protocol.
struct Kubectl<'a> {
    plane: &'a ControlPlane,
    server: usize,
    protocol: Protocol,
}

impl Kubectl<'_> {
    fn command(&self, via: Via, words: &[&str]) -> Command {
        let (plane, server) = (self.plane, self.server);
        let mut command = plane.kubectl_command(server, via, User::Admin);
        let web_sockets = (self.protocol == Protocol::WebSocket).to_string();
        command
            .args(["-n", Node::NAMESPACE])
            .args(words)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &web_sockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &web_sockets);
        command
    }

    async fn run(&self, via: Via, words: &[&str], stdin: &str) -> Output {
        let mut child = self
            .command(via, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut input = child.stdin.take().unwrap();
        let writing_stdin = async move {
            // A command may exit before it has read its input.
            let _ = input.write_all(stdin.as_bytes()).await;
        };
        let same_both_ways = async { tokio::join!(writing_stdin, child.wait_with_output()).1 };
        let output = tokio::time::timeout(COMMAND_TIMEOUT, same_both_ways).await;
        let output = output
            .unwrap_or_else(|_| panic!("{words:?} by {via:?} over {:?} hangs", self.protocol))
            .unwrap();
        Output {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The output, which is the same directly and through the bridge.
    async fn same_both_ways(&self, words: &[&str], stdin: &str) -> Output {
        let direct = self.run(Via::Server, words, stdin).await;
        let bridged = self.run(Via::Bridge, words, stdin).await;
        // Not by assert_eq: an output can be long.
        let protocol = self.protocol;
        assert_eq!(bridged.code, direct.code, "{words:?} over {protocol:?}");
        assert_eq!(bridged.stderr, direct.stderr, "{words:?} {protocol:?}");
        let (length, expected) = (bridged.stdout.len(), direct.stdout.len());
        assert!(
            bridged.stdout == direct.stdout,
            "{words:?} over {protocol:?}: {length} bytes instead of {expected}"
        );
        bridged
    }

    /// The same, for a command that is one tunnel of this protocol.
    async fn tunnel(&self, words: &[&str], stdin: &str) -> Output {
        let subresource = words[0];
        let before = self.tunnels(subresource);
        let output = self.same_both_ways(words, stdin).await;
        self.wait_for_tunnels(subresource, before + 1).await;
        output
    }

    /// How many tunnels of this protocol have ended in the bridge.
    fn tunnels(&self, subresource: &str) -> usize {
        let bridge = self.plane.servers[self.server].bridge_process.as_ref();
        let log = bridge.unwrap().log();
        let method = format!("method={} ", self.protocol.method());
        let path = format!("/{}/{subresource} ", Node::POD);
        let parts = [method.as_str(), &path, "code=101 "];
        let lines = log.lines();
        lines
            .filter(|line| parts.iter().all(|part| line.contains(part)))
            .count()
    }

    async fn wait_for_tunnels(&self, subresource: &str, count: usize) {
        let what = format!("{subresource} number {count} over {:?}", self.protocol);
        eventually(&what, TEST_TIMEOUT, async || {
            self.tunnels(subresource) == count
        })
        .await;
    }
}

/// No upgrade: a long-running response.
async fn logs_are_the_same(plane: &ControlPlane, server: usize) {
    let same_both_ways = async |words: &[&str]| {
        let words = [&["-n", Node::NAMESPACE, "logs", Node::POD], words].concat();
        let direct = plane.kubectl(server, Via::Server, User::Admin, &words);
        let direct = direct.await;
        let bridged = plane.kubectl(server, Via::Bridge, User::Admin, &words);
        assert_eq!(bridged.await, direct, "{words:?}");
        direct
    };
    let all = same_both_ways(&[]).await;
    assert_eq!(all.stdout.lines().count(), 1000, "{}", all.stderr);
    assert_eq!(same_both_ways(&["--follow"]).await, all);
    assert_eq!(
        same_both_ways(&["--tail=2"]).await.stdout,
        "line 999 of container\nline 1000 of container\n"
    );
}

/// Both outputs and the exit code.
async fn exit_codes_are_equal(kubectl: &Kubectl<'_>) {
    let script = "echo out; echo err >&2; exit 7";
    let words = ["exec", Node::POD, "--", "sh", "-c", script];
    let output = kubectl.tunnel(&words, "").await;
    assert_eq!(output.code, Some(7), "{}", output.stderr);
    assert_eq!(output.stdout, "out\n");
    assert_eq!(output.stderr, "err\ncommand terminated with exit code 7\n");
    let words = ["exec", Node::POD, "--", "sh", "-c", "kill -9 $$"];
    let killed = kubectl.tunnel(&words, "").await;
    assert_eq!(killed.code, Some(137), "{}", killed.stderr);
}

/// Including the end of input: neither command would exit without it.
async fn stdin_arrives_completely(kubectl: &Kubectl<'_>) {
    let lines = (0..STDIN_BYTES / 8).map(|number| format!("{number:07}"));
    let stdin = lines.collect::<Vec<_>>().join("\n");
    let words = ["exec", "-i", Node::POD, "--", "wc", "-c"];
    let counted = kubectl.tunnel(&words, &stdin).await;
    assert_eq!(counted.stdout.trim(), stdin.len().to_string());
    let words = ["exec", "-i", Node::POD, "--", "cat"];
    let returned = kubectl.tunnel(&words, &stdin).await;
    assert_eq!(returned.code, Some(0), "{}", returned.stderr);
    assert!(returned.stdout == stdin, "{}", returned.stdout.len());
}

async fn attach_reaches_the_process(kubectl: &Kubectl<'_>) {
    let words = ["attach", "-i", Node::POD];
    let output = kubectl.tunnel(&words, "to the container\n").await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.stdout, "to the container\n");
}

/// By the server before there is a tunnel, and by the node in one.
async fn errors_are_equal(kubectl: &Kubectl<'_>) {
    let words = ["exec", Node::POD, "-c", "missing", "--", "true"];
    let output = kubectl.same_both_ways(&words, "").await;
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(
        output.stderr.contains("container missing is not valid"),
        "{}",
        output.stderr
    );
    let words = ["exec", Node::POD, "--", "no-such-program"];
    let output = kubectl.tunnel(&words, "").await;
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(
        output.stderr.contains("executable file not found"),
        "{}",
        output.stderr
    );
}

/// Many concurrent connections through one tunnel, none mixed with another.
async fn ports_are_forwarded(kubectl: &Kubectl<'_>) {
    let (target, _echo) = echo_server().await;
    let ports = format!(":{}", target.port());
    let words = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
    let before = kubectl.tunnels("portforward");
    for via in [Via::Server, Via::Bridge] {
        let mut forward = RunningKubectl::start(&mut kubectl.command(via, &words));
        let line = forward.line().await;
        let address = line.strip_prefix("Forwarding from ").expect(&line);
        let (address, _) = address.split_once(" -> ").expect(&line);
        let address: SocketAddr = address.parse().unwrap();
        let mut connections = Vec::new();
        for number in 0..CONNECTIONS {
            let mut connection = TcpStream::connect(address).await.unwrap();
            // It stays connected to its far end while the others are opened.
            echoes(&mut connection, &[byte(number)]).await;
            connections.push(connection);
            let line = forward.line().await;
            assert!(line.starts_with("Handling connection"), "{line}");
        }
        let mut exchanges = JoinSet::new();
        for (number, mut connection) in connections.into_iter().enumerate() {
            exchanges.spawn(async move {
                for piece in 1..=4 {
                    echoes(&mut connection, &vec![byte(number); piece << 16]).await;
                }
                connection.shutdown().await.unwrap();
                let mut rest = Vec::new();
                connection.read_to_end(&mut rest).await.unwrap();
                assert!(rest.is_empty(), "{} more", rest.len());
            });
        }
        let exchanges = tokio::time::timeout(COMMAND_TIMEOUT, exchanges.join_all());
        exchanges.await.expect("all connections end");
        forward.end().await;
    }
    kubectl.wait_for_tunnels("portforward", before + 1).await;
}

fn byte(number: usize) -> u8 {
    b'a' + u8::try_from(number).unwrap()
}

/// Sends these bytes while it receives them.
async fn echoes(connection: &mut TcpStream, bytes: &[u8]) {
    let (mut reader, mut writer) = connection.split();
    let mut received = vec![0; bytes.len()];
    let exchange =
        async { tokio::try_join!(writer.write_all(bytes), reader.read_exact(&mut received)) };
    let exchange = tokio::time::timeout(COMMAND_TIMEOUT, exchange).await;
    exchange.expect("an echo in time").unwrap();
    assert!(received == bytes, "bytes of another connection");
}

/// An echo server that keeps the second half open.
async fn echo_server() -> (SocketAddr, JoinSet<()>) {
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

/// To the pod and back.
async fn files_are_copied(kubectl: &Kubectl<'_>, node: &Node, contents: &[u8]) {
    let directory = ScratchDir::new();
    let original = directory.write("original", contents);
    let original = original.display().to_string();
    let in_pod = node.directory.join("copy");
    let remote = format!("{}:{}", Node::POD, in_pod.display());
    let back = directory.path().join("back");
    let local = back.display().to_string();
    for via in [Via::Server, Via::Bridge] {
        let up = kubectl.run(via, &["cp", &original, &remote], "").await;
        assert_eq!(up.code, Some(0), "{via:?}: {}", up.stderr);
        assert!(fs::read(&in_pod).unwrap() == contents, "{via:?}, up");
        let down = kubectl.run(via, &["cp", &remote, &local], "").await;
        assert_eq!(down.code, Some(0), "{via:?}: {}", down.stderr);
        assert!(fs::read(&back).unwrap() == contents, "{via:?}, down");
        for copy in [&in_pod, &back] {
            fs::remove_file(copy).unwrap();
        }
    }
}

/// Bytes that reveal a lost, duplicated or misplaced part.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = Vec::with_capacity(length);
    while noise.len() < length {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise
}

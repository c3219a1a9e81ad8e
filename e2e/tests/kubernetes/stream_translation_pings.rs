//! Pings that a node does not acknowledge: a node whose process does not read is alive, a
//! stopped one is not, and one that has closed its connection must not be pinged.

use std::process::Stdio;
use std::time::{Duration, Instant};

use skewbridge_client::remote_command::TransportPreference;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::timeout;

use crate::port_forward::{PinglessForward, PortForward, echo_server, echoes};
use crate::streaming::{StreamProtocol, StreamTarget, kubectl_version};

/// How long it may take to detect that the other end is lost.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(15);

#[tokio::test]
async fn pings_distinguish_a_slow_process_from_a_lost_node() {
    let Some(version) = kubectl_version() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let node = plane.start_node().await;
    let flags = ["--translate-streams=always", "--stream-ping-interval=1s"];
    let bridge = plane
        .start_bridge_for(plane.servers[0].address, &flags)
        .await;
    let target = StreamTarget::through(&plane, &bridge, StreamProtocol::WebSocket);
    tokio::join!(
        a_process_that_does_not_read_stays_connected(&target),
        output_that_is_read_late_is_complete(&target),
    );
    // With so much input it is pinged half an interval later at the latest: until then all
    // of these have ended.
    let flags = ["--translate-streams=always", "--stream-ping-interval=10s"];
    let slower = plane
        .start_bridge_for(plane.servers[0].address, &flags)
        .await;
    let slower = StreamTarget::through(&plane, &slower, StreamProtocol::WebSocket);
    no_ping_coincides_with_the_end_of_a_command(&slower).await;
    let (echo_address, _echo) = echo_server().await;
    let forward = PinglessForward::start(
        &plane,
        bridge.address,
        TransportPreference::WebSocket,
        echo_address.port(),
    );
    a_stopped_node_is_detected(&target, &node, forward.await).await;
}

/// moby/spdystream acknowledges one ping in five, or none, while sent data is unread. More
/// than its queue holds, less than that, and less than has to be read at all.
async fn a_process_that_does_not_read_stays_connected(target: &StreamTarget<'_>) {
    let sizes = [8 << 20, 1 << 20, (64 << 10) + 100];
    let commands = sizes.map(async |size| {
        let line = "sleep 10; wc -c";
        let words = ["exec", "-i", Node::POD, "--", "sh", "-c", line];
        let output = target.run(&words, &vec![b'x'; size]).await;
        assert_eq!(output.code, Some(0), "{size}: {}", output.stderr);
        assert_eq!(output.stdout.trim(), size.to_string());
    });
    let [first, second, third] = commands;
    tokio::join!(first, second, third);
}

/// A ping to a node that has closed its connection would make kube-apiserver discard the
/// data that it has not forwarded yet.
async fn output_that_is_read_late_is_complete(target: &StreamTarget<'_>) {
    // Less than all buffers on the path, and more.
    let commands = [500_000, 4_000_000, 16_000_000].map(async |size| {
        let count = size.to_string();
        let words = ["exec", Node::POD, "--", "head", "-c", &count, "/dev/zero"];
        let mut child = target
            .command(&words)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // Several intervals.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let mut output = Vec::new();
        let mut stdout = child.stdout.take().unwrap();
        let reading = async {
            // Slowly at first.
            for _ in 0..30 {
                (&mut stdout).take(10_000).read_to_end(&mut output).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            stdout.read_to_end(&mut output).await
        };
        timeout(4 * DETECTION_TIMEOUT, reading)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(output.len(), size);
        assert_eq!(child.wait().await.unwrap().code(), Some(0), "{size}");
    });
    let [first, second, third] = commands;
    tokio::join!(first, second, third);
}

/// For any amount of unacknowledged data.
async fn no_ping_coincides_with_the_end_of_a_command(target: &StreamTarget<'_>) {
    let input = vec![b'x'; 24 << 20];
    for line in ["cat", "cat >/dev/null", "head -n 1; cat"] {
        for turn in 0..4 {
            let words = ["exec", "-i", Node::POD, "--", "sh", "-c", line];
            let output = target.run(&words, &input).await;
            assert_eq!(output.code, Some(0), "{line}, {turn}: {}", output.stderr);
            let expected = if line.ends_with("null") {
                0
            } else {
                input.len()
            };
            assert_eq!(output.stdout.len(), expected, "{line}, {turn}");
        }
    }
}

/// Its connections stay open, and it does not respond.
async fn a_stopped_node_is_detected(
    target: &StreamTarget<'_>,
    node: &Node,
    mut forward: PinglessForward,
) {
    echoes(&mut forward.connection, b"the output has arrived").await;
    let mut exec = RunningStream::start(target, &["exec", "-i", Node::POD, "--", "cat"]).await;
    let mut attach = RunningStream::start(target, &["attach", "-i", Node::POD]).await;
    node.process.signal("STOP");
    let start = Instant::now();
    for (what, running) in [("exec", &mut exec), ("attach", &mut attach)] {
        let (code, stderr) = running.finish().await;
        let seconds = start.elapsed().as_secs_f32();
        println!("{what}: exit code {code:?} within {seconds:.1} s: {stderr}");
        assert!(code.is_some_and(|it| it != 0), "{what}: {stderr}");
        assert!(stderr.contains("connection was lost"), "{what}: {stderr}");
    }
    let why = forward
        .ends_within(DETECTION_TIMEOUT)
        .await
        .expect("detected in time");
    println!(
        "port-forward: within {:.1} s: {why}",
        start.elapsed().as_secs_f32()
    );
    node.process.signal("CONT");
    let (echo_address, _echo) = echo_server().await;
    let mut forward = PortForward::start(target, &[echo_address.port()]).await;
    forward.echoes(0, b"the node runs again").await;
    forward.child.end().await;
}

/// A kubectl whose line was echoed.
struct RunningStream {
    child: Child,
}

impl RunningStream {
    async fn start(target: &StreamTarget<'_>, words: &[&str]) -> Self {
        let mut child = target
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(b"a line\n").await.unwrap();
        let mut line = [0; 7];
        let stdout = child.stdout.as_mut().unwrap();
        timeout(DETECTION_TIMEOUT, stdout.read_exact(&mut line))
            .await
            .expect("an answer in time")
            .unwrap();
        Self { child }
    }

    /// Its exit code and stderr.
    async fn finish(&mut self) -> (Option<i32>, String) {
        let status = timeout(DETECTION_TIMEOUT, self.child.wait()).await;
        let status = status.expect("detected in time").unwrap();
        let mut stderr = String::new();
        let from = self.child.stderr.as_mut().unwrap();
        from.read_to_string(&mut stderr).await.unwrap();
        (status.code(), stderr)
    }
}

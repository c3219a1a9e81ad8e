//! What a node does not answer to pings: one whose process does not read is alive, one
//! that has stopped is not, and one that has ended is not to be asked.

use std::process::Stdio;
use std::time::{Duration, Instant};

use skewbridge_client::streams::TransportPreference;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::timeout;

use crate::port_forward::{PinglessForward, PortForward, echo_server, echoes};
use crate::streaming::{Speaks, Way, kubectl_version};

/// How long anybody may take to learn that the other end is lost.
const LEARNT: Duration = Duration::from_secs(15);

#[tokio::test]
async fn pings_tell_a_slow_process_from_a_lost_node() {
    let Some(version) = kubectl_version() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let node = plane.start_node().await;
    let flags = ["--translate-streams=always", "--stream-ping-interval=1s"];
    let bridge = plane
        .start_bridge_for(plane.servers[0].address, &flags)
        .await;
    let way = Way::through(&plane, &bridge, Speaks::WebSocket);
    tokio::join!(
        a_process_that_does_not_read_keeps_its_client(&way),
        what_is_read_late_is_whole(&way),
    );
    // With so much input it is asked half an interval later at the latest: until then all of
    // these have ended.
    let flags = ["--translate-streams=always", "--stream-ping-interval=10s"];
    let slower = plane
        .start_bridge_for(plane.servers[0].address, &flags)
        .await;
    let slower = Way::through(&plane, &slower, Speaks::WebSocket);
    no_ping_meets_the_end_of_a_command(&slower).await;
    let (target, _echo) = echo_server().await;
    let forward = PinglessForward::start(
        &plane,
        bridge.address,
        TransportPreference::WebSocket,
        target.port(),
    );
    a_node_that_has_stopped_is_noticed(&way, &node, forward.await).await;
}

/// moby/spdystream answers one ping in five, or none, while what it was sent is not
/// read. More than its queue holds, less than that, and less than nobody has to read.
async fn a_process_that_does_not_read_keeps_its_client(way: &Way<'_>) {
    let sizes = [8 << 20, 1 << 20, (64 << 10) + 100];
    let commands = sizes.map(async |size| {
        let line = "sleep 10; wc -c";
        let words = ["exec", "-i", Node::POD, "--", "sh", "-c", line];
        let output = way.run(&words, &vec![b'x'; size]).await;
        assert_eq!(output.code, Some(0), "{size}: {}", output.stderr);
        assert_eq!(output.stdout.trim(), size.to_string());
    });
    let [first, second, third] = commands;
    tokio::join!(first, second, third);
}

/// A ping to a node that has closed its connection would have kube-apiserver throw away
/// what it has not passed on yet.
async fn what_is_read_late_is_whole(way: &Way<'_>) {
    // Less than is on its way in any case, and more.
    let commands = [500_000, 4_000_000, 16_000_000].map(async |size| {
        let count = size.to_string();
        let words = ["exec", Node::POD, "--", "head", "-c", &count, "/dev/zero"];
        let mut child = way
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
        timeout(4 * LEARNT, reading).await.unwrap().unwrap();
        assert_eq!(output.len(), size);
        assert_eq!(child.wait().await.unwrap().code(), Some(0), "{size}");
    });
    let [first, second, third] = commands;
    tokio::join!(first, second, third);
}

/// However much there was to ask for.
async fn no_ping_meets_the_end_of_a_command(way: &Way<'_>) {
    let input = vec![b'x'; 24 << 20];
    for line in ["cat", "cat >/dev/null", "head -n 1; cat"] {
        for turn in 0..4 {
            let words = ["exec", "-i", Node::POD, "--", "sh", "-c", line];
            let output = way.run(&words, &input).await;
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

/// Its connections stay, and nobody answers.
async fn a_node_that_has_stopped_is_noticed(
    way: &Way<'_>,
    node: &Node,
    mut forward: PinglessForward,
) {
    echoes(&mut forward.connection, b"it is here").await;
    let mut exec = Running::start(way, &["exec", "-i", Node::POD, "--", "cat"]).await;
    let mut attach = Running::start(way, &["attach", "-i", Node::POD]).await;
    node.process.signal("STOP");
    let start = Instant::now();
    for (what, running) in [("exec", &mut exec), ("attach", &mut attach)] {
        let (code, stderr) = running.end().await;
        let seconds = start.elapsed().as_secs_f32();
        println!("{what}: exit code {code:?} within {seconds:.1} s: {stderr}");
        assert!(code.is_some_and(|it| it != 0), "{what}: {stderr}");
        assert!(stderr.contains("connection was lost"), "{what}: {stderr}");
    }
    let why = forward.ends_within(LEARNT).await.expect("learnt in time");
    println!(
        "port-forward: within {:.1} s: {why}",
        start.elapsed().as_secs_f32()
    );
    node.process.signal("CONT");
    let (target, _echo) = echo_server().await;
    let mut forward = PortForward::start(way, &[target.port()]).await;
    forward.echoes(0, b"it is back").await;
    forward.child.end().await;
}

/// A kubectl that has said a line and heard it again.
struct Running {
    child: Child,
}

impl Running {
    async fn start(way: &Way<'_>, words: &[&str]) -> Self {
        let mut child = way
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
        timeout(LEARNT, stdout.read_exact(&mut line))
            .await
            .expect("an answer in time")
            .unwrap();
        Self { child }
    }

    /// Its exit code, and what it complained about.
    async fn end(&mut self) -> (Option<i32>, String) {
        let status = timeout(LEARNT, self.child.wait()).await;
        let status = status.expect("learnt in time").unwrap();
        let mut stderr = String::new();
        let from = self.child.stderr.as_mut().unwrap();
        from.read_to_string(&mut stderr).await.unwrap();
        (status.code(), stderr)
    }
}

//! A balancer on the way cuts what is silent: not what a bridge translates, which is
//! pinged.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use skewbridge_client::streams::TransportPreference;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec};
use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::PATIENCE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use crate::port_forward::{PinglessForward, echo_server, echoes};
use crate::streaming::{Channels, Speaks, Story, Way, kubectl_version, path, shell};

#[tokio::test]
async fn a_silent_stream_outlives_a_balancer_that_cuts_silence() {
    Box::pin(judge(Duration::from_secs(3), Duration::from_secs(9), "1s")).await;
}

#[tokio::test]
#[ignore = "long: cargo xtask e2e --all"]
async fn a_stream_that_is_silent_for_five_minutes_outlives_a_balancer() {
    Box::pin(judge(Duration::from_mins(1), Duration::from_mins(5), "10s")).await;
}

async fn judge(silence: Duration, idle: Duration, interval: &str) {
    let Some(version) = kubectl_version() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let _node = plane.start_node().await;
    let server = plane.servers[0].address;
    let pings = format!("--stream-ping-interval={interval}");
    let always = ["--translate-streams=always", pings.as_str()];
    let inverse = ["--upstream-streams=websocket", pings.as_str()];

    let before_server = plane.start_haproxy(server, silence).await;
    let bridge = plane.start_bridge_for(server, &always).await;
    let before_bridge = plane.start_haproxy(bridge.address, silence).await;
    let behind = plane.start_bridge_for(before_server.address, &always).await;
    let inverse = plane
        .start_bridge_for(before_server.address, &inverse)
        .await;
    let before_inverse = plane.start_haproxy(inverse.address, silence).await;

    let without = async {
        let (lived, pings) = command(&plane, before_server.address, idle).await;
        let lived = lived.expect_err("dead without a bridge");
        println!("without a bridge: cut after {:.1} s", lived.as_secs_f32());
        assert_eq!(pings, 0);
        assert!(lived < idle);
    };
    let in_front = async {
        let (lived, pings) = command(&plane, before_bridge.address, idle).await;
        lived.expect("alive: a bridge behind the balancer");
        println!("a bridge behind the balancer: {pings} pings");
        assert!(pings >= 3, "{pings}");
    };
    let before = async {
        let (lived, _) = command(&plane, behind.address, idle).await;
        lived.expect("alive: a bridge before the balancer");
    };
    let forwards = async {
        let by_websocket = |address| forward(&plane, address, TransportPreference::WebSocket, idle);
        let (without, in_front, behind, between) = tokio::join!(
            by_websocket(before_server.address),
            by_websocket(before_bridge.address),
            by_websocket(behind.address),
            forward(
                &plane,
                before_inverse.address,
                TransportPreference::Spdy,
                idle
            ),
        );
        println!("a port-forward without a bridge: {without:?}");
        assert!(without.is_some(), "dead without a bridge");
        assert_eq!(in_front, None, "alive: a bridge behind the balancer");
        assert_eq!(behind, None, "alive: a bridge before the balancer");
        assert_eq!(between, None, "alive: a bridge between two");
    };
    let way = Way::through(&plane, &inverse, Speaks::Spdy);
    tokio::join!(without, in_front, before, kubectl(&way, idle), forwards);
}

/// Forwards a port by a client that does not ping, lets it be silent, and talks through it;
/// gives why it ended, if it has.
async fn forward(
    plane: &ControlPlane,
    address: SocketAddr,
    by: TransportPreference,
    idle: Duration,
) -> Option<String> {
    let (target, _echo) = echo_server().await;
    let mut forward = PinglessForward::start(plane, address, by, target.port()).await;
    echoes(&mut forward.connection, b"before").await;
    if let Some(why) = forward.ends_within(idle).await {
        return Some(why);
    }
    echoes(&mut forward.connection, b"after").await;
    None
}

/// Runs a command by a client that does not ping, lets it be silent, and talks to it.
/// An error is how long it lived. With it: how often it was pinged.
async fn command(
    plane: &ControlPlane,
    address: SocketAddr,
    idle: Duration,
) -> (Result<(), Duration>, usize) {
    let exec = path("exec", &shell("echo begun; read line; echo heard $line"));
    let client = plane.client("admin");
    let mut command = Channels::open(&client, address, &exec, Protocol::V5)
        .await
        .unwrap();
    let mut story = Story::default();
    command.until(&mut story, "begun\n".len()).await;
    let start = Instant::now();
    // Whoever listens hears pings, and the end.
    if timeout(idle, command.silent(&mut story)).await.is_ok() {
        assert_ne!(story.closed, Some(1000), "{story:?}");
        return (Err(start.elapsed()), command.pings);
    }
    command.write(Input::Stdin, b"a line\n").await.unwrap();
    let story = timeout(PATIENCE, command.rest(story)).await.unwrap();
    assert_eq!(story.stdout(), "begun\nheard a line\n");
    assert!(story.error.contains("Success"), "{story:?}");
    (Ok(()), command.pings)
}

/// The same by kubectl.
async fn kubectl(way: &Way<'_>, idle: Duration) {
    let line = "echo begun; read line; echo heard $line";
    let mut child = way
        .command(&["exec", "-i", Node::POD, "--", "sh", "-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut begun = [0; 6];
    stdout.read_exact(&mut begun).await.unwrap();
    sleep(idle).await;
    stdin.write_all(b"a line\n").await.unwrap();
    let mut rest = String::new();
    let reading = timeout(PATIENCE, stdout.read_to_string(&mut rest)).await;
    reading.expect("an answer in time").unwrap();
    assert_eq!(rest, "heard a line\n");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

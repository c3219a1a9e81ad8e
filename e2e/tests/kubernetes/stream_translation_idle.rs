//! A load balancer closes idle connections, but not those that a bridge translates, because
//! the bridge pings them.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use skewbridge_client::remote_command::TransportPreference;
use skewbridge_e2e::{ControlPlane, Node, ServerSpec};
use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::TEST_TIMEOUT;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use crate::port_forward::{PinglessForward, echo_server, echoes};
use crate::streaming::{
    ChannelSocket, StreamProtocol, StreamTarget, Transcript, kubectl_version, path, shell,
};

#[tokio::test]
async fn an_idle_stream_survives_a_load_balancer_with_an_idle_timeout() {
    Box::pin(check_idle_streams(
        Duration::from_secs(3),
        Duration::from_secs(9),
        "1s",
    ))
    .await;
}

#[tokio::test]
#[ignore = "long: cargo xtask e2e --all"]
async fn a_stream_that_is_idle_for_five_minutes_survives_a_load_balancer() {
    Box::pin(check_idle_streams(
        Duration::from_mins(1),
        Duration::from_mins(5),
        "10s",
    ))
    .await;
}

async fn check_idle_streams(idle_timeout: Duration, idle: Duration, interval: &str) {
    let Some(version) = kubectl_version() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let _node = plane.start_node().await;
    let server = plane.servers[0].address;
    let pings = format!("--stream-ping-interval={interval}");
    let always = ["--translate-streams=always", pings.as_str()];
    let inverse = ["--upstream-streams=websocket", pings.as_str()];

    let before_server = plane.start_haproxy(server, idle_timeout).await;
    let bridge = plane.start_bridge_for(server, &always).await;
    let before_bridge = plane.start_haproxy(bridge.address, idle_timeout).await;
    let behind = plane.start_bridge_for(before_server.address, &always).await;
    let inverse = plane
        .start_bridge_for(before_server.address, &inverse)
        .await;
    let before_inverse = plane.start_haproxy(inverse.address, idle_timeout).await;

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
    let target = StreamTarget::through(&plane, &inverse, StreamProtocol::Spdy);
    tokio::join!(without, in_front, before, kubectl(&target, idle), forwards);
}

/// Forwards a port with a client that does not ping, keeps it idle, and sends data through
/// it; returns why it ended, if it has.
async fn forward(
    plane: &ControlPlane,
    address: SocketAddr,
    by: TransportPreference,
    idle: Duration,
) -> Option<String> {
    let (echo_address, _echo) = echo_server().await;
    let mut forward = PinglessForward::start(plane, address, by, echo_address.port()).await;
    echoes(&mut forward.connection, b"before").await;
    if let Some(why) = forward.ends_within(idle).await {
        return Some(why);
    }
    echoes(&mut forward.connection, b"after").await;
    None
}

/// Runs a command with a client that does not ping, keeps it idle, and sends data to it. An
/// error contains the time until the stream ended. Also returns the number of received pings.
async fn command(
    plane: &ControlPlane,
    address: SocketAddr,
    idle: Duration,
) -> (Result<(), Duration>, usize) {
    let exec = path("exec", &shell("echo begun; read line; echo heard $line"));
    let client = plane.client("admin");
    let mut command = ChannelSocket::open(&client, address, &exec, Protocol::V5)
        .await
        .unwrap();
    let mut transcript = Transcript::default();
    command.until(&mut transcript, "begun\n".len()).await;
    let start = Instant::now();
    // A client that reads receives pings, and the end.
    if timeout(idle, command.read_until_end(&mut transcript))
        .await
        .is_ok()
    {
        assert_ne!(transcript.closed, Some(1000), "{transcript:?}");
        return (Err(start.elapsed()), command.pings);
    }
    command.write(Input::Stdin, b"a line\n").await.unwrap();
    let transcript = timeout(TEST_TIMEOUT, command.rest(transcript))
        .await
        .unwrap();
    assert_eq!(transcript.stdout(), "begun\nheard a line\n");
    assert!(transcript.error.contains("Success"), "{transcript:?}");
    (Ok(()), command.pings)
}

/// The same with kubectl.
async fn kubectl(target: &StreamTarget<'_>, idle: Duration) {
    let line = "echo begun; read line; echo heard $line";
    let mut child = target
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
    let reading = timeout(TEST_TIMEOUT, stdout.read_to_string(&mut rest)).await;
    reading.expect("an answer in time").unwrap();
    assert_eq!(rest, "heard a line\n");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

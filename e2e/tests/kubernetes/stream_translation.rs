//! kubectl's exec, attach, cp and port-forward over WebSocket, in front of servers that
//! support it and of servers that do not (KEP-4006).

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, base64url, is_since, oldest, versions};
use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_spdy::{Config, Headers, connection};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::kubectl_terminal::Terminal;
use crate::port_forward::{PortForward, echo_server, echoes, pump};
use crate::streaming::{
    COMMAND_TIMEOUT, ChannelSocket, Noise, StreamProtocol, StreamTarget, Transcript, allow,
    kubectl_version, path, request_websocket, shell,
};

/// The amount of data through one exec, in both directions at once.
const BULK_BYTES: usize = 200 << 20;

/// A typical size for copies to and from pods.
const FILE_BYTES: usize = 20 << 20;

/// The number of concurrent commands.
const CONCURRENT_COMMANDS: usize = 500;

/// The number of concurrent connections through one port-forward.
const CONCURRENT_CONNECTIONS: usize = 100;

#[tokio::test]
async fn a_server_without_websocket_has_it_through_a_bridge() {
    let (Some(_), Some(version)) = (kubectl_version(), without_websocket()) else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let node = plane.start_node().await;
    let target = StreamTarget::bridged(&plane, 0, StreamProtocol::WebSocket);
    timed("verbose", kubectl_does_not_fall_back(&plane)).await;
    timed("exit codes", exit_codes_are_reported(&target)).await;
    timed("bulk", bulk_data_is_transferred_both_ways_at_once(&target)).await;
    timed("unread input", unread_input_does_not_lose_output(&target)).await;
    timed("terminal", a_terminal_is_resized(&target)).await;
    timed("attach", attach_reaches_the_process(&target)).await;
    timed("cp", files_are_copied(&target, &node)).await;
    timed("port-forward", ports_are_forwarded(&target)).await;
    timed("bad port", a_closed_port_affects_no_other(&target)).await;
    timed("client-go", every_executor_of_client_go_works(&plane)).await;
    timed("browser", a_browser_runs_a_command(&target, &plane)).await;
    timed("many", many_commands_run_at_once(&target)).await;
    assert_eq!(
        translated(&target).await[1],
        3,
        "port-forwards of kubectl, also the verbose one, and of skewbridge"
    );
    assert_eq!(
        target.ended_with_client("spdy").await,
        1,
        "only client-go with SPDY configured"
    );
    timed("spdy", spdy_clients_are_tunnelled(&plane)).await;
}

#[tokio::test]
async fn a_server_with_websocket_is_tunnelled_unless_configured_otherwise() {
    let Some(version) = kubectl_version() else {
        return;
    };
    // The second rejects by a feature gate what its version supports.
    let gated = ServerSpec::of(&version)
        .gate("TranslateStreamCloseWebsocketRequests", false)
        .gate("PortForwardWebsockets", false);
    let plane = ControlPlane::start(&[ServerSpec::of(&version), gated]).await;
    let node = plane.start_node().await;
    let server = plane.servers[0].address;
    let always = plane
        .start_bridge_for(server, &["--translate-streams=always"])
        .await;
    let inverse = plane
        .start_bridge_for(server, &["--upstream-streams=websocket"])
        .await;

    let auto = StreamTarget::bridged(&plane, 0, StreamProtocol::WebSocket);
    timed(
        "left to the server",
        run_short_streams(&auto, &node, "websocket", "websocket"),
    )
    .await;
    assert_eq!(translated(&auto).await, [0, 0], "nothing to translate");
    let always = StreamTarget::through(&plane, &always, StreamProtocol::WebSocket);
    timed(
        "always",
        run_short_streams(&always, &node, "websocket", "spdy"),
    )
    .await;
    assert_eq!(translated(&always).await, [9, 1]);
    let corrected = StreamTarget::bridged(&plane, 1, StreamProtocol::WebSocket);
    timed(
        "corrected",
        run_short_streams(&corrected, &node, "websocket", "spdy"),
    )
    .await;
    assert_eq!(translated(&corrected).await, [9, 1]);
    let inverse = StreamTarget::through(&plane, &inverse, StreamProtocol::Spdy);
    timed(
        "inverse",
        run_short_streams(&inverse, &node, "spdy", "websocket"),
    )
    .await;
    assert_eq!(translated(&inverse).await, [0, 0], "not for this client");
    for target in [&auto, &always, &corrected] {
        assert_eq!(target.ended_with_client("spdy").await, 0, "no fallback");
    }
    let unread = unread_input_does_not_lose_output(&inverse);
    timed("unread input", unread).await;
    timed("browser", a_browser_runs_a_command(&auto, &plane)).await;
}

/// The oldest version, if it does not support WebSocket.
fn without_websocket() -> Option<String> {
    let versions = versions();
    let version = oldest(&versions);
    if is_since(version, 30) {
        println!("skipped: {version} supports WebSocket");
        return None;
    }
    Some(version.to_owned())
}

async fn timed<T>(what: &str, work: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let done = work.await;
    println!("{what}: {:.1} s", start.elapsed().as_secs_f32());
    done
}

/// How many commands, and how many port-forwards, a bridge has translated to SPDY without
/// an error.
async fn translated(target: &StreamTarget<'_>) -> [u64; 2] {
    let metrics = target.metrics().await;
    [
        metrics.sum(
            "apiserver_stream_translator_requests_total",
            &["code=\"200\""],
        ),
        metrics.sum("apiserver_stream_tunnel_requests_total", &["code=\"101\""]),
    ]
}

/// All kinds of streams once, each with these protocols.
async fn run_short_streams(target: &StreamTarget<'_>, node: &Node, client: &str, upstream: &str) {
    exit_codes_are_reported(target).await;
    let sent = Noise::new().take(4 << 20);
    let words = ["exec", "-i", Node::POD, "--", "wc", "-c"];
    let counted = target.run(&words, &sent).await;
    assert_eq!(counted.stdout.trim(), sent.len().to_string(), "{counted:?}");
    attach_reaches_the_process(target).await;
    files_are_copied(target, node).await;
    let (echo_address, _echo) = echo_server().await;
    let mut forward = PortForward::start(target, &[echo_address.port()]).await;
    forward.echoes(0, b"through the port").await;
    forward.child.end().await;
    // Four exit codes, one input, and three by cp: upload, download, and a check of the target.
    target.wait_until_ended("exec", client, upstream, 8).await;
    target.wait_until_ended("attach", client, upstream, 1).await;
    target
        .wait_until_ended("portforward", client, upstream, 1)
        .await;
    assert_eq!(target.ended_with_client(client).await, 8 + 1 + 1);
}

/// Directly at the server kubectl is rejected and falls back; through the bridge it is not
/// and does not.
async fn kubectl_does_not_fall_back(plane: &ControlPlane) {
    let words = ["-v=8", "exec", Node::POD, "--", "echo", "out"];
    let direct = StreamTarget::direct(plane, 0, StreamProtocol::WebSocket);
    let refused = direct.run(&words, b"").await;
    assert_eq!((refused.code, &*refused.stdout), (Some(0), "out\n"));
    assert!(
        refused.stderr.contains("403 Forbidden"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("fallback"), "{}", refused.stderr);
    let never = plane
        .start_bridge_for(plane.servers[0].address, &["--translate-streams=never"])
        .await;
    let never = StreamTarget::through(plane, &never, StreamProtocol::WebSocket);
    let relayed = never.run(&words, b"").await;
    assert_eq!((relayed.code, &*relayed.stdout), (Some(0), "out\n"));
    assert!(relayed.stderr.contains("fallback"), "{}", relayed.stderr);
    never.wait_until_ended("exec", "spdy", "spdy", 1).await;
    assert_eq!(never.ended_with_client("websocket").await, 0);

    let bridged = StreamTarget::bridged(plane, 0, StreamProtocol::WebSocket);
    let directory = ScratchDir::new();
    let file = directory.write("file", b"copied").display().to_string();
    let remote = format!("{}:{}", Node::POD, directory.path().join("copy").display());
    for (words, input, expected) in [
        (&words[..], "", "out\n"),
        (&["-v=8", "attach", "-i", Node::POD], "in\n", "in\n"),
        (&["-v=8", "cp", &file, &remote], "", ""),
    ] {
        let granted = bridged.run(words, input.as_bytes()).await;
        assert_eq!((granted.code, &*granted.stdout), (Some(0), expected));
        assert_no_fallback(&granted.stderr);
    }
    let (echo_address, _echo) = echo_server().await;
    let log = directory.path().join("port-forward");
    let mut forward = PortForward::start_verbose(&bridged, &[echo_address.port()], &log).await;
    forward.echoes(0, b"through the port").await;
    forward.child.end().await;
    assert_no_fallback(&fs::read_to_string(log).unwrap());
    // One of kubectl's own, and two by cp: upload, and a check of the target.
    bridged
        .wait_until_ended("exec", "websocket", "spdy", 3)
        .await;
    bridged
        .wait_until_ended("attach", "websocket", "spdy", 1)
        .await;
    bridged
        .wait_until_ended("portforward", "websocket", "spdy", 1)
        .await;
    assert_eq!(translated(&bridged).await, [4, 1]);
    assert_eq!(bridged.ended_with_client("spdy").await, 0);
}

/// Checks the output of kubectl with `-v=8`.
fn assert_no_fallback(log: &str) {
    assert!(!log.contains("403 Forbidden"), "{log}");
    assert!(!log.contains("fallback"), "{log}");
    assert!(log.contains("101 Switching"), "{log}");
}

async fn exit_codes_are_reported(target: &StreamTarget<'_>) {
    for (line, code) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 3", 3),
        ("kill -9 $$", 137),
    ] {
        let line = format!("echo out; echo err >&2; {line}");
        let output = target.sh(&line).await;
        assert_eq!(output.code, Some(code), "{line}: {}", output.stderr);
        assert_eq!(output.stdout, "out\n", "{line}");
        let expected = match code {
            0 => "err\n".to_owned(),
            _ => format!("err\ncommand terminated with exit code {code}\n"),
        };
        assert_eq!(output.stderr, expected, "{line}");
    }
}

/// Through one `cat`: the output equals the input.
async fn bulk_data_is_transferred_both_ways_at_once(target: &StreamTarget<'_>) {
    const PART_BYTES: usize = 256 << 10;
    let words = ["exec", "-i", Node::POD, "--", "cat"];
    let mut child = target
        .command(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writing = async move {
        let mut noise = Noise::new();
        for _ in 0..BULK_BYTES / PART_BYTES {
            stdin.write_all(&noise.take(PART_BYTES)).await.unwrap();
        }
    };
    let reading = async move {
        let (mut noise, mut piece) = (Noise::new(), vec![0; PART_BYTES]);
        for number in 0..BULK_BYTES / PART_BYTES {
            stdout.read_exact(&mut piece).await.unwrap();
            assert!(piece == noise.take(PART_BYTES), "part {number} differs");
        }
        assert_eq!(stdout.read(&mut piece).await.unwrap(), 0, "more came");
    };
    let exchange = async { tokio::join!(writing, reading) };
    timeout(3 * COMMAND_TIMEOUT, exchange)
        .await
        .expect("an end in time");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

/// The process exits before it has read its input: the node closes the connection then, and
/// kube-apiserver may lose the last output with it. Without a bridge kubectl reports a
/// success without output.
async fn unread_input_does_not_lose_output(target: &StreamTarget<'_>) {
    let input = vec![b'x'; 8 << 20];
    let words = ["exec", "-i", Node::POD, "--", "head", "-c", "100"];
    let mut well = 0;
    for _ in 0..10 {
        let output = target.run(&words, &input).await;
        if output.code == Some(0) {
            assert_eq!(output.stdout.len(), 100, "{}", output.stderr);
            well += 1;
        } else {
            assert!(
                output.stderr.contains("connection was lost"),
                "{}",
                output.stderr
            );
        }
    }
    println!("{well} of 10 succeeded");
    assert!(well > 0);
}

/// kubectl in a terminal whose size changes; the process in the pod gets the new size.
async fn a_terminal_is_resized(target: &StreamTarget<'_>) {
    let line = "while read line; do echo size $(stty size) after $line; done";
    let kubectl = target.command(&["exec", "-it", Node::POD, "--", "sh", "-c", line]);
    let mut terminal = Terminal::start(&kubectl);
    for (number, (rows, columns)) in [(30, 100), (51, 133)].into_iter().enumerate() {
        terminal.resize(rows, columns).await;
        let expected = format!("size {rows} {columns} after");
        // The size is not synchronised with the typed text.
        let mut turn = 0;
        eventually(&expected, TEST_TIMEOUT, async || {
            turn += 1;
            let mark = format!("{number}-{turn}");
            terminal.types(&format!("{mark}\n")).await;
            terminal
                .line_with(&format!("after {mark}"))
                .await
                .contains(&expected)
        })
        .await;
    }
    terminal.types("\u{3}").await;
    let code = terminal.end().await;
    assert_eq!(code, Some(130), "interrupted");
}

async fn attach_reaches_the_process(target: &StreamTarget<'_>) {
    let words = ["attach", "-i", Node::POD];
    let output = target.run(&words, b"to the container\n").await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.stdout, "to the container\n");
}

/// To the pod and back.
async fn files_are_copied(target: &StreamTarget<'_>, node: &Node) {
    let directory = ScratchDir::new();
    let contents = Noise::new().take(FILE_BYTES);
    let original = directory.write("original", &contents).display().to_string();
    let in_pod = node.directory.join("copy");
    let remote = format!("{}:{}", Node::POD, in_pod.display());
    let back = directory.path().join("back");
    let local = back.display().to_string();
    for (words, copy) in [
        (["cp", &original, &remote], &in_pod),
        (["cp", &remote, &local], &back),
    ] {
        let output = target.run(&words, b"").await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        assert!(fs::read(copy).unwrap() == contents, "{words:?}");
    }
    fs::remove_file(in_pod).unwrap();
}

/// Many connections over one forward, of which one is closed by its client: no other is
/// affected.
async fn ports_are_forwarded(target: &StreamTarget<'_>) {
    let (echo_address, _echo) = echo_server().await;
    let before = target.ended("portforward", "websocket", "spdy").await;
    let mut forward = PortForward::start(target, &[echo_address.port()]).await;
    let mut connections = Vec::new();
    for number in 0..CONCURRENT_CONNECTIONS {
        let mut connection = forward.connect(0).await;
        // It stays connected to its far end while the others are opened.
        echoes(&mut connection, &[byte(number)]).await;
        connections.push(connection);
    }
    let cut = connections.remove(CONCURRENT_CONNECTIONS / 2);
    cut.set_zero_linger().unwrap();
    drop(cut);
    let mut exchanges = JoinSet::new();
    for (number, mut connection) in connections.into_iter().enumerate() {
        exchanges.spawn(async move {
            echoes(&mut connection, &vec![byte(number); 32 << 10]).await;
            connection.shutdown().await.unwrap();
            let mut rest = Vec::new();
            connection.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty(), "{} more", rest.len());
        });
    }
    let exchanges = timeout(COMMAND_TIMEOUT, exchanges.join_all());
    assert_eq!(
        exchanges.await.expect("all end").len(),
        CONCURRENT_CONNECTIONS - 1
    );
    forward.echoes(0, b"and one more").await;
    forward.child.end().await;
    target
        .wait_until_ended("portforward", "websocket", "spdy", before + 1)
        .await;
}

/// A port without a listener. kubectl itself closes all other connections then, with any
/// protocol; so another client is used here.
async fn a_closed_port_affects_no_other(target: &StreamTarget<'_>) {
    let (echo_address, _echo) = echo_server().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = unused.local_addr().unwrap().port();
    drop(unused);
    let client = target.plane.client("admin");
    let offer = "SPDY/3.1+portforward.k8s.io";
    let http =
        request_websocket(&client, target.address, &path("portforward", ""), offer, "").await;
    let (spdy_end, websocket_end) = tokio::io::duplex(1 << 20);
    let mut tasks = JoinSet::new();
    tasks.spawn(pump(http.unwrap().into_connection(), websocket_end));
    let (handle, _incoming, driver) = connection::client(spdy_end, Config::default());
    tasks.spawn(async move {
        let _ = driver.await;
    });
    let open = |number: usize, port: u16| {
        let stream = |kind: &str| {
            let headers = Headers::new()
                .with("streamtype", kind)
                .with("port", port.to_string())
                .with("requestid", number.to_string());
            handle.open(headers).unwrap()
        };
        let (mut error, data) = (stream("error"), stream("data"));
        error.sender.finish().unwrap();
        (error, data)
    };
    let mut connections = Vec::new();
    for number in 0..CONCURRENT_CONNECTIONS - 1 {
        let (error, mut data) = open(number, echo_address.port());
        data.sender
            .write(vec![byte(number); 100].into())
            .await
            .unwrap();
        connections.push((error, data));
    }
    let (mut error, _data) = open(CONCURRENT_CONNECTIONS, closed);
    let reading = async {
        let mut text = Vec::new();
        while let Ok(Some(piece)) = error.receiver.read().await {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
    };
    let text = timeout(TEST_TIMEOUT, reading).await.unwrap();
    assert!(text.contains("connection refused"), "{text}");
    for (number, (_, data)) in connections.iter_mut().enumerate() {
        data.sender
            .write(vec![byte(number); 100].into())
            .await
            .unwrap();
        let mut received = Vec::new();
        while received.len() < 200 {
            let piece = timeout(TEST_TIMEOUT, data.receiver.read()).await.unwrap();
            received.extend_from_slice(&piece.unwrap().expect("more"));
        }
        assert_eq!(received, vec![byte(number); 200], "{number}");
    }
    tasks.shutdown().await;
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap()
}

/// WebSocket, SPDY, and the first of them that works.
async fn every_executor_of_client_go_works(plane: &ControlPlane) {
    let target = StreamTarget::bridged(plane, 0, StreamProtocol::WebSocket);
    let ends = async || {
        let websocket = target.ended("exec", "websocket", "spdy").await;
        (websocket, target.ended("exec", "spdy", "spdy").await)
    };
    let run = async |address, check: &str| {
        let mut command = plane.client_go_command(address, User::Admin, Node::NAMESPACE);
        let words = ["--pod", Node::POD, "--container", Node::CONTAINER, check];
        let output = command.args(words).output().await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let seen = serde_json::from_slice::<Value>(&output.stdout);
        seen.map_err(|_| stderr)
    };
    let expected = json!({"Bytes": 1 << 20, "Stderr": "err\n", "Code": 7});
    for (check, by_websocket) in [
        ("exec-websocket", true),
        ("exec-fallback", true),
        ("exec-spdy", false),
    ] {
        let (websocket, spdy) = ends().await;
        let seen = run(target.address, check).await;
        assert_eq!(seen.as_ref(), Ok(&expected), "{check}");
        let both = if by_websocket {
            (websocket + 1, spdy)
        } else {
            (websocket, spdy + 1)
        };
        eventually(check, TEST_TIMEOUT, async || ends().await == both).await;
    }
    // Without a bridge.
    let direct = plane.servers[0].address;
    let refused = run(direct, "exec-websocket").await.unwrap_err();
    assert!(refused.contains("403"), "{refused}");
    let fell = run(direct, "exec-fallback").await.unwrap();
    assert_eq!(fell["FellBack"], true, "{fell}");
}

/// Base64 text, and a token among the offered subprotocols: all that a browser supports.
async fn a_browser_runs_a_command(target: &StreamTarget<'_>, plane: &ControlPlane) {
    let token = allow(plane, "browser", &["create", "get"]).await;
    let anonymous = plane.anonymous_client();
    let offers = format!(
        "base64url.bearer.authorization.k8s.io.{}, base64.channel.k8s.io",
        base64url(token.as_bytes())
    );
    let line = "read line; echo heard $line; echo err >&2; exit 3";
    let exec = path("exec", &shell(line));
    let http = request_websocket(&anonymous, target.address, &exec, &offers, "")
        .await
        .unwrap();
    let mut browser = ChannelSocket::over(http, Protocol::V1_BASE64);
    browser
        .write(Input::Stdin, "ä line\n".as_bytes())
        .await
        .unwrap();
    let transcript = timeout(TEST_TIMEOUT, browser.rest(Transcript::default()))
        .await
        .unwrap();
    assert_eq!(transcript.stdout(), "heard ä line\n");
    assert_eq!(transcript.stderr, b"err\n");
    // The oldest protocol reports it as text, which ends with the node's message.
    let message = "command terminated with non-zero exit code: exit status 3";
    assert_eq!(transcript.error, message);
    assert_eq!(transcript.closed, Some(1000), "{transcript:?}");
    // No other user is authenticated this way.
    let offers = "base64url.bearer.authorization.k8s.io.bm9ib2R5, base64.channel.k8s.io";
    let refused = request_websocket(&anonymous, target.address, &exec, offers, "").await;
    assert_eq!(refused.err().map(|it| it.0), Some(401));
}

/// All are open concurrently before the first of them ends.
async fn many_commands_run_at_once(target: &StreamTarget<'_>) {
    let open = async || {
        let metrics = target.metrics().await;
        metrics.sum("skewbridge_streams_open", &["kind=\"exec\""])
    };
    let before = target.ended("exec", "websocket", "spdy").await;
    let mut opening = JoinSet::new();
    for number in 0..CONCURRENT_COMMANDS {
        let (client, address) = (target.plane.client("admin"), target.address);
        opening.spawn(async move {
            let line = format!("read line; echo {number} $line; exit {}", number % 5);
            let exec = path("exec", &shell(&line));
            let opened = ChannelSocket::open(&client, address, &exec, Protocol::V5).await;
            (number, opened.unwrap())
        });
    }
    let commands = timeout(3 * COMMAND_TIMEOUT, opening.join_all())
        .await
        .unwrap();
    assert_eq!(open().await, CONCURRENT_COMMANDS as u64);
    let mut ending = JoinSet::new();
    for (number, mut command) in commands {
        ending.spawn(async move {
            let line = format!("line-{number}\n");
            command.write(Input::Stdin, line.as_bytes()).await.unwrap();
            let transcript = command.rest(Transcript::default()).await;
            assert_eq!(transcript.stdout(), format!("{number} {line}"));
            assert_eq!(transcript.closed, Some(1000), "{transcript:?}");
            let message = match number % 5 {
                0 => r#""status":"Success""#.to_owned(),
                code => format!(r#""reason":"ExitCode","message":"{code}""#),
            };
            assert!(
                transcript.error.contains(&message),
                "{number}: {}",
                transcript.error
            );
        });
    }
    timeout(3 * COMMAND_TIMEOUT, ending.join_all())
        .await
        .unwrap();
    let all = before + CONCURRENT_COMMANDS as u64;
    target
        .wait_until_ended("exec", "websocket", "spdy", all)
        .await;
    assert_eq!(open().await, 0);
}

/// An old kubectl, or one that is configured to use SPDY.
async fn spdy_clients_are_tunnelled(plane: &ControlPlane) {
    let target = StreamTarget::bridged(plane, 0, StreamProtocol::Spdy);
    let (before, websocket) = (
        target.ended_with_client("spdy").await,
        target.ended_with_client("websocket").await,
    );
    let output = target.sh("echo out; exit 3").await;
    assert_eq!((output.code, &*output.stdout), (Some(3), "out\n"));
    attach_reaches_the_process(&target).await;
    let (echo_address, _echo) = echo_server().await;
    let mut forward = PortForward::start(&target, &[echo_address.port()]).await;
    forward.echoes(0, b"through the port").await;
    forward.child.end().await;
    target.wait_until_ended("attach", "spdy", "spdy", 1).await;
    target
        .wait_until_ended("portforward", "spdy", "spdy", 1)
        .await;
    eventually("all of them", TEST_TIMEOUT, async || {
        target.ended_with_client("spdy").await == before + 3
    })
    .await;
    assert_eq!(target.ended_with_client("websocket").await, websocket);
}

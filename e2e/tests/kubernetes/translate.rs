//! kubectl's exec, attach, cp and port-forward by WebSocket, in front of servers that
//! know it and of servers that do not (KEP-4006).

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, base64url, is_since, oldest, versions};
use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_spdy::{Config, Headers, connection};
use skewbridge_testkit::{PATIENCE, ScratchDir, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::kubectl_terminal::Terminal;
use crate::port_forward::{PortForward, echo_server, echoes, pump};
use crate::streaming::{
    COMMAND_TIMEOUT, Channels, Noise, Speaks, Story, Way, allow, ask, kubectl_version, path, shell,
};

/// What goes through one exec, both ways at once.
const BULK: usize = 200 << 20;

/// What people copy in and out of pods.
const FILE: usize = 20 << 20;

/// How many commands run at once.
const COMMANDS: usize = 500;

/// How many connections are open at once through one port-forward.
const CONNECTIONS: usize = 100;

#[tokio::test]
async fn a_server_that_refuses_websocket_has_it_through_a_bridge() {
    let (Some(_), Some(version)) = (kubectl_version(), without_websocket()) else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&version)]).await;
    let node = plane.start_node().await;
    let way = Way::bridged(&plane, 0, Speaks::WebSocket);
    timed("verbose", nobody_falls_back(&plane)).await;
    timed("exit codes", exit_codes_are_told(&way)).await;
    timed("bulk", bulk_goes_both_ways_at_once(&way)).await;
    timed(
        "unread input",
        input_that_nobody_reads_spoils_no_output(&way),
    )
    .await;
    timed("terminal", a_terminal_is_resized(&way)).await;
    timed("attach", an_attached_process_answers(&way)).await;
    timed("cp", files_are_copied(&way, &node)).await;
    timed("port-forward", ports_are_forwarded(&way)).await;
    timed("bad port", one_bad_port_spoils_no_other(&way)).await;
    timed("client-go", every_executor_of_client_go_works(&plane)).await;
    timed("browser", a_browser_runs_a_command(&way, &plane)).await;
    timed("many", many_commands_run_at_once(&way)).await;
    assert_eq!(
        translated(&way).await[1],
        3,
        "kubectl's port-forward, also the verbose one, and ours"
    );
    assert_eq!(
        way.all_by("spdy").await,
        1,
        "only client-go, when it was told to"
    );
    timed("spdy", who_speaks_spdy_is_carried_as_before(&plane)).await;
}

#[tokio::test]
async fn a_server_that_knows_websocket_is_left_to_it_unless_told_otherwise() {
    let Some(version) = kubectl_version() else {
        return;
    };
    // The second refuses by a gate what its version should know.
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

    let auto = Way::bridged(&plane, 0, Speaks::WebSocket);
    timed("left to it", short(&auto, &node, "websocket", "websocket")).await;
    assert_eq!(translated(&auto).await, [0, 0], "nothing to translate");
    let always = Way::through(&plane, &always, Speaks::WebSocket);
    timed("always", short(&always, &node, "websocket", "spdy")).await;
    assert_eq!(translated(&always).await, [9, 1]);
    let corrected = Way::bridged(&plane, 1, Speaks::WebSocket);
    timed("corrected", short(&corrected, &node, "websocket", "spdy")).await;
    assert_eq!(translated(&corrected).await, [9, 1]);
    let inverse = Way::through(&plane, &inverse, Speaks::Spdy);
    timed("inverse", short(&inverse, &node, "spdy", "websocket")).await;
    assert_eq!(translated(&inverse).await, [0, 0], "not that way");
    for way in [&auto, &always, &corrected] {
        assert_eq!(way.all_by("spdy").await, 0, "nobody fell back");
    }
    let unread = input_that_nobody_reads_spoils_no_output(&inverse);
    timed("unread input", unread).await;
    timed("browser", a_browser_runs_a_command(&auto, &plane)).await;
}

/// The oldest version, if it knows no WebSocket.
fn without_websocket() -> Option<String> {
    let versions = versions();
    let version = oldest(&versions);
    if is_since(version, 30) {
        println!("left out: {version} knows WebSocket");
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

/// How many commands, and how many port-forwards, a bridge has translated to SPDY
/// without an error.
async fn translated(way: &Way<'_>) -> [u64; 2] {
    let metrics = way.metrics().await;
    [
        metrics.sum(
            "apiserver_stream_translator_requests_total",
            &["code=\"200\""],
        ),
        metrics.sum("apiserver_stream_tunnel_requests_total", &["code=\"101\""]),
    ]
}

/// All kinds of streams once, of which each is of these protocols.
async fn short(way: &Way<'_>, node: &Node, client: &str, upstream: &str) {
    exit_codes_are_told(way).await;
    let sent = Noise::new().take(4 << 20);
    let words = ["exec", "-i", Node::POD, "--", "wc", "-c"];
    let counted = way.run(&words, &sent).await;
    assert_eq!(counted.stdout.trim(), sent.len().to_string(), "{counted:?}");
    an_attached_process_answers(way).await;
    files_are_copied(way, node).await;
    let (target, _echo) = echo_server().await;
    let mut forward = PortForward::start(way, &[target.port()]).await;
    forward.echoes(0, b"through the port").await;
    forward.child.end().await;
    // Four exit codes, one input, and three by cp: there, back, and a look at what is
    // there.
    way.have_ended("exec", client, upstream, 8).await;
    way.have_ended("attach", client, upstream, 1).await;
    way.have_ended("portforward", client, upstream, 1).await;
    assert_eq!(way.all_by(client).await, 8 + 1 + 1);
}

/// Straight to the server kubectl is refused and falls back; through the bridge it is
/// not and does not.
async fn nobody_falls_back(plane: &ControlPlane) {
    let words = ["-v=8", "exec", Node::POD, "--", "echo", "out"];
    let straight = Way::straight(plane, 0, Speaks::WebSocket);
    let refused = straight.run(&words, b"").await;
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
    let never = Way::through(plane, &never, Speaks::WebSocket);
    let relayed = never.run(&words, b"").await;
    assert_eq!((relayed.code, &*relayed.stdout), (Some(0), "out\n"));
    assert!(relayed.stderr.contains("fallback"), "{}", relayed.stderr);
    never.have_ended("exec", "spdy", "spdy", 1).await;
    assert_eq!(never.all_by("websocket").await, 0);

    let bridged = Way::bridged(plane, 0, Speaks::WebSocket);
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
        has_not_fallen_back(&granted.stderr);
    }
    let (target, _echo) = echo_server().await;
    let log = directory.path().join("port-forward");
    let mut forward = PortForward::start_verbose(&bridged, &[target.port()], &log).await;
    forward.echoes(0, b"through the port").await;
    forward.child.end().await;
    has_not_fallen_back(&fs::read_to_string(log).unwrap());
    // One of kubectl's own, and two by cp: there, and a look at what is there.
    bridged.have_ended("exec", "websocket", "spdy", 3).await;
    bridged.have_ended("attach", "websocket", "spdy", 1).await;
    bridged
        .have_ended("portforward", "websocket", "spdy", 1)
        .await;
    assert_eq!(translated(&bridged).await, [4, 1]);
    assert_eq!(bridged.all_by("spdy").await, 0);
}

/// What kubectl tells with `-v=8`.
fn has_not_fallen_back(told: &str) {
    assert!(!told.contains("403 Forbidden"), "{told}");
    assert!(!told.contains("fallback"), "{told}");
    assert!(told.contains("101 Switching"), "{told}");
}

async fn exit_codes_are_told(way: &Way<'_>) {
    for (line, code) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 3", 3),
        ("kill -9 $$", 137),
    ] {
        let line = format!("echo out; echo err >&2; {line}");
        let output = way.sh(&line).await;
        assert_eq!(output.code, Some(code), "{line}: {}", output.stderr);
        assert_eq!(output.stdout, "out\n", "{line}");
        let expected = match code {
            0 => "err\n".to_owned(),
            _ => format!("err\ncommand terminated with exit code {code}\n"),
        };
        assert_eq!(output.stderr, expected, "{line}");
    }
}

/// Through one `cat`: what comes back is what was sent.
async fn bulk_goes_both_ways_at_once(way: &Way<'_>) {
    const PIECE: usize = 256 << 10;
    let words = ["exec", "-i", Node::POD, "--", "cat"];
    let mut child = way
        .command(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writing = async move {
        let mut noise = Noise::new();
        for _ in 0..BULK / PIECE {
            stdin.write_all(&noise.take(PIECE)).await.unwrap();
        }
    };
    let reading = async move {
        let (mut noise, mut piece) = (Noise::new(), vec![0; PIECE]);
        for number in 0..BULK / PIECE {
            stdout.read_exact(&mut piece).await.unwrap();
            assert!(piece == noise.take(PIECE), "piece {number} is another");
        }
        assert_eq!(stdout.read(&mut piece).await.unwrap(), 0, "more came");
    };
    let talk = async { tokio::join!(writing, reading) };
    timeout(3 * COMMAND_TIMEOUT, talk)
        .await
        .expect("an end in time");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

/// The process ends before its input: the node cuts the connection then, and
/// kube-apiserver may lose with it what was said last. Without us kubectl takes that for
/// a success without output.
async fn input_that_nobody_reads_spoils_no_output(way: &Way<'_>) {
    let input = vec![b'x'; 8 << 20];
    let words = ["exec", "-i", Node::POD, "--", "head", "-c", "100"];
    let mut well = 0;
    for _ in 0..10 {
        let output = way.run(&words, &input).await;
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
    println!("{well} of 10 ended well");
    assert!(well > 0);
}

/// kubectl in a terminal whose size changes; the process in the pod sees it.
async fn a_terminal_is_resized(way: &Way<'_>) {
    let line = "while read line; do echo size $(stty size) after $line; done";
    let kubectl = way.command(&["exec", "-it", Node::POD, "--", "sh", "-c", line]);
    let mut terminal = Terminal::start(&kubectl);
    for (number, (rows, columns)) in [(30, 100), (51, 133)].into_iter().enumerate() {
        terminal.resize(rows, columns).await;
        let expected = format!("size {rows} {columns} after");
        // The size is not told in step with what is typed.
        let mut turn = 0;
        eventually(&expected, PATIENCE, async || {
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

async fn an_attached_process_answers(way: &Way<'_>) {
    let words = ["attach", "-i", Node::POD];
    let output = way.run(&words, b"to the container\n").await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_eq!(output.stdout, "to the container\n");
}

/// Into the pod and out again.
async fn files_are_copied(way: &Way<'_>, node: &Node) {
    let directory = ScratchDir::new();
    let contents = Noise::new().take(FILE);
    let original = directory.write("original", &contents).display().to_string();
    let in_pod = node.directory.join("copy");
    let remote = format!("{}:{}", Node::POD, in_pod.display());
    let back = directory.path().join("back");
    let local = back.display().to_string();
    for (words, copy) in [
        (["cp", &original, &remote], &in_pod),
        (["cp", &remote, &local], &back),
    ] {
        let output = way.run(&words, b"").await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        assert!(fs::read(copy).unwrap() == contents, "{words:?}");
    }
    fs::remove_file(in_pod).unwrap();
}

/// Many connections over one forward, of which one is cut by its client: no other
/// notices.
async fn ports_are_forwarded(way: &Way<'_>) {
    let (target, _echo) = echo_server().await;
    let before = way.ended("portforward", "websocket", "spdy").await;
    let mut forward = PortForward::start(way, &[target.port()]).await;
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let mut connection = forward.connect(0).await;
        // It is open to its far end while the others come.
        echoes(&mut connection, &[byte(number)]).await;
        connections.push(connection);
    }
    let cut = connections.remove(CONNECTIONS / 2);
    cut.set_zero_linger().unwrap();
    drop(cut);
    let mut talks = JoinSet::new();
    for (number, mut connection) in connections.into_iter().enumerate() {
        talks.spawn(async move {
            echoes(&mut connection, &vec![byte(number); 32 << 10]).await;
            connection.shutdown().await.unwrap();
            let mut rest = Vec::new();
            connection.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty(), "{} more", rest.len());
        });
    }
    let talks = timeout(COMMAND_TIMEOUT, talks.join_all());
    assert_eq!(talks.await.expect("all end").len(), CONNECTIONS - 1);
    forward.echoes(0, b"and one more").await;
    forward.child.end().await;
    way.have_ended("portforward", "websocket", "spdy", before + 1)
        .await;
}

/// A port on which nobody listens. kubectl itself gives up all others then, however it
/// is connected; so this is done by a client that does not.
async fn one_bad_port_spoils_no_other(way: &Way<'_>) {
    let (target, _echo) = echo_server().await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = nobody.local_addr().unwrap().port();
    drop(nobody);
    let client = way.plane.client("admin");
    let offer = "SPDY/3.1+portforward.k8s.io";
    let http = ask(&client, way.address, &path("portforward", ""), offer, "").await;
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let mut tasks = JoinSet::new();
    tasks.spawn(pump(http.unwrap().into_connection(), theirs));
    let (handle, _incoming, driver) = connection::client(ours, Config::default());
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
    for number in 0..CONNECTIONS - 1 {
        let (error, mut data) = open(number, target.port());
        data.sender
            .write(vec![byte(number); 100].into())
            .await
            .unwrap();
        connections.push((error, data));
    }
    let (mut error, _data) = open(CONNECTIONS, closed);
    let reading = async {
        let mut text = Vec::new();
        while let Ok(Some(piece)) = error.receiver.read().await {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
    };
    let text = timeout(PATIENCE, reading).await.unwrap();
    assert!(text.contains("connection refused"), "{text}");
    for (number, (_, data)) in connections.iter_mut().enumerate() {
        data.sender
            .write(vec![byte(number); 100].into())
            .await
            .unwrap();
        let mut heard = Vec::new();
        while heard.len() < 200 {
            let piece = timeout(PATIENCE, data.receiver.read()).await.unwrap();
            heard.extend_from_slice(&piece.unwrap().expect("more"));
        }
        assert_eq!(heard, vec![byte(number); 200], "{number}");
    }
    tasks.shutdown().await;
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap()
}

/// By WebSocket, by SPDY, and by the first of them that works.
async fn every_executor_of_client_go_works(plane: &ControlPlane) {
    let way = Way::bridged(plane, 0, Speaks::WebSocket);
    let ends = async || {
        let websocket = way.ended("exec", "websocket", "spdy").await;
        (websocket, way.ended("exec", "spdy", "spdy").await)
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
        let seen = run(way.address, check).await;
        assert_eq!(seen.as_ref(), Ok(&expected), "{check}");
        let both = if by_websocket {
            (websocket + 1, spdy)
        } else {
            (websocket, spdy + 1)
        };
        eventually(check, PATIENCE, async || ends().await == both).await;
    }
    // Without us.
    let straight = plane.servers[0].address;
    let refused = run(straight, "exec-websocket").await.unwrap_err();
    assert!(refused.contains("403"), "{refused}");
    let fell = run(straight, "exec-fallback").await.unwrap();
    assert_eq!(fell["FellBack"], true, "{fell}");
}

/// Text in base64, and a token among the offers: all that a browser can do.
async fn a_browser_runs_a_command(way: &Way<'_>, plane: &ControlPlane) {
    let token = allow(plane, "browser", &["create", "get"]).await;
    let stranger = plane.anonymous_client();
    let offers = format!(
        "base64url.bearer.authorization.k8s.io.{}, base64.channel.k8s.io",
        base64url(token.as_bytes())
    );
    let line = "read line; echo heard $line; echo err >&2; exit 3";
    let exec = path("exec", &shell(line));
    let http = ask(&stranger, way.address, &exec, &offers, "")
        .await
        .unwrap();
    let mut browser = Channels::over(http, Protocol::V1_BASE64);
    browser
        .write(Input::Stdin, "ä line\n".as_bytes())
        .await
        .unwrap();
    let story = timeout(PATIENCE, browser.rest(Story::default()))
        .await
        .unwrap();
    assert_eq!(story.stdout(), "heard ä line\n");
    assert_eq!(story.stderr, b"err\n");
    // The oldest protocol tells it in words, the last of which are the node's.
    let told = "command terminated with non-zero exit code: exit status 3";
    assert_eq!(story.error, told);
    assert_eq!(story.closed, Some(1000), "{story:?}");
    // Nobody else comes in this way.
    let offers = "base64url.bearer.authorization.k8s.io.bm9ib2R5, base64.channel.k8s.io";
    let refused = ask(&stranger, way.address, &exec, offers, "").await;
    assert_eq!(refused.err().map(|it| it.0), Some(401));
}

/// All are open at once before the first of them ends.
async fn many_commands_run_at_once(way: &Way<'_>) {
    let open = async || {
        let metrics = way.metrics().await;
        metrics.sum("skewbridge_streams_open", &["kind=\"exec\""])
    };
    let before = way.ended("exec", "websocket", "spdy").await;
    let mut opening = JoinSet::new();
    for number in 0..COMMANDS {
        let (client, address) = (way.plane.client("admin"), way.address);
        opening.spawn(async move {
            let line = format!("read line; echo {number} $line; exit {}", number % 5);
            let exec = path("exec", &shell(&line));
            let opened = Channels::open(&client, address, &exec, Protocol::V5).await;
            (number, opened.unwrap())
        });
    }
    let commands = timeout(3 * COMMAND_TIMEOUT, opening.join_all())
        .await
        .unwrap();
    assert_eq!(open().await, COMMANDS as u64);
    let mut ending = JoinSet::new();
    for (number, mut command) in commands {
        ending.spawn(async move {
            let line = format!("line-{number}\n");
            command.write(Input::Stdin, line.as_bytes()).await.unwrap();
            let story = command.rest(Story::default()).await;
            assert_eq!(story.stdout(), format!("{number} {line}"));
            assert_eq!(story.closed, Some(1000), "{story:?}");
            let told = match number % 5 {
                0 => r#""status":"Success""#.to_owned(),
                code => format!(r#""reason":"ExitCode","message":"{code}""#),
            };
            assert!(story.error.contains(&told), "{number}: {}", story.error);
        });
    }
    timeout(3 * COMMAND_TIMEOUT, ending.join_all())
        .await
        .unwrap();
    let all = before + COMMANDS as u64;
    way.have_ended("exec", "websocket", "spdy", all).await;
    assert_eq!(open().await, 0);
}

/// An old kubectl, or one that was told to.
async fn who_speaks_spdy_is_carried_as_before(plane: &ControlPlane) {
    let way = Way::bridged(plane, 0, Speaks::Spdy);
    let (before, websocket) = (way.all_by("spdy").await, way.all_by("websocket").await);
    let output = way.sh("echo out; exit 3").await;
    assert_eq!((output.code, &*output.stdout), (Some(3), "out\n"));
    an_attached_process_answers(&way).await;
    let (target, _echo) = echo_server().await;
    let mut forward = PortForward::start(&way, &[target.port()]).await;
    forward.echoes(0, b"through the port").await;
    forward.child.end().await;
    way.have_ended("attach", "spdy", "spdy", 1).await;
    way.have_ended("portforward", "spdy", "spdy", 1).await;
    eventually("all of them", PATIENCE, async || {
        way.all_by("spdy").await == before + 3
    })
    .await;
    assert_eq!(way.all_by("websocket").await, websocket);
}

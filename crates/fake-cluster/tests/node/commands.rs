//! Exec and attach.

use std::time::Duration;

use serde_json::json;
use skewbridge_fake_cluster::server::pod_streams::StreamKind::{Attach, Exec};
use skewbridge_remotecommand::{
    ExitCode, Input, Outcome, Protocol, SpdyProtocol, TerminalSize, Version,
};

use crate::node_fixture::{NodeFixture, command_result, eventually, query};

async fn fixture() -> NodeFixture {
    let fixture = NodeFixture::new();
    let spec = json!({"containers": [{"name": "web", "image": "web"}]});
    fixture.running("web", &spec).await;
    fixture
}

fn exited(code: u8) -> Outcome {
    Outcome::Exited(ExitCode::new(code).unwrap())
}

#[tokio::test]
async fn the_result_of_a_command_is_reported_in_every_protocol() {
    let fixture = fixture().await;
    let words = ["/bin/sh", "-c", "cat; echo no >&2; exit 3"];
    let query = query(&words, "stdin=true&stdout=true&stderr=true");
    for protocol in SpdyProtocol::ALL {
        let mut client = fixture.spdy(Exec, &query, protocol).await;
        client.write("hello\n").await;
        let got = client.finish().await;
        assert_eq!(
            got,
            command_result("hello\n", "no\n", exited(3)),
            "{protocol:?}"
        );
    }
    let mut client = fixture.websocket(Exec, &query, Protocol::V5).await;
    client.ping().await;
    client.write(Input::Stdin, b"hello\n").await;
    client.close_stdin().await;
    assert_eq!(
        client.finish().await,
        command_result("hello\n", "no\n", exited(3))
    );
}

#[tokio::test]
async fn a_slow_client_gets_all_output() {
    let fixture = fixture().await;
    // Fills all buffers repeatedly, without waiting for room.
    let fill = "dd if=/dev/zero bs=4096 count=256 oflag=nonblock 2>> counts";
    let script = format!("for i in 1 2 3 4 5 6 7 8; do {fill}; sleep 0.1; done; echo > over");
    let query = query(&["/bin/sh", "-c", &script], "stdout=true");
    let client = fixture.spdy(Exec, &query, SpdyProtocol::V4).await;
    let directory = fixture.directory(&fixture.pod("web"));
    eventually(
        || directory.join("over").exists().then_some(()),
        "the command has written all output",
    )
    .await;
    // Longer than the time for output that a background process holds open.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let got = client.finish().await;
    assert_eq!(got.outcome, Outcome::Success);
    let counts = std::fs::read_to_string(directory.join("counts")).unwrap();
    let blocks: usize = counts
        .lines()
        .filter_map(|line| line.strip_suffix("+0 records out")?.parse::<usize>().ok())
        .sum();
    assert!(blocks > 16, "{counts}");
    assert_eq!(got.stdout.len(), blocks * 4096);
}

#[tokio::test]
async fn a_command_ends_although_a_background_process_holds_its_output() {
    let fixture = fixture().await;
    // The background process has its own session, and writes continuously.
    let left = "setsid sh -c 'echo $$ > id; while echo more; do :; done' & ";
    let script = format!("{left} until [ -s id ]; do sleep 0.05; done; echo done");
    let query = query(&["/bin/sh", "-c", &script], "stdout=true");
    let client = fixture.websocket(Exec, &query, Protocol::V5).await;
    let got = client.finish().await;
    assert_eq!(got.outcome, Outcome::Success);
    assert!(got.stdout.contains("done\n"));
}

#[tokio::test]
async fn success_and_launch_errors_are_distinguished() {
    let fixture = fixture().await;
    let good = query(&["true"], "stdout=true");
    let bad = query(&["nope-1"], "stdout=true");
    for protocol in Protocol::ALL {
        let got = fixture
            .websocket(Exec, &good, protocol)
            .await
            .finish()
            .await;
        assert_eq!(
            got,
            command_result("", "", Outcome::Success),
            "{protocol:?}"
        );
        let got = fixture.websocket(Exec, &bad, protocol).await.finish().await;
        let Outcome::Failed(failure) = got.outcome else {
            panic!("{got:?}")
        };
        let why = "error executing command in container: exec: \"nope-1\": executable file not \
                   found in $PATH";
        let internal = "Internal error occurred: ";
        let times = if protocol.version() == Version::V5 {
            2
        } else {
            1
        };
        assert_eq!(failure.message, format!("{}{why}", internal.repeat(times)));
    }
}

#[tokio::test]
async fn a_command_has_a_clean_environment_in_the_pods_own_directory() {
    let fixture = fixture().await;
    let query = query(
        &["/bin/sh", "-c", "pwd; echo $HOME; env | wc -l; ls -a"],
        "stdout=true",
    );
    let got = fixture
        .spdy(Exec, &query, SpdyProtocol::V4)
        .await
        .finish()
        .await;
    let lines: Vec<_> = got.stdout.lines().collect();
    let directory = fixture
        .scratch
        .path()
        .join("pods")
        .join(fixture.pod("web").uid());
    assert_eq!(
        lines[0],
        directory.canonicalize().unwrap().to_str().unwrap()
    );
    assert_eq!(lines[1], directory.to_str().unwrap());
    let variables: usize = lines[2].trim().parse().unwrap();
    assert!(variables < 12, "{got:?}");
    assert_eq!(lines[3..], [".", ".."]);
    let mode = std::fs::metadata(&directory).unwrap().permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o700
    );
}

#[tokio::test]
async fn a_terminal_is_the_commands_own_and_has_a_size() {
    let fixture = fixture().await;
    let words = [
        "/bin/sh",
        "-c",
        "read x; stty size </dev/tty; echo $x; exit 5",
    ];
    let query = query(&words, "stdin=true&stdout=true&tty=true");
    let window = TerminalSize {
        width: 101,
        height: 33,
    };
    let mut client = fixture.websocket(Exec, &query, Protocol::V5).await;
    client.write(Input::Resize, &window.encode()).await;
    client.write(Input::Stdin, b"yes\n").await;
    let got = client.finish().await;
    // The terminal echoes.
    assert_eq!(
        got,
        command_result("yes\r\n33 101\r\nyes\r\n", "", exited(5))
    );

    let mut client = fixture.spdy(Exec, &query, SpdyProtocol::V4).await;
    let resize = client.resize.as_mut().unwrap();
    resize.write(window.encode()).await.unwrap();
    client.write("yes\n").await;
    let got = client.finish().await;
    assert_eq!(
        got,
        command_result("yes\r\n33 101\r\nyes\r\n", "", exited(5))
    );
}

#[tokio::test]
async fn keys_of_a_terminal_go_to_the_job_and_not_to_the_shell() {
    let fixture = fixture().await;
    let query = query(&["/bin/sh", "-i"], "stdin=true&stdout=true&tty=true");
    let mut client = fixture.websocket(Exec, &query, Protocol::V5).await;
    let mut command_result = String::new();
    // The echo differs from the output.
    let job = b"sh -c 'echo rea''dy; exec sleep 1000'\n";
    client.write(Input::Stdin, job).await;
    while !command_result.contains("ready") {
        let (_, data) = client.next().await.unwrap();
        command_result.push_str(std::str::from_utf8(&data).unwrap());
    }
    client.write(Input::Stdin, b"\x03").await;
    client.write(Input::Stdin, b"exit 4\n").await;
    assert_eq!(client.finish().await.outcome, exited(4));
}

#[tokio::test]
async fn a_disconnect_ends_the_command_and_its_children() {
    let fixture = fixture().await;
    let words = ["/bin/sh", "-c", "sleep 1000 & echo $$ $!; wait"];
    let query = query(&words, "stdin=true&stdout=true&stderr=true");
    let mut client = fixture.spdy(Exec, &query, SpdyProtocol::V4).await;
    let text = client.read_some().await;
    let text = String::from_utf8(text.to_vec()).unwrap();
    let ids: Vec<i32> = text
        .split_whitespace()
        .map(|it| it.parse().unwrap())
        .collect();
    assert!(ids.iter().all(|id| is_running(*id)));
    client.disconnect();
    eventually(
        || ids.iter().all(|id| !is_running(*id)).then_some(()),
        "both processes have exited",
    )
    .await;
}

/// Whether a process exists that is not a zombie.
pub(crate) fn is_running(id: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn attach_connects_to_the_main_process() {
    let fixture = NodeFixture::new();
    let container = json!({
        "name": "web", "stdin": true, "stdinOnce": true,
        "command": ["/bin/sh", "-c", "while read x; do echo \"got $x\"; done; echo end"],
    });
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    fixture.running("web", &spec).await;
    let query = "stdin=true&stdout=true&stderr=true";
    let mut client = fixture.spdy(Attach, query, SpdyProtocol::V4).await;
    client.write("one\n").await;
    let got = client.finish().await;
    assert_eq!(got, command_result("got one\nend\n", "", Outcome::Success));
    fixture
        .until("web", |pod| pod.text(&["status", "phase"]) == "Succeeded")
        .await;
}

#[tokio::test]
async fn invalid_stream_requests_have_kubernetes_messages() {
    let fixture = NodeFixture::new();
    let containers = json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]);
    fixture
        .running("web", &json!({"containers": containers}))
        .await;
    let rows = [
        (
            Exec,
            "stdout=true&command=ls",
            "a container name must be specified for pod web, choose one of: [a b]",
        ),
        (
            Exec,
            "stdout=true&command=ls&container=c",
            "container c is not valid for pod web",
        ),
        (
            Exec,
            "stdout=true&container=a",
            "you must specify at least 1 command",
        ),
        (
            Exec,
            "command=ls&container=a",
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            Attach,
            "stdin=true&container=a",
            "container a does not allow attach on stdin",
        ),
    ];
    for (kind, query, message) in rows {
        let status = fixture.refused(kind, "web", query).await;
        assert_eq!((status.code, &*status.message), (400, message), "{query}");
    }
}

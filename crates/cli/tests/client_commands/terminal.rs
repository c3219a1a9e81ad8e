//! `exec` and `attach` at a terminal.

use rustix::process::{Pid, Signal, kill_process};
use skewbridge_testkit::{TEST_TIMEOUT, Terminal};
use tokio::process::Child;
use tokio::time::timeout;

use super::Cluster;

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().unwrap().cast_signed()).unwrap()
}

async fn code(mut child: Child) -> Option<i32> {
    let status = timeout(TEST_TIMEOUT, child.wait())
        .await
        .expect("an end in time");
    status.unwrap().code()
}

#[tokio::test]
async fn keys_are_forwarded_and_the_terminal_is_restored() {
    let cluster = Cluster::start().await;
    let terminal = Terminal::open(80, 24);
    assert!(!terminal.is_raw());
    let words = [
        "exec",
        "-it",
        "web",
        "--",
        "sh",
        "-c",
        "head -c 3 | od -An -tx1; exit 5",
    ];
    let child = terminal.run(cluster.command(&words));
    terminal.becomes_raw().await;
    // ctrl-c, ctrl-z and the arrow key are for the command.
    terminal.type_keys("\x03\x1a\x1b");
    terminal.shows("03 1a 1b").await;
    assert_eq!(code(child).await, Some(5));
    terminal.shows("command terminated with exit code 5").await;
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn the_command_gets_the_terminal_size_and_its_changes() {
    let cluster = Cluster::start().await;
    let terminal = Terminal::open(81, 25);
    let child = terminal.run(cluster.command(&["exec", "-it", "web", "--", "@sizes"]));
    terminal.shows("81x25").await;
    terminal.resize(132, 50);
    // Without its own session, the process gets no SIGWINCH.
    kill_process(pid(&child), Signal::WINCH).unwrap();
    terminal.shows("132x50").await;
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(code(child).await, Some(143));
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn every_end_restores_the_terminal() {
    let cluster = Cluster::start().await;
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT, Signal::INT] {
        let terminal = Terminal::open(80, 24);
        let child = terminal.run(cluster.command(&["exec", "-it", "web", "--", "cat"]));
        terminal.becomes_raw().await;
        kill_process(pid(&child), signal).unwrap();
        assert_eq!(code(child).await, Some(128 + signal.as_raw()), "{signal:?}");
        assert!(!terminal.is_raw(), "{signal:?}");
    }
    let terminal = Terminal::open(80, 24);
    let child = terminal.run(cluster.command(&["exec", "-it", "web", "--", "cat"]));
    terminal.becomes_raw().await;
    terminal.type_keys("x");
    terminal.shows("x").await;
    // As when the server is killed.
    cluster.pods.cut_all();
    assert_eq!(code(child).await, Some(1));
    terminal
        .shows("error: lost connection to the container")
        .await;
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn a_process_can_be_detached_from() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/web",
        r#"{"metadata":{"name":"web"},"spec":{"restartPolicy":"Always","containers":[{"name":"app","tty":true,"stdin":true}]},
        "status":{"phase":"Running","containerStatuses":[{"name":"app","state":{"running":{}}}]}}"#,
    );
    let terminal = Terminal::open(80, 24);
    let child = terminal.run(cluster.command(&["attach", "-it", "web"]));
    terminal
        .shows("If you don't see a command prompt, try pressing enter.")
        .await;
    terminal.becomes_raw().await;
    terminal.type_keys("hello\n");
    terminal.shows("hello").await;
    terminal.type_keys("\x10\x11");
    assert_eq!(code(child).await, Some(0));
    terminal
        .shows("Detached; resume using 'skewbridge attach web -c app -n default -i -t' command")
        .await;
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn a_detached_process_is_printed_with_the_attach_command() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/web",
        r#"{"metadata":{"name":"web"},"spec":{"containers":[{"name":"app","tty":true,"stdin":true}],"ephemeralContainers":[{"name":"debug","tty":true,"stdin":true}]},
        "status":{"phase":"Running"}}"#,
    );
    let ends = [
        (
            "app",
            "Session ended, resume using 'skewbridge attach web -c app -n default -i -t' command",
        ),
        (
            "debug",
            "Session ended, the ephemeral container will not be restarted but may be reattached \
             using 'skewbridge attach web -c debug -n default -i -t' if it is still running",
        ),
    ];
    for (container, output) in ends {
        let terminal = Terminal::open(80, 24);
        let child = terminal.run(cluster.command(&["attach", "-it", "web", "-c", container]));
        terminal.becomes_raw().await;
        terminal.type_keys("bye\n");
        assert_eq!(code(child).await, Some(0));
        terminal.shows(output).await;
        assert!(!terminal.is_raw());
    }
}

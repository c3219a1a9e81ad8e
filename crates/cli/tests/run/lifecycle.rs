//! From start to end: exit codes, signals, and cleanup.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use skewbridge_client::{Endpoint, Kubeconfig, Request};
use skewbridge_exec_proxy::IgnoredSignals;
use skewbridge_testkit::{PATIENCE, Stopwatch, eventually, unprivileged_user};
use tokio::signal::unix::SignalKind;

use crate::run_fixture::{
    BADGE, PATIENT, RunFixture, is_gone, output, parent_of, started_by, stderr, token,
};

#[tokio::test]
async fn the_exit_code_is_the_commands() {
    let fixture = RunFixture::new().await;
    for (script, code) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137)] {
        let ran = output(fixture.script(&token(), script)).await;
        assert_eq!(ran.status.code(), Some(code), "{script}");
        assert_eq!(stderr(&ran), "");
    }
    let mut absent = fixture.run(&token());
    absent.args(["--", "/nonexistent/kubectl"]);
    let ran = output(absent).await;
    assert_eq!(ran.status.code(), Some(127));
    assert_eq!(
        stderr(&ran),
        "skewbridge: /nonexistent/kubectl: command not found\n"
    );
    let mut none = fixture.run(&token());
    none.args(["--", "/"]);
    assert_eq!(output(none).await.status.code(), Some(126));
    let ran = output(fixture.run(&token())).await;
    assert_eq!(ran.status.code(), Some(64));
    let failing = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", "echo no card >&2; exit 1"],
    }});
    let ran = output(fixture.script(&failing, "echo ran")).await;
    assert_eq!(ran.status.code(), Some(125));
    assert_eq!(
        stderr(&ran),
        "skewbridge: getting credentials: exec: sh (user \"u\"): failed with exit status: 1; it \
         said: no card\n"
    );
    assert!(ran.stdout.is_empty());
}

/// A process that cannot be traced or dumped belongs to root in `/proc`, under any user.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_credentials_in_it_cannot_be_read_by_the_command() {
    use std::os::unix::process::CommandExt as _;
    let fixture = RunFixture::new().await;
    let script = "stat -c %u /proc/$PPID/mem /proc/self/mem; ulimit -Hc";
    let mut command = fixture.script(&token(), script);
    // As root, every process can be read.
    let Some(user) = unprivileged_user() else {
        return;
    };
    for path in [
        fixture.dir.path().to_owned(),
        fixture.dir.path().join("runtime"),
    ] {
        std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    }
    command.uid(user).gid(user);
    let ran = output(command).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    let limit = limit.map_or("unlimited".to_owned(), |bytes| (bytes / 512).to_string());
    let seen = String::from_utf8(ran.stdout).unwrap();
    let lines: Vec<_> = seen.lines().collect();
    // The command itself is not affected.
    assert_eq!(lines, ["0", &user.to_string(), &limit]);
}

#[tokio::test]
async fn signals_reach_the_command() {
    let fixture = RunFixture::new().await;
    let ignored = IgnoredSignals::now();
    for (signal, kind, name) in [
        (Signal::TERM, SignalKind::terminate(), "TERM"),
        (Signal::HUP, SignalKind::hangup(), "HUP"),
        (Signal::INT, SignalKind::interrupt(), "INT"),
        (Signal::QUIT, SignalKind::quit(), "QUIT"),
        (Signal::USR1, SignalKind::user_defined1(), "USR1"),
        (Signal::USR2, SignalKind::user_defined2(), "USR2"),
    ] {
        // By the test runner, in the background or with nohup.
        if ignored.contains(kind) {
            continue;
        }
        let ready = fixture.dir.path().join("ready");
        let _ = std::fs::remove_file(&ready);
        let script = format!(
            "trap 'exit 33' {name}; echo $$ > {}; while :; do sleep 0.1; done",
            ready.display()
        );
        let command = fixture.script(&token(), &script);
        // In its own session, there is no terminal that could send it.
        let run = started_by(&["setsid", "--wait"], &command).spawn().unwrap();
        eventually("the command", PATIENCE * 2, async || {
            fixture.read("ready").ends_with('\n')
        })
        .await;
        let command: i32 = fixture.read("ready").trim().parse().unwrap();
        let bridge = parent_of(command);
        kill_process(Pid::from_raw(bridge).unwrap(), signal).unwrap();
        let ended = tokio::task::spawn_blocking(move || run.wait_with_output());
        let ended = ended.await.unwrap().unwrap();
        assert_eq!(ended.status.code(), Some(33), "{name}");
    }
}

#[tokio::test]
async fn a_signal_while_the_plugin_runs_ends_both_and_nothing_is_left() {
    let fixture = RunFixture::new().await;
    let ignored = IgnoredSignals::now();
    for (signal, kind, code) in [
        (Signal::TERM, SignalKind::terminate(), 143),
        (Signal::HUP, SignalKind::hangup(), 129),
        (Signal::INT, SignalKind::interrupt(), 130),
    ] {
        // By the test runner, in the background or with nohup.
        if ignored.contains(kind) {
            continue;
        }
        let hangs = fixture.dir.path().join("hangs");
        let _ = std::fs::remove_file(&hangs);
        let script = format!("echo $$ > {}; exec sleep 300", hangs.display());
        let plugin = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        }});
        let run = fixture.script(&plugin, "true").spawn().unwrap();
        eventually("the plugin", PATIENCE * 2, async || {
            fixture.read("hangs").ends_with('\n')
        })
        .await;
        assert_eq!(fixture.left(), 1, "the lock");
        kill_process(Pid::from_child(&run), signal).unwrap();
        let ended = tokio::task::spawn_blocking(move || run.wait_with_output());
        let ended = ended.await.unwrap().unwrap();
        assert_eq!(ended.status.code(), Some(code));
        let plugin = fixture.read("hangs").trim().to_owned();
        eventually("its end", PATIENCE, async || is_gone(&plugin)).await;
        assert_eq!(fixture.left(), 0);
    }
}

#[tokio::test]
async fn a_plugin_ends_with_a_killed_run() {
    let fixture = RunFixture::new().await;
    let script = "echo $$ > \"$CHILD_DIR/ready\"; exec sleep 300";
    let mut run = fixture.script(&fixture.plugin(), script).spawn().unwrap();
    eventually("the command", PATIENCE * 2, async || {
        fixture.read("ready").ends_with('\n')
    })
    .await;
    let plugin = fixture.read("execs").trim().to_owned();
    let watch = Stopwatch::start();
    run.kill().unwrap();
    run.wait().unwrap();
    let limit = Duration::from_secs(2);
    let gone = async || is_gone(&plugin);
    watch.within(limit, "the end of the plugin", gone).await;
    let command = fixture.read("ready").trim().parse().unwrap();
    kill_process(Pid::from_raw(command).unwrap(), Signal::KILL).unwrap();
    // Its directory is stale now, and the next run removes it.
    let ran = output(fixture.script(&token(), "true")).await;
    assert!(ran.status.success());
    assert_eq!(fixture.left(), 0);
}

/// A command that shows its kubeconfig in `copy`, and waits for a line in `go`.
const WAITING: &str = "cp \"$KUBECONFIG\" \"$CHILD_DIR/copy.new\"; mv \"$CHILD_DIR/copy.new\" \
                       \"$CHILD_DIR/copy\"; read line < \"$CHILD_DIR/go\"";

#[tokio::test]
async fn an_exited_plugin_is_restarted_by_the_next_request() {
    let reference = |headers: &str| {
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", "echo $$ >> \"$CHILD_DIR/execs\"; exec \"$@\"", "sh",
                env!("CARGO_BIN_EXE_skewbridge"), "agent", "--signer=headers",
                format!("--headers-file={headers}"), "--idle-timeout=200ms"],
            "interactiveMode": "Never",
            "provideClusterInfo": true,
        }})
    };
    for is_killed in [true, false] {
        let fixture = RunFixture::new().await;
        let headers = fixture.dir.write("headers", format!("{BADGE}: 4711\n"));
        let user = if is_killed {
            fixture.plugin()
        } else {
            reference(headers.to_str().unwrap())
        };
        let go = fixture.dir.path().join("go");
        assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
        let running = tokio::spawn(output(fixture.script(&user, WAITING)));
        eventually("the command", PATIENCE * 2, async || {
            fixture.dir.path().join("copy").exists()
        })
        .await;
        let config = Kubeconfig::load(Some(&fixture.dir.path().join("copy"))).unwrap();
        let target = config.target(None).unwrap();
        let endpoint = Endpoint::prepare(&target, PATIENT).await.unwrap();
        // A request during the end of its connection may fail.
        let answers = async || {
            let answer = endpoint.send(&Request::get("/asked")).await;
            answer.is_ok_and(|answer| answer.body == "/prefix/asked none 4711")
        };
        eventually("an answer", PATIENCE, answers).await;
        let execs = fixture.read("execs");
        let first = execs.lines().next().unwrap();
        if is_killed {
            let first = Pid::from_raw(first.parse().unwrap()).unwrap();
            kill_process(first, Signal::KILL).unwrap();
        }
        eventually("the end of the plugin", PATIENCE, async || is_gone(first)).await;
        eventually("an answer", PATIENCE, answers).await;
        let execs = fixture.read("execs");
        assert!(execs.lines().count() > 1, "{execs}");
        std::fs::write(&go, "go\n").unwrap();
        let ran = running.await.unwrap();
        assert!(ran.status.success(), "{}", stderr(&ran));
        // The socket of one that was killed is removed by a later one.
        let left = usize::from(is_killed);
        eventually("the end of all that was made", PATIENCE, async || {
            fixture.left() == left
        })
        .await;
    }
}

#[tokio::test]
async fn ignored_signals_stay_ignored_in_the_command() {
    let fixture = RunFixture::new().await;
    let run = fixture.script(&token(), "kill -HUP $$ && kill -HUP $PPID && echo alive");
    let nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    let ran = output(started_by(&nohup, &run)).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "alive\n");
}

#[tokio::test]
async fn a_shell_has_the_kubeconfig_and_a_hint() {
    let fixture = RunFixture::new().await;
    let shell = fixture.dir.write_program(
        "shell",
        "#!/bin/sh\necho \"$PS1\"; test -r \"$KUBECONFIG\"\n",
    );
    let mut command = fixture.run(&token());
    command.arg("--shell").env("SHELL", shell);
    let ran = output(command).await;
    assert!(ran.status.success());
    let prompt = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(prompt, "($SKEWBRIDGE_CONTEXT) $ \n");
    assert!(
        stderr(&ran).contains("a shell for the context \"c\""),
        "{}",
        stderr(&ran)
    );
}

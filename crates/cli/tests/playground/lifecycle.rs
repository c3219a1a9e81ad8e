//! A playground from its start to its end.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skewbridge_testkit::{ScratchDir, Terminal, eventually};

use crate::doc_examples;
use crate::playground_fixture::{
    Playground, TEST_TIMEOUT, children, command, is_alive, peak_memory_kib, run, wait,
};

/// Maximum memory of all processes, in KiB.
const MAX_MEMORY_KIB: u64 = 120 * 1000 * 1000 / 1024;

const POLICY: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/hello";

/// The address that a browser opens, and that the command reads.
#[tokio::test]
async fn the_address_of_the_status_page_is_printed() {
    let playground = Playground::start();
    let mut words = playground.printed.split_whitespace();
    let url = words.find(|it| it.ends_with("/status")).unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/status").unwrap();
    let mut tcp = TcpStream::connect(address).unwrap();
    write!(
        tcp,
        "GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut page = String::new();
    tcp.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(page.contains("Content-Type: text/html"), "{page}");
    let status = Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .args(["status", "--admin-address", address])
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
    let status = String::from_utf8(status.stdout).unwrap();
    // The bridge of the page that is printed stands beside the oldest server.
    for (shown, place) in [("1.28.", &page), ("1.28.", &status), ("ready", &status)] {
        assert!(place.contains(shown), "{shown}: {place}");
    }
    for heading in ["What only some servers serve", "Who calls APIs that vanish"] {
        assert!(status.contains(heading), "{heading}: {status}");
    }
}

#[tokio::test]
async fn every_context_works_and_nothing_is_left_behind() {
    let playground = Playground::start();
    let kubeconfig = playground.directory.join("kubeconfig");
    assert!(
        playground
            .printed
            .contains(&format!("export KUBECONFIG={}", kubeconfig.display()))
    );
    assert!(!playground.printed.contains('\x1b'), "no colour in a pipe");
    let printed = playground.printed_as_from("/tmp/skewbridge-c89ae5");
    let (shown, rest) = printed.split_once("Ctrl-C ends it.").unwrap();
    assert_eq!(
        (doc_examples::normalize(shown), rest),
        (doc_examples::readme_example(), "\n")
    );
    for (path, mode) in [(&playground.directory, 0o700), (&kubeconfig, 0o600)] {
        let found = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{}", path.display());
    }
    for release in ["1.28", "1.34", "1.36"] {
        for place in ["server", "bridge"] {
            let context = format!("{place}-{release}");
            let answer = playground.get(&context, "/version").await;
            let version: Value = serde_json::from_slice(&answer.body).unwrap();
            let version = version["gitVersion"].as_str().unwrap();
            assert!(
                version.starts_with(&format!("v{release}.")),
                "{context}: {version}"
            );
            let pod = "/api/v1/namespaces/default/pods/web";
            assert_eq!(playground.get(&context, pod).await.status, 200, "{context}");
        }
    }
    assert_eq!(playground.get("server-1.28", POLICY).await.status, 404);
    assert_eq!(playground.get("bridge-1.28", POLICY).await.status, 200);
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(playground.get("visitor", secrets).await.status, 403);
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(playground.get("visitor", pods).await.status, 200);
    playground.end(Signal::INT);
}

#[tokio::test]
async fn servers_are_killed_started_and_changed_by_the_control_api() {
    let playground = Playground::start();
    let token = fs::read_to_string(playground.directory.join("control-token")).unwrap();
    let token = Some(token.as_str());
    let (status, _) = playground
        .send_control_request(Method::GET, "/servers", None)
        .await;
    assert_eq!(status, 401);
    let (status, all) = playground
        .send_control_request(Method::GET, "/servers", token)
        .await;
    assert_eq!((status, all["servers"].as_array().unwrap().len()), (200, 3));
    let post = |action: &'static str| playground.send_control_request(Method::POST, action, token);
    let (status, server) = post("/servers/1.36/kill").await;
    assert_eq!((status, &server["running"]), (200, &Value::Bool(false)));
    playground.wait_for_status("bridge-1.28", POLICY, 503).await;
    assert_eq!(post("/servers/1.36/start").await.0, 200);
    playground.wait_for_status("bridge-1.28", POLICY, 200).await;
    let (_, server) = post("/servers/1.36/downgrade").await;
    assert_eq!(server["release"], "1.34");
    playground.wait_for_status("bridge-1.28", POLICY, 404).await;
    let (_, server) = post("/servers/1.36/upgrade").await;
    assert_eq!(server["release"], "1.36");
    for context in ["bridge-1.28", "bridge-1.34", "bridge-1.36"] {
        playground.wait_for_status(context, POLICY, 200).await;
    }
    assert_eq!(post("/servers/1.99/kill").await.0, 404);
    // Impossible actions are refused with the reason, and change nothing.
    let (_, before) = playground
        .send_control_request(Method::GET, "/servers", token)
        .await;
    for (action, reason) in [
        (
            "/servers/1.36/upgrade",
            "cannot upgrade server-1.36: it has the newest version, 1.36",
        ),
        (
            "/servers/1.28/downgrade",
            "cannot downgrade server-1.28: it has the oldest version, 1.28",
        ),
        (
            "/servers/1.34/start",
            "cannot start server-1.34: it is running already",
        ),
    ] {
        let (status, refused) = post(action).await;
        assert_eq!((status, refused["error"].as_str()), (409, Some(reason)));
    }
    let (_, after) = playground
        .send_control_request(Method::GET, "/servers", token)
        .await;
    assert_eq!(before, after);
    assert_eq!(post("/servers/1.34/stop").await.0, 200);
    for action in ["/servers/1.34/stop", "/servers/1.34/kill"] {
        let (status, refused) = post(action).await;
        assert_eq!(status, 409, "{refused}");
    }
    playground.end(Signal::TERM);
}

#[tokio::test]
async fn no_pod_process_outlives_the_playground() {
    let playground = Playground::start();
    let ids = playground.run_pod_with_detached_child("leaving").await;
    assert!(ids.iter().all(|id| is_alive(*id)));
    playground.end(Signal::INT);
    assert!(ids.iter().all(|id| !is_alive(*id)), "{ids:?}");

    let mut playground = Playground::start();
    let mut ids = playground
        .run_pod_with_detached_child("leaving")
        .await
        .to_vec();
    ids.extend(playground.children());
    assert!(ids.iter().all(|id| is_alive(*id)));
    // The playground cannot clean up then; only its children can.
    kill_process(playground.id(), Signal::KILL).unwrap();
    wait(&mut playground.child);
    let all_gone = async || !ids.iter().any(|id| is_alive(*id));
    eventually(
        "the end of all processes that it has started",
        TEST_TIMEOUT,
        all_gone,
    )
    .await;
}

#[tokio::test]
async fn servers_are_stopped_started_killed_and_changed_by_keys() {
    let terminal = Terminal::open(200, 50);
    let mut seen = 0;
    let mut playground = Playground::start_in(&terminal);
    terminal.shows_next(&mut seen, "[1 server-1.28]").await;
    terminal.shows_next(&mut seen, "q quit").await;
    assert!(!terminal.is_cooked());
    let steps = [
        ("3", "[3 server-1.36]", None),
        ("k", "kill server-1.36 ...", Some(503)),
        ("s", "stop or start server-1.36 ...", Some(200)),
        ("d", "downgrade server-1.36 ...", Some(404)),
        ("u", "upgrade server-1.36 ...", Some(200)),
        ("s", "stop or start server-1.36 ...", Some(503)),
        ("S", "stop or start server-1.36 ...", Some(200)),
    ];
    for (key, shown, code) in steps {
        terminal.type_keys(key);
        terminal.shows_next(&mut seen, shown).await;
        // The action is complete, and the keys are printed again.
        terminal.shows_next(&mut seen, "q quit").await;
        if let Some(code) = code {
            playground
                .wait_for_status("bridge-1.28", POLICY, code)
                .await;
        }
    }
    // Selects another server, and types a key without a function.
    terminal.type_keys("x1k");
    terminal.shows_next(&mut seen, "[1 server-1.28]").await;
    terminal.shows_next(&mut seen, "kill server-1.28 ...").await;
    terminal.shows_next(&mut seen, "down").await;
    terminal.type_keys("q");
    assert!(wait(&mut playground.child).success());
    assert!(terminal.is_cooked());
    assert!(!playground.directory.exists(), "its directory is left");
}

#[tokio::test]
async fn control_commands_redraw_the_status_line() {
    let terminal = Terminal::open(200, 50);
    let mut seen = 0;
    let mut playground = Playground::start_in(&terminal);
    terminal.shows_next(&mut seen, "[1 server-1.28]").await;
    terminal.shows_next(&mut seen, "q quit").await;
    playground.printed = terminal.shown();
    let token = fs::read_to_string(playground.directory.join("control-token")).unwrap();
    let post =
        |action: &'static str| playground.send_control_request(Method::POST, action, Some(&token));
    assert_eq!(post("/servers/1.36/kill").await.0, 200);
    for shown in ["kill 1.36", "3 server-1.36", "down", "q quit"] {
        terminal.shows_next(&mut seen, shown).await;
    }
    assert_eq!(post("/servers/1.36/kill").await.0, 409);
    for shown in ["cannot kill server-1.36: it is not running", "q quit"] {
        terminal.shows_next(&mut seen, shown).await;
    }
    // The same action by a key.
    terminal.type_keys("3k");
    terminal.shows_next(&mut seen, "[3 server-1.36]").await;
    for shown in ["cannot kill server-1.36: it is not running", "q quit"] {
        terminal.shows_next(&mut seen, shown).await;
    }
    terminal.type_keys("q");
    assert!(wait(&mut playground.child).success());
}

#[tokio::test]
async fn pods_do_not_inherit_ignored_signals() {
    let playground = Playground::start_with("--ignore-signal=HUP,INT,QUIT");
    let killed = Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .args([
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "kill -INT $$; echo ignored",
        ])
        .env("KUBECONFIG", playground.directory.join("kubeconfig"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&killed.stdout), "");
    assert_eq!(killed.status.code(), Some(130), "{killed:?}");
}

#[tokio::test]
async fn memory_stays_below_the_limit() {
    let playground = Playground::start();
    for release in ["1.28", "1.34", "1.36"] {
        for place in ["server", "bridge"] {
            let context = format!("{place}-{release}");
            for path in ["/apis", "/openapi/v3/api/v1", "/api/v1/pods"] {
                let answer = playground.get(&context, path).await;
                assert_eq!(answer.status, 200, "{context} {path}");
            }
        }
    }
    // The playground and the processes of its pod, though they share a program.
    let mut ids = vec![playground.id().as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(id) = ids.get(next).copied() {
        ids.extend(children(id));
        next += 1;
    }
    let most: Vec<_> = ids.into_iter().map(peak_memory_kib).collect();
    println!("{most:?} KiB");
    assert!(most.iter().sum::<u64>() < MAX_MEMORY_KIB, "{most:?} KiB");
    playground.end(Signal::INT);
}

#[tokio::test]
async fn output_is_colored_on_terminals_unless_disabled() {
    let rows = [
        (&["--tour"][..], "TERM", "xterm", true),
        (&["--tour"], "NO_COLOR", "1", false),
        (&[], "NO_COLOR", "", true),
        (&[], "TERM", "dumb", false),
    ];
    for (words, name, value, is_coloured) in rows {
        let terminal = Terminal::open(200, 50);
        let mut command = command(words);
        command.env_remove("NO_COLOR").env("TERM", "xterm");
        command.env(name, value);
        let mut child = terminal.run(command.into());
        // The first step is complete, or everything is printed.
        let last = if words.is_empty() { "Ctrl-C" } else { "✓" };
        terminal.shows(last).await;
        let shown = terminal.shown();
        let row = format!("{words:?} {name}={value}: {shown:?}");
        assert_eq!(shown.contains("\x1b["), is_coloured, "{row}");
        let id = i32::try_from(child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
        child.wait().await.unwrap();
    }
}

#[test]
fn impossible_flags_are_reported_by_name() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().min(65_520);
    let base = format!("--port-base={port}");
    let refused = run(&[&base]);
    let printed = String::from_utf8(refused.stderr).unwrap();
    if taken.local_addr().unwrap().port() == port {
        assert_eq!(refused.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("is in use by another program"),
            "{printed}"
        );
        assert!(printed.contains("--port-base"), "{printed}");
    }
    let scratch = ScratchDir::new();
    scratch.write("file", "");
    let refused = run(&["--directory", scratch.path().to_str().unwrap()]);
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert!(
        printed.contains("--directory: ") && printed.contains("is not empty"),
        "{printed}"
    );
    assert!(scratch.path().join("file").exists());
    assert_eq!(run(&["-o", "json"]).status.code(), Some(64));
}

//! `skewbridge vanishing`, run as its users run it, against fake admin ports.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread::{JoinHandle, spawn};

use serde_json::Value;

/// Answers one request. Returns its request line.
fn admin_port(status: &str, body: &str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answered = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        stream.write_all(response.as_bytes()).unwrap();
        first
    });
    (address, answered)
}

/// An address that nothing listens at.
fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn report(user: &str, count: u64) -> String {
    format!(
        r#"{{"since":"2026-11-19T15:00:00Z","newestServer":"1.36","target":"1.37","targetKnown":true,
        "calls":[{{"user":"{user}","userAgent":"kubectl/v1.30.0","group":"storage.k8s.io",
        "version":"v1beta1","resource":"volumeattributesclasses","verb":"list",
        "reason":"removed","unavailableIn":"1.37","count":{count},
        "firstSeen":"2026-11-19T15:00:01Z","lastSeen":"2026-11-19T15:00:02Z"}}]}}"#
    )
}

fn vanishing(bridges: &[SocketAddr], words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .arg("vanishing")
        .args(bridges.iter().map(|it| format!("--bridge=http://{it}")))
        .args(words)
        .output()
        .unwrap()
}

#[test]
fn the_counts_of_all_bridges_are_added_up() {
    let (a, request) = admin_port("200 OK", &report("alice", 3));
    let (b, _) = admin_port("200 OK", &report("alice", 4));
    let output = vanishing(&[a, b], &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "\
storage.k8s.io/v1beta1 volumeattributesclasses: not served by 1.37
  COUNT   LAST SEEN              VERB   USER    USER AGENT
      7   2026-11-19T15:00:02Z   list   alice   kubectl/v1.30.0

7 calls of 1 caller, counted by 2 bridges since 2026-11-19T15:00:00Z; compared with 1.37.
";
    assert_eq!(text, expected);
    assert_eq!(request.join().unwrap(), "GET /debug/vanishing HTTP/1.1");
}

#[test]
fn a_bridge_that_does_not_answer_is_named_and_the_others_are_shown() {
    let (a, _) = admin_port("200 OK", &report("alice", 3));
    let (old, _) = admin_port("404 Not Found", "{}");
    let closed = closed_port();
    let output = vanishing(&[a, old, closed], &["-ojson"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["calls"][0]["count"], 3);
    assert_eq!(document["bridges"].as_array().unwrap().len(), 3);
    let errors = String::from_utf8(output.stderr).unwrap();
    for expected in [
        format!("skewbridge: http://{old}: it has no /debug/vanishing"),
        format!("skewbridge: http://{closed}: "),
    ] {
        assert!(errors.contains(&expected), "{errors}");
    }
}

#[test]
fn a_bridge_that_does_not_know_what_vanishes_is_named() {
    let report = |versions: &str| {
        format!(r#"{{"since":"2026-11-19T15:00:00Z",{versions}"targetKnown":false,"calls":[]}}"#)
    };
    for (versions, why) in [
        (
            r#""newestServer":"1.37","target":"1.38","#,
            "it does not know what 1.38 removes from 1.37: only calls to deprecated APIs are counted",
        ),
        ("", "it does not know the version of its kube-apiserver yet"),
    ] {
        let (bridge, _) = admin_port("200 OK", &report(versions));
        let output = vanishing(&[bridge], &["-ojson"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors, format!("skewbridge: http://{bridge}: {why}\n"));
    }
}

#[test]
fn wrong_flags_are_reported_together() {
    let a = closed_port();
    let words = ["--bridge=http://10.0.0.1:10270", "-oxml"];
    let output = vanishing(&[a, a], &words);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    for expected in ["is given twice", "is not on this machine", "--output: "] {
        assert!(errors.contains(expected), "{errors}");
    }
}

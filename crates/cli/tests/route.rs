//! `skewbridge route`, run as its users run it, against a fake admin port.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread::{JoinHandle, spawn};

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

fn route(address: SocketAddr, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .arg("route")
        .args(words)
        .arg(format!("--admin-address={address}"))
        .output()
        .unwrap()
}

const EXPLANATION: &str = r#"{"verb":"list","group":"","version":"v1","resource":"nodes",
    "route":"local","reason":"the local server satisfies every rule","candidates":[
    {"server":"local","version":"1.36.4","available":true}]}"#;

#[test]
fn the_decision_of_the_bridge_is_printed() {
    let (address, request) = admin_port("200 OK", EXPLANATION);
    let agent = "--user-agent=kubelet/v1.36.4 (linux/amd64)";
    let output = route(address, &["GET", "/api/v1/nodes?limit=1", agent]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("Request:   list nodes of v1\nRoute:     local\n"),
        "{text}"
    );
    let request = request.join().unwrap();
    let target = request.split(' ').nth(1).unwrap();
    let expected = "/debug/route?method=GET&path=%2Fapi%2Fv1%2Fnodes%3Flimit%3D1\
                    &user-agent=kubelet%2Fv1%2E36%2E4%20%28linux%2Famd64%29";
    assert_eq!(target, expected);
}

#[test]
fn json_is_printed_as_the_bridge_sends_it() {
    let (address, _) = admin_port("200 OK", EXPLANATION);
    let output = route(address, &["GET", "/api/v1/nodes", "-ojson"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        EXPLANATION
    );
}

#[test]
fn a_failure_names_what_to_check() {
    let (address, _) = admin_port("400 Bad Request", "\"?\" is not a method");
    let output = route(address, &["?", "/api"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "error: \"?\" is not a method\n");
    // Nothing listens on the port of a listener that is closed.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = route(closed, &["GET", "/api"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains(&format!("--admin-address is {closed}")),
        "{text}"
    );
}

//! Reading and answering requests on connections of a scripted upstream, frame by frame.

use std::sync::{Arc, Mutex};

use tokio::io::AsyncReadExt;

use crate::ScriptedConn;
use crate::h2frames::{self, flag, kind, setting};
use crate::protocols::Client;

const LAST_HEADERS: u8 = flag::END_HEADERS | flag::END_STREAM;

/// The requests that upstream has received, over all its connections.
#[derive(Clone, Default)]
pub(super) struct RequestLog(Arc<Mutex<Vec<String>>>);

impl RequestLog {
    pub(super) fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Reads an HTTP/1.1 request with its body; returns method and path, or `None` when the client has
/// closed the connection.
pub(super) async fn read_h1(conn: &mut ScriptedConn) -> Option<String> {
    let mut first = [0];
    conn.io.read_exact(&mut first).await.ok()?;
    let rest = conn.read_head().await;
    let head = format!("{}{rest}", char::from(first[0]));
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    if let Some(length) = length {
        conn.read(length.parse().unwrap()).await;
    }
    let line = head.lines().next().unwrap();
    Some(line.trim_end_matches(" HTTP/1.1").to_owned())
}

pub(super) async fn answer_h1(conn: &mut ScriptedConn) {
    conn.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await;
}

/// Reads an HTTP/2 request with its body; returns its stream and the length of the body.
pub(super) async fn read_h2(conn: &mut ScriptedConn) -> (u32, usize) {
    let head = conn.read_frame(kind::HEADERS).await.header;
    let mut length = 0;
    let mut ended = head.has(flag::END_STREAM);
    while !ended {
        let frame = conn.read_frame(kind::DATA).await;
        assert_eq!(frame.header.stream, head.stream);
        length += frame.payload.len();
        ended = frame.header.has(flag::END_STREAM);
    }
    (head.stream, length)
}

pub(super) async fn answer_h2(conn: &mut ScriptedConn, stream: u32) {
    conn.write(h2frames::headers(
        stream,
        LAST_HEADERS,
        h2frames::STATUS_200,
    ))
    .await;
}

/// Announces windows for bodies of any size.
pub(super) async fn accept_with_large_windows(conn: &mut ScriptedConn) {
    conn.accept_h2(&[(setting::INITIAL_WINDOW_SIZE, 16 << 20)])
        .await;
    conn.write(h2frames::window_update(0, 16 << 20)).await;
}

/// A request without a body for GET, otherwise one whose body exceeds a window.
pub(super) async fn send(client: &mut Client, method: &str) -> crate::Response {
    match method {
        "GET" => client.get("/").await,
        _ => client.post("/", vec![b'x'; 100 << 10]).await,
    }
}

pub(super) fn body_length(method: &str) -> usize {
    if method == "GET" { 0 } else { 100 << 10 }
}

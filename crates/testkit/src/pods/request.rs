//! A minimal HTTP/1.1 request parser.

use bytes::BytesMut;
use skewbridge_websocket::Key;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) upgrade: Option<String>,
    pub(super) key: Option<Key>,
}

/// Reads the next request without a body; `None` at the end of the connection.
pub(super) async fn read(tcp: &mut TcpStream, buffer: &mut BytesMut) -> Option<Request> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|it| it == b"\r\n\r\n") {
            break at + 4;
        }
        if tcp.read_buf(buffer).await.unwrap_or(0) == 0 {
            return None;
        }
    };
    let head = buffer.split_to(end);
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let mut request = Request {
        method,
        target,
        upgrade: None,
        key: None,
    };
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "upgrade" => request.upgrade = Some(value.to_owned()),
            "sec-websocket-key" => request.key = Key::parse(&value.parse().ok()?),
            _ => {}
        }
    }
    Some(request)
}

impl Request {
    /// The command in the query.
    pub(super) fn command(&self) -> Vec<String> {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        let command = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("command="));
        command.map(percent_decode).collect()
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' && tail.len() >= 2 {
            let hex = std::str::from_utf8(&tail[..2]).unwrap();
            bytes.push(u8::from_str_radix(hex, 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

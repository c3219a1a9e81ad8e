//! `kubectl exec` by WebSocket, as small as it can be.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use skewbridge_channels::{End, ErrorChannel, FromServer, Outcome, Output, Protocol, Said};
use skewbridge_client::{Connection, Request};
use skewbridge_websocket::{
    Control, Decoder, Event, Key, Limits, Role, asking_headers, check_response,
};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

/// How long a command of the tour may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a command of the tour may say.
const LIMITS: Limits = Limits {
    frame: 64 * 1024,
    message: 64 * 1024,
};

/// What is read at once.
const PIECE: usize = 4 * 1024;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    /// It was run: what it said, and how it ended.
    Ended { stdout: String, outcome: Outcome },
    /// There was no WebSocket.
    Refused(StatusCode),
}

/// Runs a command in a pod of `default`.
pub(super) async fn exec(mut connection: Connection, pod: &str, words: &[&str]) -> Result<Ran> {
    let mut path = format!("/api/v1/namespaces/default/pods/{pod}/exec?stdout=true&stderr=true");
    for word in words {
        path.push_str("&command=");
        path.extend(word.bytes().map(|byte| format!("%{byte:02X}")));
    }
    let (key, protocol) = (Key::random(), Protocol::V5);
    let mut headers = HeaderMap::new();
    asking_headers(&key, [protocol.name()], &mut headers)?;
    let mut request = Request::get(&path);
    for (name, value) in &headers {
        request = request.header(name.as_str(), value.to_str()?);
    }
    let answer = connection.send(&request).await?;
    if answer.status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Ran::Refused(answer.status));
    }
    let agreed = check_response(answer.status, &answer.headers, &key, &[protocol.name()])?;
    if agreed != Some(protocol.name()) {
        bail!("another protocol was agreed to: {agreed:?}");
    }
    let ran = timeout(PATIENCE, hear(connection, protocol)).await;
    ran.context("the command does not end")?
}

async fn hear(connection: Connection, protocol: Protocol) -> Result<Ran> {
    let (mut stream, read) = connection.into_parts();
    let mut buffer = BytesMut::from(&read[..]);
    let mut decoder = Decoder::new(Role::Client, LIMITS);
    let mut reader = FromServer::new(protocol);
    let mut told = ErrorChannel::new(protocol.version());
    let mut stdout = Vec::new();
    let end = loop {
        match decoder.decode(&mut buffer)? {
            Some(Event::Piece(piece)) => match reader.piece(piece)? {
                Some(Said::Data(Output::Error, data)) => told.push(&data),
                Some(Said::Data(Output::Stdout, data)) => stdout.extend_from_slice(&data),
                _ => {}
            },
            Some(Event::Control(Control::Close(_))) => break End::Clean,
            Some(Event::Control(_)) => {}
            None => {
                buffer.reserve(PIECE);
                if stream.read_buf(&mut buffer).await? == 0 {
                    break End::Cut;
                }
            }
        }
    };
    Ok(Ran::Ended {
        stdout: String::from_utf8_lossy(&stdout).trim_end().to_owned(),
        outcome: told.end(end),
    })
}

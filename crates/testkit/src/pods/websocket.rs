//! Streams over WebSocket, as kube-apiserver's translator serves them.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::{
    ChannelEvent, FromClient, Input, Options, Output, Protocol, ToClient,
};
use skewbridge_stream_io::{WebSocketConn, WebSocketIo, WebSocketKeepalive};
use skewbridge_websocket::{Close, CloseCode, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::fault::FaultyIo;
use super::process::Process;
use crate::eventually::TEST_TIMEOUT;
use crate::task::OwnedTask;

type Io = FaultyIo<TcpStream>;

fn socket(io: Io, input: BytesMut) -> WebSocketConn<Io> {
    let never = Duration::from_hours(1);
    WebSocketConn::new(
        io,
        input,
        Role::Server,
        WebSocketKeepalive::new(Instant::now(), never, never),
    )
}

pub(super) async fn command(io: Io, input: BytesMut, options: Options, command: &[String]) {
    let mut socket = socket(io, input);
    let mut reader = FromClient::new(Protocol::V5);
    let mut writer = ToClient::new(Protocol::V5);
    socket.write(|out| {
        writer.open(options, out);
        None
    });
    let mut process = Process::start(command, options);
    // A process that does not read its stdin can still write output.
    let (to_stdin, mut for_stdin) = mpsc::channel::<Bytes>(1);
    let mut to_stdin = Some(to_stdin);
    let stdin = process.stdin.take();
    let _writing = OwnedTask::spawn(async move {
        let Some(mut stdin) = stdin else { return };
        while let Some(data) = for_stdin.recv().await {
            if stdin
                .write_all(&data)
                .await
                .and(stdin.flush().await)
                .is_err()
            {
                return;
            }
        }
    });
    let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
    let (mut stdout_open, mut stderr_open) = (true, true);
    let mut pending: Option<Bytes> = None;
    while stdout_open || stderr_open {
        if poll_fn(|cx| socket.poll_flush(cx)).await.is_err() {
            return;
        }
        let sender = to_stdin.clone();
        let capacity = async move { sender?.reserve_owned().await.ok() };
        tokio::select! {
            permit = capacity, if pending.is_some() => {
                if let (Some(permit), Some(data)) = (permit, pending.take()) {
                    permit.send(data);
                }
            }
            piece = poll_fn(|cx| socket.poll_chunk(cx)), if pending.is_none() => {
                let Ok(piece) = piece else { return };
                match reader.read_chunk(piece) {
                    Ok(Some(ChannelEvent::Data(Input::Stdin, data))) => pending = Some(data),
                    Ok(Some(ChannelEvent::Data(Input::Resize, data))) => process.resize(&data).await,
                    Ok(Some(ChannelEvent::Closed(_))) => {
                        to_stdin = None;
                        process.end_of_input();
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
            read = process.stdout.read_buf(&mut stdout), if stdout_open => {
                stdout_open = read.unwrap_or(0) > 0;
                if stdout_open {
                    socket.write(|out| writer.frame(Output::Stdout, stdout.split().freeze(), out));
                }
            }
            read = process.stderr.read_buf(&mut stderr), if stderr_open => {
                stderr_open = read.unwrap_or(0) > 0;
                if stderr_open {
                    socket.write(|out| writer.frame(Output::Stderr, stderr.split().freeze(), out));
                }
            }
        }
    }
    let outcome = process.wait().await;
    let status = outcome.encode(Protocol::V5.version());
    socket.write(|out| writer.frame(Output::Error, status, out));
    socket.close(Close::new(CloseCode::NORMAL, ""));
    let _ = socket.finish(TEST_TIMEOUT).await;
}

pub(super) async fn port_forward(io: Io, input: BytesMut) {
    super::spdy::forward(WebSocketIo::new(socket(io, input))).await;
}

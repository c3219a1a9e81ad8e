//! Streams over SPDY, as the kubelet serves them.

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::port_forward::{Stream as Kind, pair};
use skewbridge_remotecommand::{Channel, Options, STREAM_TYPE, SpdyProtocol};
use skewbridge_spdy::connection::{self, Receiver, Sender};
use skewbridge_spdy::{Config, Headers};
use skewbridge_stream_io::Rewind;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::fault::FaultyIo;
use super::process::Process;
use crate::task::OwnedTask;

type Io = FaultyIo<TcpStream>;

pub(super) async fn command(io: Io, prefix: BytesMut, options: Options, command: &[String]) {
    let io = Rewind { prefix, io };
    let (handle, mut incoming, driver) = connection::server(io, Config::default());
    let running = async {
        let mut process = Process::start(command, options);
        let (mut stdin, mut resize) = (None, None);
        let (mut stdout, mut stderr, mut error) = (None, None, None);
        let mut idle = Vec::new();
        for _ in options.streams(SpdyProtocol::V4) {
            let request = incoming.next().await?;
            let channel = Channel::from_stream_type(request.headers().get(STREAM_TYPE)?)?;
            let stream = request.accept(Headers::new()).ok()?;
            let (sender, receiver) = (stream.sender, stream.receiver);
            match channel {
                Channel::Stdin => {
                    stdin = Some(receiver);
                    idle.push(sender);
                }
                Channel::Resize => {
                    resize = Some(receiver);
                    idle.push(sender);
                }
                Channel::Stdout => stdout = Some(sender),
                Channel::Stderr => stderr = Some(sender),
                Channel::Error => error = Some(sender),
            }
        }
        let to_stdin = process.stdin.take();
        let (ended, end_of_input) = tokio::sync::oneshot::channel();
        let _writing = OwnedTask::spawn(async move {
            write_all(stdin, to_stdin).await;
            let _ = ended.send(());
        });
        let output = std::mem::replace(&mut process.stdout, Box::new(tokio::io::empty()));
        let errors = std::mem::replace(&mut process.stderr, Box::new(tokio::io::empty()));
        let sizes = async {
            while let Some(receiver) = &mut resize
                && let Ok(Some(data)) = receiver.read().await
            {
                process.resize(&data).await;
            }
            std::future::pending::<()>().await;
        };
        {
            let outputs = async {
                tokio::join!(read_all(output, &mut stdout), read_all(errors, &mut stderr))
            };
            let mut outputs = std::pin::pin!(outputs);
            let outputs_ended = tokio::select! {
                _ = &mut outputs => true,
                _ = end_of_input => false,
                () = sizes => unreachable!(),
            };
            if !outputs_ended {
                process.end_of_input();
                outputs.await;
            }
        }
        let status = process.wait().await.encode(SpdyProtocol::V4.version());
        let mut error = error?;
        error.write(status).await.ok()?;
        for sender in [&mut stdout, &mut stderr, &mut Some(error)]
            .into_iter()
            .flatten()
        {
            let _ = sender.finish();
            sender.flushed().await;
        }
        for mut sender in idle {
            let _ = sender.finish();
        }
        handle.close();
        Some(())
    };
    let mut driver = std::pin::pin!(driver);
    tokio::select! {
        _ = &mut driver => return,
        _ = running => {}
    }
    let _ = driver.await;
}

async fn write_all(from: Option<Receiver>, to: Option<Box<dyn AsyncWrite + Send + Unpin>>) {
    let (Some(mut from), Some(mut to)) = (from, to) else {
        return std::future::pending().await;
    };
    while let Ok(Some(data)) = from.read().await {
        if to.write_all(&data).await.and(to.flush().await).is_err() {
            return;
        }
    }
}

async fn read_all(mut from: impl AsyncRead + Unpin, to: &mut Option<Sender>) {
    let mut buffer = BytesMut::new();
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        let data = buffer.split().freeze();
        if let Some(to) = to
            && to.write(data).await.is_err()
        {
            return;
        }
    }
}

pub(super) async fn port_forward(io: Io, prefix: BytesMut) {
    forward(Rewind { prefix, io }).await;
}

/// Connects stream pairs to local ports. A port without a listener yields an error.
pub(super) async fn forward<T: AsyncRead + AsyncWrite + Unpin>(io: T) {
    let (_handle, mut incoming, driver) = connection::server(io, Config::default());
    let accepting = async {
        let mut connections: Vec<OwnedTask<()>> = Vec::new();
        let mut errors: Vec<(String, Sender)> = Vec::new();
        while let Some(request) = incoming.next().await {
            let headers = pair::Headers::parse(|name| request.headers().get(name), 1).unwrap();
            let Ok(stream) = request.accept(Headers::new()) else {
                continue;
            };
            if headers.stream == Kind::Error {
                errors.push((headers.request, stream.sender));
                continue;
            }
            let at = errors
                .iter()
                .position(|(it, _)| *it == headers.request)
                .unwrap();
            let (_, error) = errors.swap_remove(at);
            let port = headers.port.number();
            connections.push(OwnedTask::spawn(connect(
                port,
                stream.sender,
                stream.receiver,
                error,
            )));
        }
    };
    tokio::select! {
        _ = driver => {}
        () = accepting => {}
    }
}

async fn connect(port: u16, mut to: Sender, from: Receiver, mut error: Sender) {
    match TcpStream::connect(("127.0.0.1", port)).await {
        Ok(tcp) => {
            let (read, write) = tcp.into_split();
            let mut sender = Some(to);
            let down = async {
                read_all(read, &mut sender).await;
                if let Some(to) = &mut sender {
                    let _ = to.finish();
                    to.flushed().await;
                }
            };
            tokio::join!(write_all(Some(from), Some(Box::new(write))), down);
            let _ = error.finish();
        }
        Err(cause) => {
            let message = format!("error forwarding port {port} to pod: {cause}");
            let _ = error.write(Bytes::from(message)).await;
            let _ = error.finish();
            error.flushed().await;
            let _ = to.finish();
            to.flushed().await;
        }
    }
}

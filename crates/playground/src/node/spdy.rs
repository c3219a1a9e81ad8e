//! A remote command by SPDY.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use skewbridge_channels::{Channel, Options, Outcome, STREAM_TYPE, SpdyProtocol};
use skewbridge_spdy::connection::{self, Incoming, Receiver, Sender};
use skewbridge_spdy::frame::ResetStatus;
use skewbridge_spdy::{Config, Headers};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::remote::{Near, Resizing, ends};

/// How long a client may take to open its streams: as kubelets.
const OPENING: Duration = Duration::from_secs(30);

/// How long a client may take to hear how its command ended.
const FAREWELL: Duration = Duration::from_secs(10);

/// Carries a command to its end, or until the client is gone: then the command is
/// dropped.
pub(super) async fn carry<T, F>(
    io: T,
    options: Options,
    protocol: SpdyProtocol,
    run: impl FnOnce(Near) -> F,
) where
    T: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Outcome>,
{
    let (handle, mut incoming, driver) = connection::server(io, Config::default());
    let mut driver = pin!(driver);
    let opened = tokio::select! {
        opened = timeout(OPENING, open(&mut incoming, options, protocol)) => opened.ok(),
        _ = &mut driver => None,
    };
    let Some(mut streams) = opened else { return };
    // Further streams are refused.
    drop(incoming);
    let (near, mut far) = ends(options);
    let command = run(near);
    let feeding = async {
        let (stdin, resize) = (streams.stdin.take(), streams.resize.take());
        tokio::join!(
            feed(stdin, far.inputs.stdin.take()),
            measure(resize, &mut far.inputs.resizing)
        );
        std::future::pending::<()>().await;
    };
    let (stdout, stderr) = (&mut streams.stdout, &mut streams.stderr);
    let work = async {
        let tell = async {
            tokio::join!(
                tell(far.outputs.stdout.take(), stdout),
                tell(far.outputs.stderr.take(), stderr)
            )
        };
        let (outcome, _) = tokio::join!(command, tell);
        outcome
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = feeding => return,
        _ = &mut driver => return,
    };
    let words = outcome.encode(protocol.version());
    tokio::select! {
        _ = &mut driver => return,
        ended = timeout(FAREWELL, streams.end(words)) => if ended.is_err() { return },
    }
    handle.close();
    drop(handle);
    let _ = timeout(FAREWELL, driver).await;
}

/// The streams of a command. A sender that is dropped resets its stream, so all are
/// kept to the end.
#[derive(Debug, Default)]
struct Streams {
    stdin: Option<Receiver>,
    resize: Option<Receiver>,
    stdout: Option<Sender>,
    stderr: Option<Sender>,
    error: Option<Sender>,
    unused: Vec<Sender>,
}

async fn open(incoming: &mut Incoming, options: Options, protocol: SpdyProtocol) -> Streams {
    let mut missing: Vec<Channel> = options.streams(protocol).collect();
    let mut streams = Streams::default();
    while !missing.is_empty() {
        let Some(request) = incoming.next().await else {
            // The driver has more to say about it.
            return std::future::pending().await;
        };
        let channel = request.headers().get(STREAM_TYPE);
        let channel = channel.and_then(Channel::from_stream_type);
        let Some(at) = missing.iter().position(|it| Some(*it) == channel) else {
            request.refuse(ResetStatus::RefusedStream);
            continue;
        };
        let Ok(stream) = request.accept(Headers::new()) else {
            continue;
        };
        let (sender, receiver) = (stream.sender, stream.receiver);
        match missing.swap_remove(at) {
            Channel::Stdin => {
                streams.stdin = Some(receiver);
                streams.unused.push(sender);
            }
            Channel::Resize => {
                streams.resize = Some(receiver);
                streams.unused.push(sender);
            }
            Channel::Stdout => streams.stdout = Some(sender),
            Channel::Stderr => streams.stderr = Some(sender),
            Channel::Error => streams.error = Some(sender),
        }
    }
    streams
}

impl Streams {
    /// Says how it ended, behind all output, and ends all streams.
    async fn end(&mut self, words: Bytes) {
        for sender in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            if sender.finish().is_ok() {
                sender.sent().await;
            }
        }
        if let Some(error) = &mut self.error {
            if !words.is_empty() {
                let _ = error.send(words);
            }
            if error.finish().is_ok() {
                error.sent().await;
            }
        }
        for sender in &mut self.unused {
            // One that the client has ended needs no end.
            let _ = sender.finish();
        }
    }
}

/// From the client to the process. Its end is the end of the input.
async fn feed(from: Option<Receiver>, to: Option<mpsc::Sender<Bytes>>) {
    let (Some(mut from), Some(to)) = (from, to) else {
        return;
    };
    while let Ok(Some(data)) = from.read().await {
        if to.send(data).await.is_err() {
            return;
        }
    }
}

async fn measure(from: Option<Receiver>, to: &mut Resizing) {
    let Some(mut from) = from else { return };
    while let Ok(Some(data)) = from.read().await {
        to.push(&data);
    }
}

/// From the process to the client, to the end of it, whoever listens.
async fn tell(from: Option<mpsc::Receiver<Bytes>>, to: &mut Option<Sender>) {
    let (Some(mut from), Some(to)) = (from, to) else {
        return;
    };
    while let Some(data) = from.recv().await {
        if to.write(data).await.is_err() {
            return;
        }
    }
}

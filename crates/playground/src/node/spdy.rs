//! A remote command by SPDY.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use skewbridge_remotecommand::{Options, Outcome, SpdyProtocol};
use skewbridge_spdy::Config;
use skewbridge_spdy::connection::{self, Receiver, Sender};
use skewbridge_stream_io::CommandStreams;
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
        opened = timeout(OPENING, CommandStreams::accept(&mut incoming, options, protocol)) => opened.ok(),
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
        ended = timeout(FAREWELL, streams.finish(words)) => if ended.is_err() { return },
    }
    handle.close();
    drop(handle);
    let _ = timeout(FAREWELL, driver).await;
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

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

use super::command_pipes::{ProcessEnd, ResizeSender, ends};

/// Time for a client to open its streams: a kubelet's limit.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a client to receive the result.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a command to its end, or until the client disconnects: then the command is dropped.
pub(super) async fn serve<T, F>(
    io: T,
    options: Options,
    protocol: SpdyProtocol,
    run: impl FnOnce(ProcessEnd) -> F,
) where
    T: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Outcome>,
{
    let (handle, mut incoming, driver) = connection::server(io, Config::default());
    let mut driver = pin!(driver);
    let opened = tokio::select! {
        opened = timeout(STREAM_OPEN_TIMEOUT, CommandStreams::accept(&mut incoming, options, protocol)) => opened.ok(),
        _ = &mut driver => None,
    };
    let Some(mut streams) = opened else { return };
    // Further streams are refused.
    drop(incoming);
    let (process_end, mut client_end) = ends(options);
    let command = run(process_end);
    let forwarding_input = async {
        let (stdin, resize) = (streams.stdin.take(), streams.resize.take());
        tokio::join!(
            forward_stdin(stdin, client_end.inputs.stdin.take()),
            forward_resizes(resize, &mut client_end.inputs.resizing)
        );
        std::future::pending::<()>().await;
    };
    let (stdout, stderr) = (&mut streams.stdout, &mut streams.stderr);
    let work = async {
        let forward_output = async {
            tokio::join!(
                forward_output(client_end.outputs.stdout.take(), stdout),
                forward_output(client_end.outputs.stderr.take(), stderr)
            )
        };
        let (outcome, _) = tokio::join!(command, forward_output);
        outcome
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = forwarding_input => return,
        _ = &mut driver => return,
    };
    let words = outcome.encode(protocol.version());
    tokio::select! {
        _ = &mut driver => return,
        ended = timeout(RESULT_TIMEOUT, streams.finish(words)) => if ended.is_err() { return },
    }
    handle.close();
    drop(handle);
    let _ = timeout(RESULT_TIMEOUT, driver).await;
}

/// From the client to the process. Its end is the end of the input.
async fn forward_stdin(from: Option<Receiver>, to: Option<mpsc::Sender<Bytes>>) {
    let (Some(mut from), Some(to)) = (from, to) else {
        return;
    };
    while let Ok(Some(data)) = from.read().await {
        if to.send(data).await.is_err() {
            return;
        }
    }
}

async fn forward_resizes(from: Option<Receiver>, to: &mut ResizeSender) {
    let Some(mut from) = from else { return };
    while let Ok(Some(data)) = from.read().await {
        to.push(&data);
    }
}

/// From the process to the client, always to the end.
async fn forward_output(from: Option<mpsc::Receiver<Bytes>>, to: &mut Option<Sender>) {
    let (Some(mut from), Some(to)) = (from, to) else {
        return;
    };
    while let Some(data) = from.recv().await {
        if to.write(data).await.is_err() {
            return;
        }
    }
}

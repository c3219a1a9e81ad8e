//! The process side of exec and attach.

use std::path::Path;

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::{ExitCode, Failure, Outcome, Output};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{broadcast, mpsc};

use super::command_pipes::{ProcessEnd, READ_BUFFER_BYTES};
use super::container::{AttachInput, Run};
use super::process::{
    ExitInfo, Input, InputWriter, Launch, Launcher, OutputReader, Process, Task, wait_and_drain,
};

/// End of transmission: the end of input on a terminal, at the start of a line.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// A command to run beside a container's process.
#[derive(Debug)]
pub(super) struct Exec<'a> {
    pub(super) launcher: &'a Launcher,
    pub(super) pod: &'a str,
    pub(super) words: &'a [String],
    pub(super) directory: &'a Path,
    pub(super) environment: &'a [(String, String)],
    pub(super) tty: bool,
}

impl Exec<'_> {
    /// Runs the command to its end. Dropping this future kills the command and its descendants.
    pub(super) async fn run(&self, process_end: ProcessEnd) -> Outcome {
        let launch = Launch {
            pod: self.pod,
            task: Task::Command(self.words),
            directory: self.directory,
            environment: self.environment,
            input: match (self.tty, &process_end.stdin) {
                (true, _) => Input::Terminal,
                (false, Some(_)) => Input::Pipe,
                (false, None) => Input::None,
            },
        };
        let process = match self.launcher.start(&launch) {
            Ok(process) => process,
            Err(error) => {
                return Outcome::Failed(Failure::internal(format_args!(
                    "error executing command in container: {error}"
                )));
            }
        };
        join_streams(process, process_end, self.tty).await
    }
}

async fn join_streams(process: Process, process_end: ProcessEnd, tty: bool) -> Outcome {
    let Process {
        mut handle,
        stdin,
        stdout,
        stderr,
        window,
    } = process;
    let ProcessEnd {
        stdin: input,
        mut sizes,
        stdout: to_stdout,
        stderr: to_stderr,
    } = process_end;
    let outputs = async {
        tokio::join!(
            forward_output(stdout, to_stdout),
            forward_output(stderr, to_stderr)
        );
    };
    let inputs = async {
        let measure = async {
            while let Some(size) = sizes.recv().await {
                if let Some(window) = &window {
                    window.resize(size);
                }
            }
        };
        tokio::join!(biased; measure, forward_stdin(input, stdin, tty));
    };
    let ended = wait_and_drain(handle.wait(), outputs, inputs).await;
    outcome(ended)
}

fn outcome(ended: ExitInfo) -> Outcome {
    ExitCode::new(ended.code).map_or(Outcome::Success, Outcome::Exited)
}

/// From the client to the process; its end is the end of the input.
async fn forward_stdin(from: Option<mpsc::Receiver<Bytes>>, to: Option<InputWriter>, tty: bool) {
    let (Some(mut from), Some(mut to)) = (from, to) else {
        return;
    };
    while let Some(data) = from.recv().await {
        if to.write_all(&data).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    if tty {
        // A terminal cannot be half-closed.
        let _ = to.write_all(END_OF_TRANSMISSION).await;
    }
}

/// From the process to the client, if the client reads. Output is always drained, because the
/// process would block otherwise.
async fn forward_output(from: Option<OutputReader>, mut to: Option<mpsc::Sender<Bytes>>) {
    let Some(mut from) = from else { return };
    let mut piece = BytesMut::new();
    loop {
        piece.reserve(READ_BUFFER_BYTES);
        if !from.read(&mut piece).await {
            return;
        }
        let data = piece.split().freeze();
        if let Some(sender) = &to
            && sender.send(data).await.is_err()
        {
            to = None;
        }
    }
}

/// Attaches to a container's process until that ends.
pub(super) async fn attach(run: Run, process_end: ProcessEnd) -> Outcome {
    let ProcessEnd {
        stdin,
        mut sizes,
        stdout,
        stderr,
    } = process_end;
    let Some(output) = run.output.upgrade() else {
        return Outcome::Success;
    };
    let mut chunks = output.subscribe();
    drop(output);
    let listening = async {
        loop {
            let (which, data) = match chunks.recv().await {
                Ok(piece) => piece,
                // The client was too slow.
                Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            };
            let to = match which {
                Output::Stderr => &stderr,
                Output::Stdout | Output::Error => &stdout,
            };
            if let Some(to) = to {
                // The caller detects a client that has disconnected.
                let _ = to.send(data).await;
            }
        }
    };
    let to_process = run.stdin.clone();
    let forwarding = async {
        let forward_stdin = async {
            let (Some(mut stdin), Some(to)) = (stdin, to_process) else {
                return;
            };
            while let Some(data) = stdin.recv().await {
                if to.send(AttachInput::Data(data)).await.is_err() {
                    return;
                }
            }
            let _ = to.send(AttachInput::End).await;
        };
        let measure = async {
            while let Some(size) = sizes.recv().await {
                let _ = run.sizes.send(size).await;
            }
        };
        tokio::join!(forward_stdin, measure);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = listening => {}
        () = forwarding => {}
    }
    Outcome::Success
}

//! The two ends of a remote command: that of the process, and that of the client, which SPDY or
//! WebSocket serves. Bounded queues between them provide backpressure.

use bytes::Bytes;
use skewbridge_remotecommand::{Channel, Options, Output, ResizeDecoder, TerminalSize};
use tokio::sync::mpsc;

/// Length of the queues: enough to keep both ends busy.
pub(super) const QUEUE_LENGTH: usize = 4;

/// Size of one read from a process.
pub(super) const READ_BUFFER_BYTES: usize = 16 * 1024;

/// The streams of a remote command on the side of the process.
#[derive(Debug)]
pub(super) struct ProcessEnd {
    pub(super) stdin: Option<mpsc::Receiver<Bytes>>,
    pub(super) sizes: mpsc::Receiver<TerminalSize>,
    pub(super) stdout: Option<mpsc::Sender<Bytes>>,
    pub(super) stderr: Option<mpsc::Sender<Bytes>>,
}

/// The streams of a remote command on the side of the client.
#[derive(Debug)]
pub(super) struct ClientEnd {
    pub(super) inputs: Inputs,
    pub(super) outputs: Outputs,
}

/// Towards the process.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) stdin: Option<mpsc::Sender<Bytes>>,
    pub(super) resizing: ResizeSender,
}

/// Sends terminal sizes to the process.
#[derive(Debug)]
pub(super) struct ResizeSender {
    sender: Option<mpsc::Sender<TerminalSize>>,
    parser: ResizeDecoder,
}

/// From the process.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) stdout: Option<mpsc::Receiver<Bytes>>,
    pub(super) stderr: Option<mpsc::Receiver<Bytes>>,
}

/// Both ends of the requested streams.
pub(super) fn ends(options: Options) -> (ProcessEnd, ClientEnd) {
    let queue = |channel| {
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
        let is_on = options.has(channel);
        (is_on.then_some(sender), is_on.then_some(receiver))
    };
    let (to_stdin, stdin) = queue(Channel::Stdin);
    let (stdout, from_stdout) = queue(Channel::Stdout);
    let (stderr, from_stderr) = queue(Channel::Stderr);
    let (sender, sizes) = mpsc::channel(QUEUE_LENGTH);
    let process_end = ProcessEnd {
        stdin,
        sizes,
        stdout,
        stderr,
    };
    let client_end = ClientEnd {
        inputs: Inputs {
            stdin: to_stdin,
            resizing: ResizeSender {
                sender: Some(sender),
                parser: ResizeDecoder::default(),
            },
        },
        outputs: Outputs {
            stdout: from_stdout,
            stderr: from_stderr,
        },
    };
    (process_end, client_end)
}

impl Inputs {
    /// Forwards input, or drops it if the process does not read.
    pub(super) async fn write(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if let Some(stdin) = &self.stdin
            && stdin.send(data).await.is_err()
        {
            self.stdin = None;
        }
    }
}

impl ResizeSender {
    /// Takes data of the resize channel.
    pub(super) fn push(&mut self, data: &[u8]) {
        match self.parser.push(data) {
            // If the queue is full, sizes are dropped: another one follows.
            Ok(Some(size)) => {
                if let Some(sender) = &self.sender {
                    let _ = sender.try_send(size);
                }
            }
            Ok(None) => {}
            // Like a kubelet, stops reading sizes after an invalid one.
            Err(_) => self.sender = None,
        }
    }
}

impl Outputs {
    /// Whether more input may follow.
    pub(super) fn is_open(&self) -> bool {
        self.stdout.is_some() || self.stderr.is_some()
    }

    /// The next chunk; `None` when both streams have ended. It is cancellation-safe.
    pub(super) async fn next(&mut self) -> Option<(Output, Bytes)> {
        while self.is_open() {
            let (output, data) = tokio::select! {
                data = next_of(&mut self.stdout), if self.stdout.is_some() => (Output::Stdout, data),
                data = next_of(&mut self.stderr), if self.stderr.is_some() => (Output::Stderr, data),
            };
            match (data, output) {
                (Some(data), _) => return Some((output, data)),
                (None, Output::Stdout) => self.stdout = None,
                (None, _) => self.stderr = None,
            }
        }
        None
    }
}

async fn next_of(half: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    half.as_mut()?.recv().await
}

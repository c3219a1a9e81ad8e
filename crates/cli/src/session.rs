//! A remote process on the local terminal or standard streams: input is sent, output is printed,
//! and its exit code becomes that of the command.

use std::io;

use skewbridge_client::Endpoint;
use skewbridge_client::remote_command::{
    Disconnected, Executor, ExitStatus, FallbackExecutor, ProcessOutput, ProcessStdin,
    RemoteProcess, Resizer, SpdyExecutor, TerminalSize, Transport,
};

use crate::client_command::Failure;
use crate::console::{DetachKeys, KeyResult, RawTerminal, Signals, StdInput, StdOutput, size};

/// The exit code that shells report for SIGPIPE: 128 + 13.
const EXIT_PIPE: u8 = 141;

/// The executor: WebSocket with fallback to SPDY, or SPDY alone if kubectl's switch is off.
pub(crate) fn executor(endpoint: Endpoint) -> Box<dyn Executor> {
    if is_off(WEBSOCKET_SWITCH) {
        Box::new(SpdyExecutor::new(endpoint))
    } else {
        Box::new(FallbackExecutor::new(endpoint))
    }
}

/// kubectl's switch for WebSocket in exec and attach.
pub(crate) const WEBSOCKET_SWITCH: &str = "KUBECTL_REMOTE_COMMAND_WEBSOCKETS";

/// Whether a switch of kubectl is off, parsed as by kubectl.
pub(crate) fn is_off(switch: &str) -> bool {
    std::env::var(switch).is_ok_and(|value| value.eq_ignore_ascii_case("false"))
}

/// Options of a session.
#[derive(Debug)]
pub(crate) struct Session {
    /// The local terminal is used.
    pub(crate) raw: Option<(RawTerminal, Signals)>,
    pub(crate) detach: Option<DetachKeys>,
    /// Send an empty window size first, so that an attached program redraws.
    pub(crate) redraw: bool,
}

/// The end of a session.
#[derive(Debug)]
pub(crate) enum ExitState {
    /// The process ended.
    Process(ExitStatus),
    /// The user detached; the process continues.
    Detached,
}

/// Why a session ends before its process.
enum SessionEnd {
    /// Standard input cannot be read.
    Input(io::Error),
    Signal(u8),
    Detached,
    /// Standard output is closed.
    Output(io::Error),
}

impl Session {
    /// Runs it to its end.
    pub(crate) async fn run(self, mut process: RemoteProcess) -> Result<ExitState, Failure> {
        let stdin = process.stdin.take();
        let stdout = process.stdout.take();
        let stderr = process.stderr.take();
        let resizer = process.resizer();
        // Without a terminal, the default action of signals is right: there is nothing to
        // restore.
        let (raw, signals) = self.raw.unzip();
        let outputs = async {
            let out = async {
                match stdout {
                    Some(stdout) => write(stdout, StdOutput::stdout()).await,
                    None => Ok(()),
                }
            };
            let err = async {
                match stderr {
                    Some(stderr) => write(stderr, StdOutput::stderr()).await,
                    None => Ok(()),
                }
            };
            tokio::try_join!(out, err)
        };
        let ending = async {
            let outputs = async { outputs.await.map_err(SessionEnd::Output) };
            let status = async { Ok(process.wait().await) };
            let (_, status) = tokio::try_join!(outputs, status)?;
            Ok(status)
        };
        let detach = self.detach;
        let typing = async {
            match stdin {
                Some(stdin) => match read(stdin, detach).await {
                    InputEnd::End => std::future::pending().await,
                    InputEnd::Detach => SessionEnd::Detached,
                    InputEnd::Failed(error) => SessionEnd::Input(error),
                },
                None => std::future::pending().await,
            }
        };
        let watching = forward_resizes(signals, resizer, self.redraw);
        let over = tokio::select! {
            ended = ending => ended,
            over = typing => Err(over),
            code = watching => Err(SessionEnd::Signal(code)),
        };
        // Before anything is printed.
        drop(raw);
        match over {
            Ok(status) => Ok(ExitState::Process(status)),
            Err(SessionEnd::Detached) => Ok(ExitState::Detached),
            Err(SessionEnd::Signal(code)) => Err(Failure::without_message(code)),
            Err(SessionEnd::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(Failure::without_message(EXIT_PIPE))
            }
            Err(SessionEnd::Input(error)) => Err(Failure::new(format!(
                "standard input cannot be read: {error}"
            ))
            .hint("the command was disconnected before the end of its input")),
            Err(SessionEnd::Output(error)) => Err(Failure::new(format!(
                "the output of the command cannot be written: {error}"
            ))),
        }
    }
}

/// The result of a process that has ended, as with kubectl.
pub(crate) fn exit_result(status: ExitStatus) -> Result<(), Failure> {
    match status {
        ExitStatus::Success => Ok(()),
        ExitStatus::Code(code) => {
            let number = code.number();
            Err(Failure::plain(
                format!("command terminated with exit code {number}"),
                number,
            ))
        }
        ExitStatus::Failed(failure) => Err(Failure::new(failure.message)),
        ExitStatus::Disconnected(cut) => Err(disconnected(&cut)),
    }
}

fn disconnected(cut: &Disconnected) -> Failure {
    let Disconnected {
        cause,
        sent,
        unsent,
        received,
    } = cut;
    let more = match unsent {
        0 => String::new(),
        unsent => format!(", and {unsent} more bytes that were read here were not"),
    };
    Failure::new(format!("lost connection to the container: {cause}")).hint(format!(
        "the result of the command is not known, and it may still run; {received} bytes of its \
         output were received, {sent} bytes of its input were sent (some of it may not have \
         arrived){more}"
    ))
}

/// The stream protocol, for verbose output. Printed before raw mode.
pub(crate) fn describe_transport(transport: &Transport) -> String {
    match transport {
        Transport::WebSocket => "skewbridge: using WebSocket".to_owned(),
        Transport::Spdy {
            fallback_reason: None,
        } => "skewbridge: using SPDY".to_owned(),
        Transport::Spdy {
            fallback_reason: Some(reason),
        } => format!("skewbridge: using SPDY, because WebSocket was refused: {reason}"),
    }
}

#[derive(Debug)]
enum InputEnd {
    /// End of input, or the process does not read it.
    End,
    Detach,
    /// Reading failed.
    Failed(io::Error),
}

/// From standard input to the process. The end of input is passed on; remote failures are in its
/// status.
async fn read(mut to: ProcessStdin, mut detach: Option<DetachKeys>) -> InputEnd {
    use tokio::io::AsyncWriteExt as _;
    let mut from = StdInput::open();
    loop {
        if detach.is_none() {
            to.ready().await;
        }
        let mut typed = Vec::with_capacity(ProcessStdin::PREFERRED_WRITE_BYTES);
        match from.read(&mut typed).await {
            Ok(0) => break,
            Ok(_) => {}
            // A read error is not the end of input: the command would treat truncated input as
            // complete.
            Err(error) => return InputEnd::Failed(error),
        }
        let mut pressed = KeyResult::Keys;
        if let Some(detach) = &mut detach {
            let mut keys = Vec::new();
            pressed = detach.press(&typed, &mut keys);
            typed = keys;
        }
        if to.write_owned(typed).await.is_err() {
            return InputEnd::End;
        }
        if pressed == KeyResult::Detach {
            let _ = to.flush().await;
            return InputEnd::Detach;
        }
    }
    let _ = to.shutdown().await;
    InputEnd::End
}

/// From the process to standard output or error.
async fn write(mut from: ProcessOutput, mut to: StdOutput) -> io::Result<()> {
    // A lost connection is in its status.
    while let Ok(Some(piece)) = from.next_chunk().await {
        to.write_all(&piece).await?;
    }
    Ok(())
}

/// Sends window sizes to the process, until a terminating signal.
async fn forward_resizes(signals: Option<Signals>, resizer: Resizer, redraw: bool) -> u8 {
    let Some(mut signals) = signals else {
        return std::future::pending().await;
    };
    let mut last = None;
    loop {
        let now = size();
        if let Some(size) = now
            && now != last
        {
            if redraw && last.is_none() {
                resizer.resize(TerminalSize {
                    width: size.width.saturating_add(1),
                    height: size.height.saturating_add(1),
                });
            }
            resizer.resize(size);
            last = now;
        }
        if let Err(code) = signals.end_or_resize().await {
            return code;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_reports_what_was_delivered() {
        let cut = |unsent| Disconnected {
            cause: "reset".to_owned(),
            sent: 5,
            unsent,
            received: 7,
        };
        assert_eq!(
            disconnected(&cut(0)).to_string(),
            "error: lost connection to the container: reset\n\
             the result of the command is not known, and it may still run; 7 bytes of its output \
             were received, 5 bytes of its input were sent (some of it may not have arrived)"
        );
        assert!(
            disconnected(&cut(9))
                .to_string()
                .ends_with(", and 9 more bytes that were read here were not")
        );
    }
}

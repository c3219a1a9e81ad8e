//! The messages of this program's own children on their output, a line each.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::process::OwnedProcess;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChildMessage {
    /// A fake API server listens on this local port.
    Listening(u16),
    /// This many watches, connections or streams have been opened.
    Opened(u32),
    /// This many watches have received this event, and all before it.
    Delivered { event: u32, count: u32 },
    /// One of them ended, or received unexpected data.
    Failed(String),
}

impl fmt::Display for ChildMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(port) => write!(f, "listening {port}"),
            Self::Opened(count) => write!(f, "opened {count}"),
            Self::Delivered { event, count } => write!(f, "delivered {event} {count}"),
            Self::Failed(why) => write!(f, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl FromStr for ChildMessage {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let (message, rest) = line.split_once(' ').context("no value")?;
        Ok(match message {
            "listening" => Self::Listening(rest.parse()?),
            "opened" => Self::Opened(rest.parse()?),
            "delivered" => {
                let (event, count) = rest.split_once(' ').context("no count")?;
                Self::Delivered {
                    event: event.parse()?,
                    count: count.parse()?,
                }
            }
            "failed" => Self::Failed(rest.to_owned()),
            _ => bail!("an unknown message: {line:?}"),
        })
    }
}

/// Messages from a child's output.
pub(crate) struct ChildOutput {
    lines: Lines<BufReader<ChildStdout>>,
}

impl ChildOutput {
    pub(crate) fn new(output: ChildStdout) -> Self {
        Self {
            lines: BufReader::new(output).lines(),
        }
    }

    /// The next message; `None` after `deadline`.
    pub(crate) async fn next_message(
        &mut self,
        from: &OwnedProcess,
        deadline: Instant,
    ) -> Result<Option<ChildMessage>> {
        match timeout_at(deadline.into(), self.lines.next_line()).await {
            Err(_) => Ok(None),
            Ok(line) => match line? {
                Some(line) => Ok(Some(line.parse()?)),
                None => bail!("{} has ended{}", from.name(), from.log_tail()),
            },
        }
    }

    /// Waits for one message.
    pub(crate) async fn until(
        &mut self,
        from: &OwnedProcess,
        wanted: &ChildMessage,
        limit: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        match self.next_message(from, deadline).await? {
            Some(message) if message == *wanted => Ok(()),
            Some(message) => bail!("{}: {message:?}, not {wanted:?}", from.name()),
            None => bail!("{}: waited {limit:?} for {wanted:?}", from.name()),
        }
    }
}

/// This program with a hidden command.
pub(crate) fn this_program(command: &str) -> Result<Command> {
    let mut program = Command::new(std::env::current_exe()?);
    program.arg(command);
    Ok(program)
}

/// In a child: its parent has ended, or does not need it any more.
pub(crate) async fn end_of_input() {
    let (ended, end) = oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(ended);
    });
    let _ = end.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_parsed_as_printed() {
        let messages = [
            ChildMessage::Listening(6443),
            ChildMessage::Opened(10_000),
            ChildMessage::Delivered { event: 3, count: 9 },
            ChildMessage::Failed("the stream ended early".into()),
        ];
        for message in messages {
            assert_eq!(
                message.to_string().parse::<ChildMessage>().unwrap(),
                message
            );
        }
    }

    #[test]
    fn a_failure_stays_on_one_line() {
        assert_eq!(
            ChildMessage::Failed("a\nb".into()).to_string(),
            "failed a b"
        );
    }

    #[test]
    fn anything_else_is_an_error() {
        for line in ["", "opened", "opened x", "delivered 1", "hello there"] {
            assert!(line.parse::<ChildMessage>().is_err(), "{line:?}");
        }
    }
}

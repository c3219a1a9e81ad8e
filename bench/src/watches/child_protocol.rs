//! The messages of the children of `watches` on their output, a line each.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, bail};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChildMessage {
    /// The fake API server listens on this local port.
    Listening(u16),
    /// This many watches have been opened (status 200).
    Opened(u32),
    /// This many watches have received this event, and all before it.
    Delivered { event: u32, count: u32 },
    /// A watch ended, or received unexpected data.
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

    fn from_str(line: &str) -> Result<Self, Error> {
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

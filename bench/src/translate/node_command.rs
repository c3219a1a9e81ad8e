//! The commands of the node.

use anyhow::{Context, Result};
use skewbridge_e2e::Node;

/// A keystroke or the response to it.
pub(crate) const SMALL_MESSAGE_BYTES: usize = 16;

/// kube-apiserver's path for commands in the pod.
pub(crate) fn exec_path() -> String {
    let (namespace, pod) = (Node::NAMESPACE, Node::POD);
    format!("/api/v1/namespaces/{namespace}/pods/{pod}/exec")
}

/// A command of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeCommand {
    /// Reads stdin to its end, which has to come after this many bytes.
    Sink { bytes: u64 },
    /// Writes this many bytes to stdout.
    Source { bytes: u64 },
    /// Echoes stdin until it ends.
    Echo,
}

impl NodeCommand {
    /// As a client requests it from kube-apiserver.
    pub(crate) fn query(self) -> String {
        let (words, channels) = match self {
            Self::Sink { bytes } => (format!("command=sink&command={bytes}"), "stdin=true"),
            Self::Source { bytes } => (format!("command=source&command={bytes}"), "stdout=true"),
            Self::Echo => ("command=echo".to_owned(), "stdin=true&stdout=true"),
        };
        format!("container={}&{words}&{channels}", Node::CONTAINER)
    }

    /// Parses the query that kube-apiserver, or a bridge, has made of it.
    pub(crate) fn from_query(query: &str) -> Result<Self> {
        let mut words = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("command="));
        let name = words.next().context("no command")?;
        let mut bytes = || {
            let bytes = words.next().context("no number of bytes")?;
            bytes.parse().context("not a number of bytes")
        };
        match name {
            "sink" => Ok(Self::Sink { bytes: bytes()? }),
            "source" => Ok(Self::Source { bytes: bytes()? }),
            "echo" => Ok(Self::Echo),
            _ => anyhow::bail!("no such command"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_parsed_as_requested() {
        for work in [
            NodeCommand::Sink { bytes: 1 << 40 },
            NodeCommand::Source { bytes: 0 },
            NodeCommand::Echo,
        ] {
            assert_eq!(NodeCommand::from_query(&work.query()).unwrap(), work);
        }
        // As kube-apiserver requests it from a kubelet.
        let query = "command=sink&command=7&input=1";
        assert_eq!(
            NodeCommand::from_query(query).unwrap(),
            NodeCommand::Sink { bytes: 7 }
        );
        for wrong in ["", "command=rm", "command=sink", "command=sink&command=x"] {
            assert!(NodeCommand::from_query(wrong).is_err(), "{wrong}");
        }
    }
}

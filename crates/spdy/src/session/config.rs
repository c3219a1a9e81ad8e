//! How a session behaves, and its bounds.

use std::time::Duration;

/// Which end of the connection this is: it decides who has the odd ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Asked for the upgrade to SPDY.
    Client,
    /// Granted it.
    Server,
}

impl Role {
    /// The first id of its streams and of its pings.
    pub(super) fn first_id(self) -> u32 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }
}

/// Whether windows count.
///
/// moby/spdystream, which is every other SPDY in Kubernetes, has none: it sends as
/// fast as TCP takes it, and neither sends nor reads a `WINDOW_UPDATE`. Each one
/// that it is sent waits in a queue that slow readers fill up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowControl {
    /// As soon as the other side has sent `SETTINGS` or a `WINDOW_UPDATE`, and not
    /// before. Ours are announced by `SETTINGS`, once, which moby/spdystream passes
    /// over. A side that has windows and says nothing at all would be stuck, but
    /// there is none.
    #[default]
    Auto,
    /// From the first byte, by the book.
    Always,
    /// Never, and nothing is announced.
    Never,
}

/// How a session behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whether windows count.
    pub flow_control: FlowControl,
    /// How many streams each side may have open: a port-forward has two for each
    /// connection.
    pub max_streams: usize,
    /// How many bytes wait for the reader of a stream: its window, where windows
    /// count. Where they do not, nothing is read from the connection while more
    /// than this waits on any stream.
    pub receive_window: u32,
    /// How many bytes wait to be sent on a stream before its writer has to.
    pub send_queue: usize,
    /// How long the other side has for taking the last frame and ending, too. A
    /// connection that is closed while something is on its way to it may lose what
    /// it sent last, and there is no other way to know that all has been taken.
    pub linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            flow_control: FlowControl::default(),
            max_streams: 1024,
            receive_window: 256 * 1024,
            send_queue: 256 * 1024,
            linger: Duration::from_secs(2),
        }
    }
}

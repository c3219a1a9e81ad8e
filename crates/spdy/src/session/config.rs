//! Configuration and limits of a session.

use std::time::Duration;

/// Which end of the connection this is: the client uses odd ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Requested the upgrade to SPDY.
    Client,
    /// Accepted the upgrade.
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

/// Whether flow control is active.
///
/// moby/spdystream, the only other SPDY implementation in Kubernetes, has none: it sends as
/// fast as TCP allows, and neither sends nor reads a `WINDOW_UPDATE`. Each one that it
/// receives waits in a queue that slow readers fill up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowControl {
    /// As soon as the remote has sent `SETTINGS` or a `WINDOW_UPDATE`, and not before. The
    /// local windows are announced once, in a `SETTINGS` frame that moby/spdystream ignores. A
    /// remote with flow control that announces nothing would block, but none is known.
    #[default]
    Auto,
    /// From the first byte, as the specification says.
    Always,
    /// Never, and nothing is announced.
    Never,
}

/// Configuration of a session.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whether flow control is active.
    pub flow_control: FlowControl,
    /// How many streams each side may have open: a port-forward has two for each connection.
    pub max_streams: usize,
    /// The window of each stream with flow control. Without it, the connection is not read
    /// while more than this many bytes wait on any stream.
    pub receive_window: u32,
    /// How many unsent bytes a stream queues before its writer has to wait.
    pub send_queue: usize,
    /// How long the remote may take to receive the last frame and end the connection. Closing
    /// it while data is in flight to this side may lose the last data of the remote, and there
    /// is no other way to know that everything was received.
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

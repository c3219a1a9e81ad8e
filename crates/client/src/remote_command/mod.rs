//! Commands in pods and port forwarding: the client side of KEP-4006.
//!
//! An [`Executor`] starts a command and returns a [`RemoteProcess`]. There are three:
//! [`WebSocketExecutor`] uses version 5 of the protocol over WebSocket, [`SpdyExecutor`]
//! version 4 over SPDY, and [`FallbackExecutor`] the first where possible and the second
//! otherwise. None of them needs a bridge in front of the server. A [`PortForwarder`] opens
//! streams to the ports of a pod, with the same choice of protocols.
//!
//! Two complete programs follow; they are in `examples`, and the tests run them.
//!
//! # Run a command
//!
//! ```no_run
#![doc = include_str!("../../examples/run_a_command.rs")]
//! ```
//!
//! # Forward a port
//!
//! ```no_run
#![doc = include_str!("../../examples/forward_a_port.rs")]
//! ```

mod disconnect_message;
mod executor;
mod exit_status;
mod keep_alive;
mod port_forward;
mod process;
mod request;
mod spdy;
mod stream_buffers;
mod timer;
mod upgrade;
mod websocket;

pub use executor::{Executor, FallbackExecutor, SpdyExecutor, StartFuture, WebSocketExecutor};
pub use exit_status::{Disconnected, ExitStatus};
pub use keep_alive::KeepAlive;
pub use port_forward::{
    CloseMode, LocalStream, PortForwardOptions, PortForwarder, PortStream, TransportPreference,
};
pub use process::{ProcessOutput, ProcessStdin, RemoteProcess, Resizer, Transport};
pub use request::{AttachRequest, ExecRequest, StreamRequest, escape_component};
pub use skewbridge_remotecommand::port_forward::Port;
pub use skewbridge_remotecommand::{ExitCode, Failure, TerminalSize};

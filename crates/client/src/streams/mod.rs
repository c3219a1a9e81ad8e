//! Commands in pods, and their ports: the client half of KEP-4006.
//!
//! An [`Executor`] starts a command and gives a [`RemoteProcess`]. There are three:
//! [`WebSocketExecutor`] speaks the fifth version of the protocol by WebSocket,
//! [`SpdyExecutor`] the fourth by SPDY, and [`FallbackExecutor`] the one where it can
//! and the other where it must. None of them needs a bridge on the way.

mod disconnect_message;
mod executor;
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
pub use keep_alive::KeepAlive;
pub use port_forward::{
    CloseMode, LocalStream, PortForwardOptions, PortForwarder, PortStream, TransportPreference,
};
pub use process::{
    Disconnected, ExitStatus, ProcessOutput, ProcessStdin, RemoteProcess, Resizer, Transport,
};
pub use request::{AttachRequest, ExecRequest, StreamRequest, escape_component};
pub use skewbridge_channels::port_forward::Port;
pub use skewbridge_channels::{ExitCode, Failure, TerminalSize};

//! Commands in pods, and their ports: the client half of KEP-4006.
//!
//! An [`Executor`] starts a command and gives a [`RemoteProcess`]. There are three:
//! [`WebSocketExecutor`] speaks the fifth version of the protocol by WebSocket,
//! [`SpdyExecutor`] the fourth by SPDY, and [`FallbackExecutor`] the one where it can
//! and the other where it must. None of them needs a bridge on the way.

mod by_spdy;
mod by_websocket;
mod clock;
mod executor;
mod keep_alive;
mod lost;
mod port_forward;
mod process;
mod request;
mod shared;
mod upgrade;

pub use executor::{Executor, FallbackExecutor, SpdyExecutor, Starting, WebSocketExecutor};
pub use keep_alive::KeepAlive;
pub use port_forward::{By, Closing, Local, Manner, PortForwarder, PortStream};
pub use process::{
    Cut, ExitStatus, ProcessOutput, ProcessStdin, RemoteProcess, Resizer, Transport,
};
pub use request::{AttachRequest, ExecRequest, Opening, escaped};
pub use skewbridge_remotecommand::port_forward::Port;
pub use skewbridge_remotecommand::{ExitCode, Failure, TerminalSize};

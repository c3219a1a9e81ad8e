//! Commands in pods, and their ports: the client half of KEP-4006.
//!
//! An [`Executor`] starts a command and gives a [`RemoteProcess`]. There are three:
//! [`WebSocketExecutor`] speaks the fifth version of the protocol by WebSocket,
//! [`SpdyExecutor`] the fourth by SPDY, and [`FallbackExecutor`] the one where it can
//! and the other where it must. None of them needs a bridge on the way.

mod executor;
mod process;
mod request;
mod shared;

pub use executor::{Executor, FallbackExecutor, SpdyExecutor, Starting, WebSocketExecutor};
pub use process::{
    Cut, ExitStatus, ProcessOutput, ProcessStdin, RemoteProcess, Resizer, Transport,
};
pub use request::{AttachRequest, ExecRequest, Opening};

//! Connections as those who pass streams on need them: a byte stream with its two
//! buffers ([`Buffered`]), a WebSocket on it ([`Socket`]), a remote command by SPDY at the
//! end that asks for it ([`Node`]) and at the end that serves it ([`CommandStreams`]), SPDY
//! inside a WebSocket ([`Tunnel`]), fewer system calls below TLS and above it
//! ([`ReadAhead`], [`Gulp`], [`write_sliced`]), and whether
//! the other end still lives: of a WebSocket ([`Pulse`]), and of SPDY ([`Traffic`], what that is
//! told by: [`Passing`], [`Tapped`], and who asks: [`Pings`]).
//!
//! Nothing here has a task of its own: its owner polls it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use std::{future::poll_fn, time::Duration};
//! use bytes::{Bytes, BytesMut};
//! use skewbridge_websocket::Role;
//! use skewbridge_stream_io::{Pulse, Socket};
//! use tokio::time::Instant;
//!
//! let (here, there) = tokio::io::duplex(4096);
//! let pulse = || Pulse::new(Instant::now(), Duration::from_secs(10), Duration::from_secs(5));
//! let mut client = Socket::new(here, BytesMut::new(), Role::Client, pulse());
//! let mut server = Socket::new(there, BytesMut::new(), Role::Server, pulse());
//!
//! client.binary(Bytes::from_static(b"ls"));
//! poll_fn(|cx| client.poll_flush(cx)).await.unwrap();
//! let piece = poll_fn(|cx| server.poll_piece(cx)).await.unwrap();
//! assert_eq!(piece.bytes, "ls");
//! # }
//! ```

mod asked;
mod buffered;
mod command_streams;
mod gulp;
mod node;
mod passing;
mod pings;
mod prefixed;
mod pulse;
mod read_ahead;
mod slices;
mod socket;
mod stall;
mod tapped;
mod traffic;
mod tunnel;

pub use asked::Asked;
pub use buffered::Buffered;
pub use command_streams::CommandStreams;
pub use gulp::Gulp;
pub use node::{Node, Said, Verdict};
pub use passing::{Frame, Passed, Passing};
pub use pings::Pings;
pub use prefixed::Prefixed;
pub use pulse::{Beat, Mark, Pulse};
pub use read_ahead::{READ_AHEAD, ReadAhead};
pub use slices::write_sliced;
pub use socket::{Left, Socket};
pub use stall::Stall;
pub use tapped::{Tap, Tapped};
pub use traffic::{Pace, Say, Traffic};
pub use tunnel::Tunnel;

//! Connections for relaying streams: a byte stream with its two buffers ([`Buffered`]), a
//! WebSocket connection ([`WebSocketConn`]), a remote command over SPDY on the client side
//! ([`SpdyExecClient`]) and on the serving side ([`CommandStreams`]), SPDY inside a WebSocket
//! ([`WebSocketIo`]), fewer system calls below and above TLS ([`ReadAhead`],
//! [`CoalescingReader`], [`write_chunked`]), and
//! keepalive: of a WebSocket
//! ([`WebSocketKeepalive`]) and of SPDY ([`SpdyKeepalive`], fed by [`FrameScanner`] or
//! [`ObservedIo`], acted on by [`SpdyPinger`]).
//!
//! No type of this crate spawns a task: the owner polls.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use std::{future::poll_fn, time::Duration};
//! use bytes::{Bytes, BytesMut};
//! use skewbridge_websocket::Role;
//! use skewbridge_stream_io::{WebSocketKeepalive, WebSocketConn};
//! use tokio::time::Instant;
//!
//! let (local, remote) = tokio::io::duplex(4096);
//! let keepalive = || WebSocketKeepalive::new(Instant::now(), Duration::from_secs(10), Duration::from_secs(5));
//! let mut client = WebSocketConn::new(local, BytesMut::new(), Role::Client, keepalive());
//! let mut server = WebSocketConn::new(remote, BytesMut::new(), Role::Server, keepalive());
//!
//! client.write_binary(Bytes::from_static(b"ls"));
//! poll_fn(|cx| client.poll_flush(cx)).await.unwrap();
//! let chunk = poll_fn(|cx| server.poll_chunk(cx)).await.unwrap();
//! assert_eq!(chunk.bytes, "ls");
//! # }
//! ```

mod buffered;
mod chunked_write;
mod coalescing_reader;
mod command_streams;
mod frame_scanner;
mod observed_io;
mod ping_policy;
mod read_ahead;
mod rewind;
mod spdy_exec_client;
mod spdy_keepalive;
mod spdy_pinger;
mod websocket_conn;
mod websocket_io;
mod websocket_keepalive;
mod write_stall_timer;

pub use buffered::Buffered;
pub use chunked_write::write_chunked;
pub use coalescing_reader::CoalescingReader;
pub use command_streams::CommandStreams;
pub use frame_scanner::{FrameScanner, ScanResult, ScannedFrame};
pub use observed_io::{KeepaliveHandle, ObservedIo};
pub use ping_policy::PingPolicy;
pub use read_ahead::{READ_AHEAD_BYTES, ReadAhead};
pub use rewind::Rewind;
pub use spdy_exec_client::{ExecEvent, ExecResult, SpdyExecClient};
pub use spdy_keepalive::{KeepaliveConfig, SpdyKeepalive, SpdyKeepaliveAction};
pub use spdy_pinger::SpdyPinger;
pub use websocket_conn::{DisconnectReason, WebSocketConn};
pub use websocket_io::WebSocketIo;
pub use websocket_keepalive::{ByteMark, WebSocketKeepalive, WebSocketKeepaliveAction};
pub use write_stall_timer::WriteStallTimer;

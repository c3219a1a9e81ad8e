//! SPDY/3.1 as Kubernetes uses it.
//!
//! exec, attach, cp and port-forward reach nodes over SPDY, which only one library still
//! implements: moby/spdystream. This crate follows SPDY/3.1 and works with that library, which
//! does not: it has no flow control, does not require headers, drops data of streams that are
//! not accepted yet, and reads nothing after a `GOAWAY`.
//!
//! There are three layers, each usable by itself: frames and their [`Decoder`], a [`Session`]
//! with its streams (both without I/O), and a [`connection`] on tokio.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use skewbridge_spdy::{Config, Headers, connection};
//!
//! let (local, remote) = tokio::io::duplex(4096);
//! let (client, _, client_driver) = connection::client(local, Config::default());
//! let (_server, mut incoming, server_driver) = connection::server(remote, Config::default());
//! tokio::spawn(client_driver);
//! tokio::spawn(server_driver);
//!
//! let mut stdin = client.open(Headers::new().with("streamtype", "stdin")).unwrap();
//! let request = incoming.next().await.unwrap();
//! assert_eq!(request.headers().get("streamtype"), Some("stdin"));
//! let mut accepted = request.accept(Headers::new()).unwrap();
//!
//! stdin.accepted().await.unwrap();
//! stdin.sender.write("hello".into()).await.unwrap();
//! stdin.sender.finish().unwrap();
//! assert_eq!(accepted.receiver.read().await.unwrap(), Some("hello".into()));
//! assert_eq!(accepted.receiver.read().await.unwrap(), None);
//! # }
//! ```

mod bytes_list;
pub mod connection;
mod decoder;
mod dictionary;
mod error;
pub mod frame;
mod header_block;
mod headers;
mod session;

pub use decoder::Decoder;
pub use error::{Closed, Error, OpenError, StreamError};
pub use header_block::{
    Compressor, Decompressor, HeaderBlockError, MAX_BLOCK_BYTES, MAX_COMPRESSED_BYTES,
    MAX_SENT_BYTES,
};
pub use headers::{Headers, MAX_HEADERS};
pub use session::{
    Config, Event, FlowControl, Half, Layout, OpenOptions, Role, SendBuffer, Session,
};

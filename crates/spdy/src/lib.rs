//! SPDY/3.1 as Kubernetes speaks it.
//!
//! exec, attach, cp and port-forward end at nodes in SPDY, a protocol that only one
//! library still has: moby/spdystream. So what is written here holds to SPDY/3.1
//! and gets along with that library, which does not: it knows no windows, misses no
//! headers, drops data of streams that are not answered, and reads nothing after a
//! `GOAWAY`.
//!
//! There are three layers, each usable by itself: frames and their [`Decoder`], a
//! [`Session`] with its streams (both without I/O), and a [`connection`] on tokio.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use skewbridge_spdy::{Config, Headers, connection};
//!
//! let (here, there) = tokio::io::duplex(4096);
//! let (client, _, client_driver) = connection::client(here, Config::default());
//! let (_server, mut incoming, server_driver) = connection::server(there, Config::default());
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

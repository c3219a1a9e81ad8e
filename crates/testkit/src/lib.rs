//! Certificates, stand-in servers and clients for the tests of the other crates.
//!
//! Everything listens on a free port of 127.0.0.1, every task ends with the value that
//! started it, and nothing sleeps: tests wait for conditions. What cannot be set up panics,
//! because the only callers are tests.
//!
//! ```
//! use skewbridge_testkit::{ApiServer, Ca, Options, Reply, get};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let ca = Ca::new("cluster");
//! let options = Options::new(ca.server(&["localhost", "127.0.0.1"]));
//! let server = ApiServer::start(options, |_seen| Reply::json(r#"{"major":"1"}"#)).await;
//!
//! let answer = get(server.addr(), &ca, "/version").await;
//! assert_eq!(answer.status, 200);
//! assert_eq!(server.requests()[0].target, "/version");
//! # });
//! ```
// A stand-in that cannot be built is a failed test: panicking is how this crate reports.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod client;
mod der;
mod eventually;
pub mod files;
pub mod h2frames;
mod h2io;
mod memory;
pub mod pki;
pub mod pods;
mod second_user;
mod soft_token;
mod stopwatch;
mod task;
mod terminal;
pub mod upstream;
mod wire;

pub use client::{H1Client, H2Client, H2Stream, Response, TlsClient, get};
pub use eventually::{PATIENCE, eventually};
pub use files::{KubeletStyleVolume, ScratchDir};
pub use memory::occurrences;
pub use pki::{Ca, ClientAuth, Leaf, Validity};
pub use pods::{Grant, Pods};
pub use second_user::second_user;
pub use soft_token::{SoftToken, TokenPublicKey};
pub use stopwatch::Stopwatch;
pub use terminal::Terminal;
pub use upstream::{ApiServer, BodySender, Options, RawConn, RawServer, Reply, Seen, SilentPort};

/// A TLS connection over TCP, of either side, that can be read by lines as well as by bytes.
pub type Connection = tokio::io::BufReader<tokio_rustls::TlsStream<tokio::net::TcpStream>>;

//! Certificates, fake servers and clients for the tests of the other crates.
//!
//! Servers listen on a free port of 127.0.0.1, tasks end with the value that started them, and
//! tests wait for conditions instead of sleeping. Failed setup panics, because the only callers
//! are tests.
//!
//! ```
//! use skewbridge_testkit::{ApiServer, Ca, Options, Reply, get};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let ca = Ca::new("cluster");
//! let options = Options::new(ca.server(&["localhost", "127.0.0.1"]));
//! let server = ApiServer::start(options, |_request| Reply::json(r#"{"major":"1"}"#)).await;
//!
//! let response = get(server.addr(), &ca, "/version").await;
//! assert_eq!(response.status, 200);
//! assert_eq!(server.requests()[0].target, "/version");
//! # });
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod client;
mod der;
mod eventually;
pub mod files;
mod h1_codec;
pub mod h2frames;
mod h2io;
mod memory;
pub mod pki;
pub mod pods;
pub mod protocols;
pub mod proxy_suites;
mod soft_token;
mod stopwatch;
mod task;
mod terminal;
mod unprivileged_user;
pub mod upstream;

pub use client::{H1Client, H2Client, H2Stream, Response, TlsClient, get};
pub use eventually::{TEST_TIMEOUT, eventually};
pub use files::{KubeletStyleVolume, ScratchDir};
pub use memory::count_in_memory;
pub use pki::{Ca, ClientAuth, Leaf, Validity};
pub use pods::{Pods, UpgradeResponse};
pub use soft_token::{SoftToken, TokenPublicKey};
pub use stopwatch::Stopwatch;
pub use terminal::Terminal;
pub use unprivileged_user::unprivileged_user;
pub use upstream::{
    ApiServer, BodySender, Options, RecordedRequest, Reply, ReservedPort, ScriptedConn,
    ScriptedServer,
};

/// A TLS connection over TCP, of either side, readable by lines and by bytes.
pub type Connection = tokio::io::BufReader<tokio_rustls::TlsStream<tokio::net::TcpStream>>;

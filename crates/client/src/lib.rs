//! From a kubeconfig to a connection with a kube-apiserver.
//!
//! [`Kubeconfig`] is read as kubectl reads it, a [`Target`] is what one of its
//! contexts comes to, an [`Endpoint`] has everything that a connection needs (files
//! are read, credential plugins have run), and a [`Connection`] carries one
//! request after the other in HTTP/1.1, or becomes a raw stream after an upgrade.
//!
//! ```no_run
//! use std::time::Duration;
//! use skewbridge_client::{Endpoint, Kubeconfig, Request};
//!
//! # async fn example() -> Result<(), skewbridge_client::Error> {
//! let config = Kubeconfig::load(None)?;
//! let target = config.target(None)?;
//! let endpoint = Endpoint::prepare(&target, Some(Duration::from_secs(30))).await?;
//! let mut connection = endpoint.connect().await?;
//! let version = connection.send(&Request::get("/version")).await?;
//! println!("{}", String::from_utf8_lossy(&version.body));
//! # Ok(())
//! # }
//! ```
//!
//! Above that, [`streams`] has commands in pods and connections to their ports: an
//! [`Executor`] gives a [`RemoteProcess`], and a [`PortForwarder`] streams. [`copy`] has
//! files and trees, to pods, from pods and between them. Three complete programs follow;
//! they are in `examples`, and the tests run them.
//!
//! # Run a command
//!
//! ```no_run
#![doc = include_str!("../examples/run_a_command.rs")]
//! ```
//!
//! # Copy a file
//!
//! ```no_run
#![doc = include_str!("../examples/copy_a_file.rs")]
//! ```
//!
//! # Forward a port
//!
//! ```no_run
#![doc = include_str!("../examples/forward_a_port.rs")]
//! ```

mod address;
mod ca_roots;
pub mod connection;
pub mod copy;
mod credential;
mod dial;
mod endpoint;
mod error;
pub mod exec;
pub mod kubeconfig;
mod opened_stream;
mod proxy;
mod proxy_route;
mod secret;
mod socks;
pub mod streams;
mod tcp;
mod tls;

pub use ca_roots::CaRoots;
pub use connection::{Connection, Request, Response, Stream};
pub use dial::Dialer;
pub use endpoint::{Endpoint, Timeouts};
pub use error::{Entry, Error, ErrorResponse};
pub use kubeconfig::{Kubeconfig, Target};
pub use opened_stream::OpenedStream;
pub use secret::Secret;
pub use streams::{
    AttachRequest, ExecRequest, Executor, ExitStatus, FallbackExecutor, PortForwarder,
    RemoteProcess, SpdyExecutor, WebSocketExecutor,
};

//! A client for kube-apiserver: kubeconfig, connections, commands in pods, copies.
//!
//! A [`Kubeconfig`] is loaded as kubectl does it. A [`Target`] is one of its contexts with its
//! cluster and user. An [`Endpoint`] has everything that a connection needs: files have been
//! read, credential plugins have run. A [`Connection`] carries one HTTP/1.1 request after the
//! other, or becomes a raw stream after an upgrade.
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
//! On top of that, [`streams`] runs commands in pods and forwards their ports: an [`Executor`]
//! starts a [`RemoteProcess`], and a [`PortForwarder`] opens streams to ports. [`copy`] copies
//! files and trees to pods, from pods and between pods. Three complete programs follow; they
//! are in `examples`, and the tests run them.
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
pub mod byte_stream;
mod ca_roots;
mod connection;
pub mod copy;
mod credential;
mod dial;
mod endpoint;
mod error;
pub mod exec;
pub mod kubeconfig;
mod opened_stream;
pub mod private_dir;
mod proxy;
mod proxy_route;
mod socks;
pub mod streams;
mod tcp;
mod tls;

pub use byte_stream::Stream;
pub use ca_roots::CaRoots;
pub use connection::{Connection, Request, Response};
pub use dial::Dialer;
pub use endpoint::{Endpoint, Timeouts};
pub use error::{Entry, Error, ErrorResponse};
pub use kubeconfig::{Kubeconfig, Target};
pub use opened_stream::OpenedStream;
pub use skewbridge_k8s_api::secret::Secret;
pub use streams::{
    AttachRequest, ExecRequest, Executor, ExitStatus, FallbackExecutor, PortForwarder,
    RemoteProcess, SpdyExecutor, WebSocketExecutor,
};

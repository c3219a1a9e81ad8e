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
//! [`Executor`] gives a [`RemoteProcess`], and a [`PortForwarder`] streams. Complete
//! programs are in `examples`.
//!
//! ```no_run
//! use skewbridge_client::{Endpoint, ExecRequest, Executor, FallbackExecutor, Kubeconfig};
//!
//! # async fn example() -> Result<(), skewbridge_client::Error> {
//! let target = Kubeconfig::load(None)?.target(None)?;
//! let executor = FallbackExecutor::new(Endpoint::prepare(&target, None).await?);
//! let request = ExecRequest {
//!     namespace: "default".to_owned(),
//!     pod: "web".to_owned(),
//!     command: vec!["date".to_owned()],
//!     stdout: true,
//!     ..ExecRequest::default()
//! };
//! let mut process = executor.start(&request).await?;
//! if let Some(mut stdout) = process.stdout.take() {
//!     while let Ok(Some(piece)) = stdout.piece().await {
//!         print!("{}", String::from_utf8_lossy(&piece));
//!     }
//! }
//! println!("{:?}", process.wait().await);
//! # Ok(())
//! # }
//! ```

mod address;
pub mod connection;
pub mod copy;
mod credential;
mod dial;
mod endpoint;
mod error;
pub mod exec;
pub mod kubeconfig;
mod proxy;
mod secret;
mod socks;
pub mod streams;
mod tcp;
mod tls;

pub use connection::{Connection, Request, Response, Stream};
pub use dial::Dialer;
pub use endpoint::{Endpoint, Limits};
pub use error::{Entry, Error, Refusal};
pub use kubeconfig::{Kubeconfig, Target};
pub use secret::Secret;
pub use streams::{
    AttachRequest, ExecRequest, Executor, ExitStatus, FallbackExecutor, PortForwarder,
    RemoteProcess, SpdyExecutor, WebSocketExecutor,
};

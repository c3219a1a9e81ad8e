//! A client for kube-apiserver, in layers. Each module is a library of its own and uses only the
//! modules below it in this table; its page has an example.
//!
//! | module | what it does |
//! |---|---|
//! | [`copy`] | copies files and trees to pods, from pods and between pods |
//! | [`remote_command`] | runs commands in pods, attaches to them and forwards their ports |
//! | [`api_server`] | sends HTTP/1.1 requests to the API server of a context |
//! | [`exec_plugin`] | credential plugins, including those that proxy requests (KEP-2718) |
//! | [`transport`] | byte streams to an address: TCP, proxies, TLS |
//! | [`kubeconfig`] | finds and reads kubeconfigs as kubectl does |
//!
//! The types that all users of the crate need are at its root as well: [`Kubeconfig`],
//! [`Target`], [`Endpoint`], [`Connection`], [`Request`], [`Response`], [`Stream`], [`Secret`],
//! and [`Error`] with [`Entry`] and [`ErrorResponse`]. [`copy`] has an error type of its own,
//! which wraps this one.
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

pub mod api_server;
pub mod copy;
mod error;
pub mod exec_plugin;
pub mod kubeconfig;
pub mod remote_command;
pub mod transport;

pub use api_server::{Connection, Endpoint, Request, Response};
pub use error::{Entry, Error, ErrorResponse};
pub use kubeconfig::{Kubeconfig, Target};
pub use skewbridge_k8s_api::secret::Secret;
pub use transport::Stream;

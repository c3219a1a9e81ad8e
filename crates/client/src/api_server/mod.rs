//! HTTP/1.1 requests to the API server of a kubeconfig's context.
//!
//! An [`Endpoint`] has everything that a connection needs: files have been read, and the
//! credential plugin has run. A [`Connection`] carries one request after the other, or becomes a
//! raw stream after an upgrade. [`Endpoint::open`] is for callers with an HTTP implementation of
//! their own.
//!
//! ```no_run
//! use std::time::Duration;
//! use skewbridge_client::api_server::{Endpoint, Request};
//! use skewbridge_client::kubeconfig::Kubeconfig;
//!
//! # async fn example() -> Result<(), skewbridge_client::Error> {
//! let target = Kubeconfig::load(None)?.target(None)?;
//! let endpoint = Endpoint::prepare(&target, Some(Duration::from_secs(30))).await?;
//! let version = endpoint.send(&Request::get("/version")).await?;
//! println!("{}", String::from_utf8_lossy(&version.body));
//! # Ok(())
//! # }
//! ```

mod connection;
mod credential;
mod endpoint;
mod opened_stream;

pub use connection::{Connection, Request, Response};
pub use endpoint::{Endpoint, Timeouts};
pub use opened_stream::OpenedStream;

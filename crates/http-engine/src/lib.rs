//! HTTP/1.1 and HTTP/2 for proxies: one place for framing, limits, the rules against request
//! smuggling, retries and tunnels.
//!
//! - [`http1`]: messages of HTTP/1.1 without I/O.
//! - [`server`]: serves one client connection in front of a [`server::Service`].
//! - [`client`]: pooled connections to one server, opened by a [`client::Connector`].
//! - [`body`]: bodies of requests and responses as frames.
//! - [`buffer_budget`], [`header_bounds`]: how much a client may have the process hold.
//! - [`drain`]: graceful shutdown.
//! - [`tunnel`]: bytes both ways after `101 Switching Protocols`.
//! - [`http_connect`]: a tunnel through an HTTP proxy.
//! - [`error_response`]: a `metav1.Status` as a response.
//!
//! Its users choose what differs: how connections are opened, what is counted and logged, which
//! clients have authenticated. The gateway, the exec-proxy harness, `skewbridge run`, the client
//! and the fake cluster use it.

pub mod body;
pub mod buffer_budget;
pub mod byte_stream;
pub mod client;
pub mod drain;
pub mod error_response;
pub mod header_bounds;
pub mod http1;
pub mod http_connect;
pub mod http_date;
pub mod http_message;
pub mod server;
pub mod tunnel;

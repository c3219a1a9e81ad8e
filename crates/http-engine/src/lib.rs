//! An HTTP/1.1 and HTTP/2 engine for proxies: framing, limits, protection against request
//! smuggling, retries and tunnels.
//!
//! - [`http1`]: HTTP/1.1 messages without I/O.
//! - [`server`]: serves one client connection in front of a [`server::Service`].
//! - [`client`]: pooled connections to one server, opened by a [`client::Connector`].
//! - [`body`]: bodies of requests and responses as frames.
//! - [`buffer_budget`], [`header_bounds`]: limits on the memory that clients can use.
//! - [`drain`]: graceful shutdown.
//! - [`tunnel`]: bidirectional copy after `101 Switching Protocols`.
//! - [`http_connect`]: a tunnel through an HTTP proxy.
//! - [`error_response`]: a `metav1.Status` as a response.
//!
//! The traits are the extension points: opening connections, metrics and logs, client
//! authentication. The gateway, `exec-proxy`, `skewbridge run`, the client and the fake cluster use
//! it.
//!
//! ```
//! use http::{Request, Response};
//! use skewbridge_http_engine::body::{RequestBody, ResponseBody};
//! use skewbridge_http_engine::drain::Drain;
//! use skewbridge_http_engine::server::{ClientIo, ClientResponse, ClientTimeouts, Service, h1};
//!
//! /// Answers each request with its path.
//! #[derive(Clone)]
//! struct Echo;
//!
//! impl Service for Echo {
//!     type Record = ();
//!
//!     async fn call(&self, request: Request<RequestBody>) -> ClientResponse {
//!         let path = request.uri().path().to_owned();
//!         ClientResponse::new(Response::new(ResponseBody::full(path.into())))
//!     }
//! }
//!
//! async fn connection(tcp: tokio::net::TcpStream, timeouts: ClientTimeouts) {
//!     h1::serve(ClientIo::Plain(tcp), Echo, timeouts, Drain::never()).await;
//! }
//! ```

pub mod body;
pub mod buffer_budget;
pub mod byte_stream;
pub mod client;
pub mod close_connection;
pub mod drain;
pub mod error_response;
pub mod header_bounds;
pub mod http1;
pub mod http_connect;
pub mod http_date;
pub mod message_headers;
pub mod server;
pub mod tunnel;

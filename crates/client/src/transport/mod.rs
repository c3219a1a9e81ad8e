//! Byte streams to an address: TCP, directly or through a proxy (HTTP CONNECT, SOCKS5), and TLS.
//!
//! A [`Dialer`] opens them for one server. [`CaRoots`] selects which certificates are trusted. This
//! layer does not authenticate and does not know HTTP requests: an
//! [`Endpoint`](crate::api_server::Endpoint) does.
//!
//! ```no_run
//! use skewbridge_client::transport::{CaRoots, Dialer};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let proxy = Some("socks5://127.0.0.1:1080");
//! let dialer = Dialer::new("https://10.0.0.1:6443", proxy, CaRoots::System)?;
//! let tcp = dialer.dial().await?;
//! # drop(tcp);
//! # Ok(())
//! # }
//! ```

mod address;
mod authorization;
mod byte_stream;
mod ca_roots;
mod dial;
mod proxy;
mod proxy_route;
mod socks;
mod tcp;
mod tls;

pub(crate) use address::{Address, Scheme};
pub(crate) use authorization::{
    basic_value, bearer_header, bearer_value, is_valid_header_value, secret_header,
};
pub(crate) use byte_stream::StreamWithGuard;
pub use byte_stream::{ByteStream, Stream};
pub use ca_roots::CaRoots;
pub use dial::Dialer;
pub(crate) use proxy::Proxy;
pub(crate) use proxy_route::{ProxyRoute, TlsTarget};
pub(crate) use tcp::connect as connect_tcp;
pub(crate) use tls::{
    ALPN_HTTP1, Certificate, ServerTrust, config as tls_config, connector as tls_connector,
    explain as explain_tls_error, handshake_error,
};

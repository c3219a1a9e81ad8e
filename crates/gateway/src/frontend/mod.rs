//! Accepts client connections, assigns a slot and a worker, and serves them over TLS.

pub(crate) mod handshake;
pub(crate) mod listener;
mod plain_http;
pub(crate) mod proxy_header;
pub(crate) mod worker;

//! Client connections: accepted, given a slot and a worker, and served over TLS.

pub(crate) mod listener;
mod plain_http;
pub(crate) mod worker;

//! TLS to clients and servers: key pairs, CA bundles and verification.

pub mod ca_conflict;
pub mod ca_overlap;
pub mod files;
pub mod own_certificates;
mod server;
pub mod timed_roots;

pub use server::{client_config, is_fips, server_config};
pub(crate) mod serving_key;

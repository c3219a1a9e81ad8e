//! TLS on both legs: what the bridge shows, whom it believes, and reading the
//! files again when they change.

pub mod ca_overlap;
pub mod files;
pub mod own_certificates;
pub mod reload;
mod server;
pub mod timed_roots;

pub use server::{client_config, server_config};
pub(crate) mod serving_key;

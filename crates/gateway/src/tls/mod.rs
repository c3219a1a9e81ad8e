//! TLS on both legs: what the bridge shows, whom it believes, and reading the
//! files again when they change.

pub mod material;
pub mod reload;
mod server;

pub use server::{client_config, server_config};

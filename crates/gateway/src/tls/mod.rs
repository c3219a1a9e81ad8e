//! TLS on both legs: what the bridge shows, whom it believes, and reading the
//! files again when they change.

pub mod material;
mod read_ahead;
pub mod reload;
mod server;

pub(crate) use read_ahead::READ_AHEAD;
pub use read_ahead::ReadAhead;
pub use server::{client_config, server_config};

//! The gateway beside one kube-apiserver.
//!
//! A request flows through modules that are read in this order:
//! [`listener`](crate::config::Listen) accepts, [`tls`] meets the client,
//! [`caller`] recognises it, `skewbridge_api::request_info` understands what it
//! asks, [`route`] decides where that goes, `local` or `peer` takes it there over
//! [`upstream`]'s connections, and `respond` answers where nobody else does. What
//! `route` knows of the other servers is in [`cluster`], and learnt by `peering`.
//!
//! ```no_run
//! # use skewbridge_gateway::{Error, config::Config};
//! # fn example(config: &Config) -> Result<(), Error> {
//! // Serves until it is told to stop (SIGTERM or SIGINT), and drains.
//! skewbridge_gateway::run(config)?;
//! # Ok(())
//! # }
//! ```

mod admin;
mod authentication_limit;
pub mod body;
mod bridge;
mod buffer_budget;
pub mod caller;
mod client_connection;
pub mod cluster;
pub mod config;
mod connection_metrics;
mod connection_slots;
mod date;
mod debug_peers;
mod discovery_metrics;
pub mod drain;
mod envoy;
pub mod flow;
mod gzip;
mod header_bounds;
mod header_metrics;
pub mod health;
mod listener;
mod local;
pub mod local_identity;
mod log_budget;
pub mod membership;
pub mod metrics;
mod openapi;
mod own;
mod peer;
mod peer_metrics;
mod peering;
mod plain_http;
mod probe;
mod process_metrics;
pub mod record;
mod respond;
pub mod route;
pub mod self_test;
pub mod serve;
pub mod signatures;
mod source_network;
mod streams;
pub mod tls;
mod tunnel;
pub mod upstream;
mod upstream_problem;
pub mod view;
mod watch;
mod worker;

pub use bridge::{Error, Handle, run, start};

//! The gateway beside one kube-apiserver.
//!
//! A request passes these modules in this order: [`listener`](crate::config::Listen) accepts
//! the connection, [`tls`] and [`serve`] read the request, [`authn`] authenticates the caller,
//! `skewbridge_k8s_api::request_info` parses the target, [`routing`] decides which server gets the
//! request, `forward_local` or `forward_peer` sends it over connections of [`upstream`], and
//! `error_response` turns failures into a `metav1.Status`. [`cluster_state`] holds what is known
//! of the other servers; `peer_controller` maintains it.
//!
//! ```no_run
//! # use skewbridge_gateway::{Error, config::Config};
//! # fn example(config: &Config) -> Result<(), Error> {
//! // Serves until it is told to stop (SIGTERM or SIGINT), and drains.
//! skewbridge_gateway::run(config)?;
//! # Ok(())
//! # }
//! ```

pub mod access_log;
mod admin;
mod authentication_limit;
pub mod authn;
pub mod body;
mod buffer_budget;
mod client_connection;
pub mod cluster_state;
pub mod config;
mod connection_metrics;
mod connection_slots;
mod date;
mod debug_peers;
mod discovery_metrics;
pub mod discovery_view;
pub mod drain;
mod error_response;
mod forward_local;
mod forward_peer;
mod gzip;
pub mod handler;
mod header_bounds;
mod header_metrics;
pub mod health;
mod internal_client;
mod listener;
pub mod local_identity;
mod log_budget;
pub mod metrics;
mod openapi;
pub mod peer_config;
mod peer_controller;
mod peer_metrics;
mod plain_http;
mod process_metrics;
mod request_context;
pub mod routing;
pub mod self_test;
pub mod serve;
mod server;
pub mod signatures;
mod source_network;
mod streams;
pub mod tls;
mod tunnel;
pub mod upstream;
mod upstream_probe;
mod upstream_problem;
mod watch_drain;
mod worker;

pub use server::{Error, Handle, run, start};

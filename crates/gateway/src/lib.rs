//! The gateway in front of one kube-apiserver, or of several.
//!
//! A request passes these modules in this order: `frontend` accepts the connection, [`tls`] and
//! `http-engine` read the request, [`authn`] authenticates the caller,
//! `skewbridge_k8s_api::request_info` parses the target, [`routing`] decides which server gets the
//! request, `proxy` sends it over connections of [`upstream`], and `error_response` turns failures
//! into a `metav1.Status`. [`cluster_state`] holds what is known of the other servers; `control`
//! maintains it. Modules depend on each other in one direction only: `cargo xtask layers` prints
//! the layers.
//!
//! ```no_run
//! # use skewbridge_gateway::{Error, config::Config};
//! # fn example(config: &Config) -> Result<(), Error> {
//! // Serves until SIGTERM or SIGINT, then drains.
//! skewbridge_gateway::run(config)?;
//! # Ok(())
//! # }
//! ```

pub mod access_log;
mod activity;
mod admin;
pub mod admission_guard;
mod authentication_limit;
pub mod authn;
mod backend_load;
mod balancer;
mod bridge_headers;
mod client_connection;
pub mod cluster_state;
pub mod config;
mod connection_slots;
mod control;
pub mod discovery_view;
mod error_response;
pub mod field_guard;
mod frontend;
mod gzip;
pub mod health;
mod leaders;
pub mod live_config;
pub mod local_health;
pub mod local_identity;
mod log_budget;
pub mod metrics;
mod openapi;
pub mod peer_config;
pub mod placement_rule;
mod proxy;
pub mod proxy_protocol;
mod request_class;
pub mod routing;
pub mod self_test;
mod server;
mod server_report;
pub mod signatures;
mod source_network;
mod state;
pub mod status;
mod stream_kind;
mod streams;
mod tcp;
pub mod tls;
pub mod upstream;
mod upstream_error_hint;
pub mod vanishing;
mod watch_drain;

pub use server::{Error, Handle, run, start};

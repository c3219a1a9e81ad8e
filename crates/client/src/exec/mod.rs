//! Credential plugins: programs that print an `ExecCredential`
//! (`client.authentication.k8s.io`), and those that proxy our requests (KEP-2718).
//!
//! A plugin is one program for one user at one cluster. It is run when it is
//! needed first, once for all who need it at that moment, and again when what it gave
//! has expired, was refused, or nobody listens where it said. What it gave is a credential
//! for the cluster, or the way to a proxy that has one.

mod connection_credential;
mod deadline;
mod exec_info;
mod feature_gate;
mod lock_file;
mod metrics;
mod plugin;
mod plugin_cache;
mod plugin_output;
mod process;
mod proxy_connector;
mod runtime_dir;
mod stderr_capture;
mod terminal_guard;

pub use connection_credential::ConnectionCredential;
pub use exec_info::reserve_stdin;
pub(crate) use feature_gate::FeatureGate;
pub use metrics::{
    CallStatus, ExecCallLabels, proxy_calls as proxy_call_counter, register as register_metrics,
};
pub(crate) use plugin::{Direct, IssuedCredential, Plugin, Route};
pub(crate) use plugin_cache::shared_plugin;
pub use process::PLUGIN_TIMEOUT;
pub(crate) use proxy_connector::{ProxyConnectError, ProxyConnector};
pub use runtime_dir::runtime_directories;

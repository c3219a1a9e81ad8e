//! Credential plugins: programs that print an `ExecCredential`
//! (`client.authentication.k8s.io`), including those that proxy our requests (KEP-2718).
//!
//! A plugin is one program for one user at one cluster. It runs when a credential is first
//! needed, once for all concurrent callers. It runs again when its credential has expired or
//! was answered with 401, or when its proxy does not listen any more. Its output is a
//! credential for the cluster, or the address of a proxy that has one.

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

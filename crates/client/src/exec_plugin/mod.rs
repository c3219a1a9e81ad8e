//! Credential plugins: programs that print an `ExecCredential`
//! (`client.authentication.k8s.io`), including those that proxy requests (KEP-2718).
//!
//! A plugin is one program for one user at one cluster. It runs when a credential is first
//! needed, once for all concurrent callers. It runs again when its credential has expired or
//! was answered with 401, or when its proxy does not listen any more. Its output is a
//! credential for the cluster, or the address of a proxy that has one.
//!
//! An [`Endpoint`](crate::Endpoint) runs the plugin of its user. A stream that it opens has a
//! [`ConnectionCredential`], which shows whether the stream may be used for further requests:
//!
//! ```no_run
//! use skewbridge_client::Endpoint;
//! use skewbridge_client::exec_plugin::register_metrics;
//!
//! # async fn example(
//! #     endpoint: Endpoint,
//! #     registry: &mut prometheus_client::registry::Registry,
//! # ) -> Result<(), skewbridge_client::Error> {
//! register_metrics(registry);
//! let opened = endpoint.open(&[b"h2".to_vec()]).await?;
//! let headers = endpoint.credential_headers().await?;
//! // After the cluster has answered 401 to a request with these headers:
//! if let Some(credential) = &opened.credential {
//!     credential.mark_unauthorized(&headers);
//!     assert!(!credential.is_valid());
//! }
//! # Ok(())
//! # }
//! ```

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

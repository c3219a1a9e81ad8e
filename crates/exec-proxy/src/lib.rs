//! SDK for plugins of the client executable proxy (KEP-2718). The plugin adds only the credential.
//!
//! A plugin changes requests ([`RequestModifier`]), or authenticates in the TLS handshake
//! ([`ClientKey`]), or both. [`ExecProxy`] does the rest: it listens on a socket that only this
//! user can reach and for which only the client has a certificate, prints the `ExecCredential` on
//! standard output, and ends when the client exits, after an idle timeout or on a signal. Keys
//! are in memory only.
//!
//! [`forward`] is the HTTP engine below it, for other listeners and other upstreams.
//!
//! ```no_run
//! use skewbridge_exec_proxy::{ExecInfo, ExecProxy};
//!
//! # async fn example() -> Result<(), skewbridge_exec_proxy::Error> {
//! // A plugin that forwards all requests unchanged.
//! let exec_info = ExecInfo::from_environment()?;
//! ExecProxy::new().run(&exec_info).await?;
//! # Ok(())
//! # }
//! ```

mod client_key;
mod client_lock_watcher;
mod cluster;
mod ephemeral_ca;
mod error;
mod exec_info;
mod exec_proxy;
pub mod forward;
mod modifier;
mod same_file;
mod shared_instance;
mod shutdown_watcher;
mod signals;
mod socket;
mod stdio;

pub use client_key::{Certificate, ClientKey, KeyError};
pub use cluster::Cluster;
pub use ephemeral_ca::{ClientIdentity, EphemeralCa};
pub use error::Error;
pub use exec_info::ExecInfo;
pub use exec_proxy::{ExecProxy, IDLE_TIMEOUT};
pub use modifier::{ModifyError, NeedsBody, Outgoing, RequestModifier};
pub use shared_instance::InstancePath;
pub use shutdown_watcher::{LockFile, ShutdownReason, ShutdownWatcher};
pub use signals::{IgnoredSignals, SignalStream};
pub use socket::Listen;

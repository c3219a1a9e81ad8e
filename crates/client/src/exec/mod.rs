//! Credential plugins: programs that print an `ExecCredential`
//! (`client.authentication.k8s.io`), and those that proxy our requests (KEP-2718).
//!
//! A plugin is one program for one user at one cluster. It is run when it is
//! needed first, once for all who need it at that moment, and again when what it gave
//! has expired, was refused, or nobody listens where it said. What it gave is a credential
//! for the cluster, or the way to a proxy that has one.

mod answer;
mod calls;
mod deadline;
mod gate;
mod known;
mod lent_terminal;
mod lock;
mod plugin;
mod process;
mod question;
mod runtime_dir;
mod said;
mod shown;
mod wire;

pub use calls::{
    CallStatus, ExecCall, register as register_metrics, with_proxy as calls_with_proxy,
};
pub(crate) use gate::Gate;
pub(crate) use known::plugin_of;
pub(crate) use plugin::{Issued, Plugin, Straight, Way};
pub use process::PLUGIN_PATIENCE;
pub use question::stdin_is_taken;
pub use runtime_dir::runtime_directories;
pub use shown::Shown;
pub(crate) use wire::{Refused, Wire};

//! Plugins that proxy requests (KEP-2718), over loopback: each sentence of the KEP's design
//! about the client, and faults. `crates/exec-proxy/KEP-2718.md` has the table.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod caching;
mod client_process;
mod faults;
#[path = "../support/exec_plugin.rs"]
mod fixture;
mod memory;
mod plugin_process;
mod proxying;
mod shutdown;
mod without_proxy;

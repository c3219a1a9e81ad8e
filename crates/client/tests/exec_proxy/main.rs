//! Plugins that proxy requests (KEP-2718), over loopback: each sentence of the KEP's
//! design that is about the client, and what goes wrong. `crates/harness/KEP-2718.md` has
//! the table.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod caching;
mod client_process;
mod faults;
mod memory;
mod ordinary;
mod plugin_process;
mod proxying;
mod shutdown;
mod stage;

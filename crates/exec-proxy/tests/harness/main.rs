//! The harness over loopback: the engine between stand-ins, and what is around it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod engine;
mod keys;
mod proxies;
mod rig;
mod upgrades;
mod users;

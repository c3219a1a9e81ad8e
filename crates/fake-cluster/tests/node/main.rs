//! The node alone: running pods and streams to them, without a server in between.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod commands;
mod lifecycle;
mod logs;
#[path = "../support/node_fixture.rs"]
mod node_fixture;
mod ports;

//! The forwarder of a plugin over loopback, between a client and a fake API server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client_keys;
mod connection_limits;
#[path = "../support/forwarder_fixture.rs"]
mod forwarder_fixture;
mod forwarding;
mod proxies;
mod proxy_suites;
mod upgrades;

//! A bridge over loopback, in front of fake API servers and scripted upstreams. All suites are
//! one test binary: linking one binary per suite would take longer than running them.
#![allow(clippy::unwrap_used, clippy::expect_used)] // fixtures are test code too

mod admin;
mod authentication;
mod authentication_limit;
mod bodies;
mod buffered_memory;
mod component_versions;
mod connection_sharing;
mod connection_slots;
mod direct_servers;
mod egress;
mod errors;
mod expect_continue;
mod forwarding;
mod header_limits;
mod identities;
mod limits;
mod merged_discovery;
mod peer_admin;
mod peer_discovery;
mod peer_faults;
mod peer_file;
mod peer_health;
mod peer_records;
mod peer_serving_keys;
mod peer_skew;
mod peers;
mod port_forward_pings;
mod proxy_suites;
mod reload;
mod retries;
mod self_test;
mod shutdown;
mod signatures;
mod smuggling;
mod spdy_to_websocket;
mod spoofing;
mod stream_ends;
mod stream_pings;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod unresponsive_peers;
mod upgrades;
mod websocket_to_spdy;

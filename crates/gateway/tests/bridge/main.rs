//! A bridge over loopback, before stand-ins that behave and misbehave. One program:
//! each is a link of everything.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod admin;
mod bed;
mod bodies;
mod by_spdy;
mod callers;
mod claims;
mod cluster;
mod egress;
mod either;
mod errors;
mod expect_continue;
mod forward_pings;
mod forwarding;
mod limits;
mod peer_admin;
mod peer_discovery;
mod peer_faults;
mod peer_skew;
mod peers;
mod plain;
mod reload;
mod retries;
mod scripted;
mod shutdown;
mod signatures;
mod smuggling;
mod spoofing;
mod standin;
mod stream_ends;
mod stream_pings;
mod streaming;
mod streams;
mod streams_to_websocket;
mod tls;
mod upgrades;
mod view;

//! The servers over loopback: real TLS and HTTP, three releases over one store.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
#[path = "../support/cluster_fixture.rs"]
mod cluster_fixture;
mod concurrency;
mod conversions;
mod discovery;
mod http_rules;
mod lifecycle;
mod objects;
mod patches;
mod releases;
mod streams;
mod watches;

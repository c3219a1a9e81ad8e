//! The servers over loopback: real TLS and HTTP, three releases over one store.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod cluster;
mod conversions;
mod crowd;
mod discovery;
mod lifecycle;
mod objects;
mod patches;
mod releases;
mod streams;
mod watches;

//! Real Kubernetes as the judge. One program, for each is a link of everything; its
//! modules are run as programs of their own by `cargo xtask e2e`, two at a time.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod client_commands;
mod client_copies;
mod client_go;
mod complete;
mod cutting;
mod discovery;
mod etcd;
mod forward;
mod freshness;
mod hardware_keys;
mod interop;
mod kubectl;
mod native;
mod pair;
mod peer_crds;
mod peer_etcd;
mod peer_faults;
mod peer_identity;
mod peer_registries;
mod peer_rounds;
mod peer_upgrade;
mod peer_users;
mod peers;
mod plane;
mod playground;
mod playground_new;
mod playground_old;
mod readers;
mod replay;
mod restart;
mod rolling;
mod run;
mod skew;
mod spdystream;
mod stories;
mod streaming;
mod streams;
mod terminal;
mod translate;
mod translate_cuts;
mod translate_idle;
mod translate_users;
mod websocket;

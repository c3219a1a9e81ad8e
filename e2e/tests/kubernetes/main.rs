//! Tests against real Kubernetes. All modules are one program, because each program links
//! everything; `cargo xtask e2e` runs each module in its own process, two at a time.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

mod bridge_user;
mod client_commands;
mod client_copies;
mod client_go;
mod complete;
mod control_plane;
mod discovery;
mod etcd;
mod exhaustion;
mod freshness;
mod hardware_keys;
mod health;
mod interop;
mod kubectl;
mod native;
mod peer_crds;
mod peer_etcd;
mod peer_faults;
mod peer_identity;
mod peer_memory;
mod peer_registries;
mod peer_rollback;
mod peer_rounds;
mod peer_silence;
mod peer_upgrade;
mod peer_users;
mod peers;
mod playground;
mod playground_new;
mod playground_old;
mod readers;
mod replay;
mod restart;
mod rolling;
mod run;
mod shared_ca;
mod skew;
mod spdystream;
mod stock_clients;
mod stories;
mod streams;
mod translate;
mod translate_cuts;
mod translate_idle;
mod translate_pings;
mod translate_users;
mod unauthenticated_connections;
mod upgrades;
mod websocket;

#[path = "../support/cutting_proxy.rs"]
mod cutting_proxy;
#[path = "../support/kubectl_terminal.rs"]
mod kubectl_terminal;
#[path = "../support/peer_pair.rs"]
mod peer_pair;
#[path = "../support/port_forward.rs"]
mod port_forward;
#[path = "../support/status_poll.rs"]
mod status_poll;
#[path = "../support/streaming.rs"]
mod streaming;

//! Tests against real Kubernetes. All modules are one program, because each program links
//! everything; `cargo xtask e2e` runs each module in its own process, two at a time.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

mod admission_policies;
mod balancer;
mod balancer_endpoints;
mod bridge_rbac;
mod check;
mod client_commands;
mod client_copies;
mod client_go;
mod component_versions;
mod control_plane;
mod controller_manager;
mod discovery;
mod discovery_authorization;
mod discovery_freshness;
mod discovery_lists_and_openapi;
mod endpoint_peers;
mod etcd;
mod field_guard;
mod front_proxy_ca_overlap;
mod hardware_keys;
mod health;
mod informers_during_upgrades;
mod install_kubeadm;
mod kube_apiserver_peer;
mod kube_apiserver_restart;
mod kubectl;
mod merged_discovery_parity;
mod monitoring;
mod openapi_freshness;
mod peer_concurrent_startup;
mod peer_crds;
mod peer_etcd;
mod peer_faults;
mod peer_identity_lease;
mod peer_registries;
mod peer_rollback;
mod peer_served_records;
mod peer_unresponsive;
mod peer_upgrade;
mod peer_user_identity;
mod peers;
mod playground;
mod playground_every_kubectl;
mod playground_parity_newer_servers;
mod playground_parity_oldest_server;
mod released_apis;
mod resource_exhaustion;
mod response_parity;
mod rolling_upgrade;
mod run;
mod skew;
mod spdystream;
mod status_page;
mod stock_clients;
mod stream_translation;
mod stream_translation_faults;
mod stream_translation_idle;
mod stream_translation_pings;
mod stream_translation_rbac;
mod streams;
mod unauthenticated_connections;
mod upgrade_check;
mod upgrade_day;
mod upgrade_verdicts;
mod vanishing;
mod websocket;

#[path = "../support/controller_fixture.rs"]
mod controller_fixture;
#[path = "../support/disconnecting_proxy.rs"]
mod disconnecting_proxy;
#[path = "../support/documentation_page.rs"]
mod documentation_page;
#[path = "../support/kubeadm_cluster/mod.rs"]
mod kubeadm_cluster;
#[path = "../support/kubectl_terminal.rs"]
mod kubectl_terminal;
#[path = "../support/peer_pair.rs"]
mod peer_pair;
#[path = "../support/port_forward.rs"]
mod port_forward;
#[path = "../support/resource_exhaustion_fixture.rs"]
mod resource_exhaustion_fixture;
#[path = "../support/status_poll.rs"]
mod status_poll;
#[path = "../support/streaming.rs"]
mod streaming;

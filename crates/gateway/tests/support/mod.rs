//! Fixtures of the gateway's tests: certificates and configuration, fake API servers, scripted
//! upstreams, clients of both HTTP versions and of the admin listener, and both ends of streams.

pub(crate) mod admin_client;
pub(crate) mod cluster;
pub(crate) mod egress_proxy;
pub(crate) mod exhaustion;
pub(crate) mod failed_authentications;
pub(crate) mod fake_apiserver;
pub(crate) mod identity;
pub(crate) mod limited_clients;
pub(crate) mod log_capture;
pub(crate) mod pki;
pub(crate) mod protocols;
pub(crate) mod ready_upstream;
pub(crate) mod reloaded_files;
pub(crate) mod scripted_upstream;
pub(crate) mod secure_admin_port;
pub(crate) mod self_test_responses;
pub(crate) mod served_records;
pub(crate) mod signed_requests;
pub(crate) mod slot_clients;
pub(crate) mod spdy_frame;
pub(crate) mod spdy_upstream;
pub(crate) mod spdystream_workers;
pub(crate) mod websocket_upstream;

//! One request through the gateway: authenticated, routed, sent to the local kube-apiserver or to a
//! peer, and answered.

mod access_review;
mod discovery;
mod error;
mod forward_local;
mod forward_peer;
pub(crate) mod handler;
mod outbound;
mod request_context;
mod stream_handshake;

//! The request path: a request is authenticated, routed, sent to the local server or to a peer, and
//! answered.

mod access_review;
mod discovery;
mod error;
mod forward_local;
mod forward_peer;
pub(crate) mod handler;
mod outbound;
mod policy_write;
mod proxied_response;
mod rejected_options;
mod request_context;
mod stream_handshake;
mod update_guard;

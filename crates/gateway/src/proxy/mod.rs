//! The request path: a request is authenticated, routed, sent to the local server or to a peer, and
//! answered.

mod access_review;
mod discovery;
mod error;
mod forward_local;
mod forward_peer;
pub(crate) mod handler;
mod outbound;
mod proxied_response;
mod request_context;
mod stream_handshake;

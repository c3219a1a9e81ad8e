//! The sender of a call, as far as the bridge knows it.

use skewbridge_k8s_api::secret::SecretString;

/// The sender of a call.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) user: User,
    pub(super) impersonated_user: Option<String>,
    pub(super) user_agent: String,
}

#[derive(Debug)]
pub(super) enum User {
    Named(String),
    /// A token that kube-apiserver has accepted.
    Token(SecretString),
    /// A token in a WebSocket subprotocol.
    Unknown,
}

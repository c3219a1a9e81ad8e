//! The identity of a caller, as far as the bridge knows it.

use skewbridge_k8s_api::secret::SecretString;

/// The identity of a caller.
#[derive(Debug)]
pub(super) struct CallerIdentity {
    pub(super) user: CallerUser,
    pub(super) impersonated_user: Option<String>,
    pub(super) user_agent: String,
}

/// The user that has authenticated.
#[derive(Debug)]
pub(super) enum CallerUser {
    Named(String),
    /// A token that kube-apiserver has accepted.
    Token(SecretString),
    /// A token in a WebSocket subprotocol.
    Unknown,
}

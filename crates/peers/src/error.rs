//! What can be wrong with what we read.

/// Something that another program wrote cannot be used. It concerns that one
/// object: log it, and go on with the others.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a name that Kubernetes gives.
    #[error("{0:?} is not the name of a kube-apiserver: it must be a DNS subdomain")]
    Identity(String),
    /// Not JSON, or not of this kind.
    #[error("cannot read an object of the API: {0}")]
    Json(#[from] serde_json::Error),
    /// A watch sent an event of a kind that we do not know.
    #[error("a watch event of unknown type {0:?}")]
    Event(String),
    /// An address record whose bytes cannot be read.
    #[error("a peer address record is malformed: {0}")]
    Record(&'static str),
    /// An address record that can be read, but does not say where the peer is.
    #[error("a peer address record names no usable address: {ip:?}, port {port}")]
    Address {
        /// As it is written there.
        ip: String,
        /// As it is written there.
        port: i64,
    },
}

//! Errors in objects and records that other programs wrote.

/// An object or record that another program wrote cannot be used. The error concerns that one
/// object: log it, and continue with the others.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a valid Kubernetes name.
    #[error("{0:?} is not the name of a kube-apiserver: it must be a DNS subdomain")]
    Identity(String),
    /// Not JSON, or JSON of another kind.
    #[error("cannot parse an API object: {0}")]
    Json(#[from] serde_json::Error),
    /// A watch sent an event of an unknown type.
    #[error("a watch event of unknown type {0:?}")]
    Event(String),
    /// An address record that cannot be decoded.
    #[error("a peer address record is malformed: {0}")]
    Record(&'static str),
    /// An address record without a usable address.
    #[error("a peer address record names no usable address: {ip:?}, port {port}")]
    Address {
        /// The IP address in the record.
        ip: String,
        /// The port in the record.
        port: i64,
    },
}

//! The response extension that closes a connection.

/// The server closes the client connection after a response with this extension. The client sets
/// it where the upstream server closes the connection; kube-apiserver does so for anonymous callers.
#[derive(Debug, Clone, Copy)]
pub struct CloseConnection;

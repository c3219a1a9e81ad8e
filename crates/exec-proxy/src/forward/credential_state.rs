//! Whether the credential of a connection is still valid.

use http::HeaderMap;

/// The credential that a connection was opened with: for example a certificate that expires.
pub trait CredentialState: Send + Sync + 'static {
    /// Whether further requests may be sent on the connection. Requests in flight are not
    /// touched.
    fn is_valid(&self) -> bool;

    /// Whether a workload behind the server may answer a request to this path. A 401 is then
    /// the server's own only if it is a `metav1.Status`.
    fn reaches_workload(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// The server itself has answered 401 to a request that was sent with these headers.
    fn mark_unauthorized(&self, request: &HeaderMap) {
        let _ = request;
    }
}

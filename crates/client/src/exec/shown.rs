//! What a connection was opened with, as far as it can run out.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::Issued;

/// What a credential plugin gave, and a connection was opened with. The connection stays
/// what it is when that has expired; further requests had better go over another one.
#[derive(Debug, Clone)]
pub struct Shown(Arc<Issued>);

impl Shown {
    pub(crate) fn new(issued: Arc<Issued>) -> Self {
        Self(issued)
    }

    /// Whether further requests may be sent with it: it has not expired, and the cluster
    /// has not refused it.
    pub fn is_good(&self) -> bool {
        self.0.is_good()
    }

    /// The cluster has answered 401 to a request with these headers. The plugin is run
    /// again for the next request, as client-go does; but not if the request came with a
    /// credential of its own.
    pub fn refused(&self, request: &HeaderMap) {
        if request.get(AUTHORIZATION) == self.0.authorization() {
            self.0.refuse();
        }
    }
}

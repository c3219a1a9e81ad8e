//! The APIs that a server serves, from its discovery documents.

use std::sync::Arc;

use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::version::Version;

use crate::refresh_schedule::ChangeDetection;

/// The APIs that a server serves, from its discovery.
#[derive(Debug)]
pub struct ServedApis {
    /// For routing.
    pub index: Arc<Index>,
    /// `/api` and `/apis`, for merging.
    pub documents: [Arc<Document>; 2],
    /// Their entity tags, for conditional requests.
    pub etags: [Option<String>; 2],
    /// From `/version`.
    pub version: Option<Version>,
    /// What follows the numbers in its `gitVersion`. Empty for a release of Kubernetes.
    pub version_suffix: Arc<str>,
    /// A bridge answered the poll on behalf of the server.
    pub by_bridge: bool,
}

/// The first version that changes the holder of its identity Lease at each start, and deletes the
/// Lease at its end. Older versions keep the holder that they find.
const FIRST_VERSION_WITH_NEW_HOLDER: (u16, u16) = (1, 35);

impl ServedApis {
    pub(crate) fn change_detection(&self) -> ChangeDetection {
        let version = self.version.map(|it| (it.major, it.minor));
        // A poll of a server without aggregated discovery (before 1.26) takes dozens of requests.
        let is_cheap = self.etags.iter().all(Option::is_some);
        match version {
            Some(version) if version < FIRST_VERSION_WITH_NEW_HOLDER && is_cheap => {
                ChangeDetection::ByPolling
            }
            _ => ChangeDetection::ByEvent,
        }
    }
}

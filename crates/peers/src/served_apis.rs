//! The APIs that a server serves, from its discovery documents.

use std::sync::Arc;

use skewbridge_api::version::Version;
use skewbridge_discovery::{Document, Index};

use crate::refresh_schedule::ChangeDetection;

/// What a server says that it serves.
#[derive(Debug)]
pub struct ServedApis {
    /// For routing.
    pub index: Arc<Index>,
    /// `/api` and `/apis`, for merging.
    pub documents: [Arc<Document>; 2],
    /// What they are called by who sent them, to ask for news only.
    pub etags: [Option<String>; 2],
    /// As `/version` has it.
    pub version: Option<Version>,
    /// A bridge has answered for the server.
    pub by_bridge: bool,
}

/// The first servers that change the holder of their Lease with each start, and
/// delete it when they end. Older ones go on with the holder that they find.
const SINCE_TELLING: (u16, u16) = (1, 35);

impl ServedApis {
    pub(crate) fn news(&self) -> ChangeDetection {
        let version = self.version.map(|it| (it.major, it.minor));
        // Who has no documents (before 1.26) is asked for dozens of lists.
        let is_cheap = self.etags.iter().all(Option::is_some);
        match version {
            Some(version) if version < SINCE_TELLING && is_cheap => ChangeDetection::ByPolling,
            _ => ChangeDetection::ByEvent,
        }
    }
}

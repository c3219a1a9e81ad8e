//! Writes that change the APIs of all servers.

use std::sync::Arc;

use super::super::proxied_response::ProxiedResponse;
use super::super::request_context::RequestContext;
use crate::cluster_state::ClusterHandle;
use crate::discovery_view::freshness::changes_shared_apis;

/// A write of a CRD or an `APIService`. When it is dropped, also because the client has disconnected, the
/// next discovery of all backends must not come from before: any of them may answer it.
pub(super) struct SharedApiWrite {
    handles: Vec<Arc<ClusterHandle>>,
}

impl SharedApiWrite {
    pub(super) fn of(context: &RequestContext<'_>) -> Option<Self> {
        changes_shared_apis(&context.info).then(|| {
            let backends = context.backends.iter();
            let handles = backends.filter_map(|it| it.state.cluster_handle.clone());
            Self {
                handles: handles.collect(),
            }
        })
    }

    /// A response of 4xx means that nothing was written.
    pub(super) fn settle(mut self, response: Option<&ProxiedResponse>) {
        if response.is_some_and(|it| it.response.status().is_client_error()) {
            self.handles.clear();
        }
    }
}

impl Drop for SharedApiWrite {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.note_shared_api_write();
        }
    }
}

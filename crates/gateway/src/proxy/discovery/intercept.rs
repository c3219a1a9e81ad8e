//! Which requests for discovery are answered for the whole cluster, and not by the local server
//! alone.

use http::Response;
use http::request::Parts;
use skewbridge_k8s_api::request_info::Kind;
use skewbridge_k8s_api::status::Status;

use super::merged_response::MergedResponse;
use super::server_list::ServerList;
use crate::body::ResponseBody;
use crate::discovery_view::discovery_request::{is_for_merged, is_local_only};
use crate::metrics::discovery::Fallback;
use crate::proxy::request_context::RequestContext;
use crate::state::GatewayState;

/// What is answered in the stead of the local server's discovery.
pub(crate) enum Intercept {
    /// Nothing: it answers for itself.
    Nothing,
    /// What the whole cluster serves.
    View(Box<MergedResponse>),
    /// What each server serves.
    ServerList,
}

impl Intercept {
    /// Whether a request is answered from what is known of the whole cluster.
    pub(crate) fn of(head: &Parts, context: &RequestContext<'_>) -> Self {
        let (bridge, path) = (context.bridge, context.info.path);
        if context.info.kind == Kind::Resource {
            return Self::Nothing;
        }
        let metrics = bridge.metrics.discovery();
        let Some(cluster_handle) = &bridge.cluster_handle else {
            if ServerList::is_requested(head, path) {
                return Self::ServerList;
            }
            if bridge.peering_unavailable && is_for_merged(head, path) {
                metrics.fallback(Fallback::NoPeering);
            }
            if is_local_only(head, path) {
                metrics.local_request();
            }
            return Self::Nothing;
        };
        let cluster = cluster_handle.cluster.load();
        if ServerList::is_requested(head, path) {
            return Self::ServerList;
        }
        if is_local_only(head, path) {
            metrics.local_request();
            return Self::Nothing;
        }
        if cluster.missing().is_some() && is_for_merged(head, path) {
            metrics.fallback(Fallback::NotSynced);
        }
        let view = cluster.view.as_ref();
        match view.and_then(|view| {
            MergedResponse::of(head, path, &context.caller, view, bridge.complete_discovery)
        }) {
            Some(merged) => Self::View(Box::new(merged)),
            None => Self::Nothing,
        }
    }

    /// A request of a peer, which is for the local server alone. Its discovery polls
    /// are counted.
    pub(crate) fn polled_by_peer(head: &Parts, context: &RequestContext<'_>) -> Self {
        if is_local_only(head, context.info.path) {
            context.bridge.metrics.discovery().local_request();
        }
        Self::Nothing
    }

    /// The answer, if nobody has to be asked; else the request becomes one to the
    /// local server, which says whether the caller may read.
    pub(crate) async fn begin(
        &mut self,
        head: &mut Parts,
        bridge: &GatewayState,
    ) -> Option<Response<ResponseBody>> {
        match (self, &bridge.cluster_handle) {
            (Self::View(merged), Some(cluster_handle)) => {
                if merged.is_permitted(cluster_handle)
                    // Boxed: watches are many, and do not come here.
                    && let Some(recalled) = Box::pin(merged.cached_response(cluster_handle)).await
                {
                    bridge.metrics.discovery().hit();
                    return Some(recalled);
                }
                merged.prepare_local_request(head, cluster_handle);
                None
            }
            (Self::ServerList, _) => {
                ServerList::prepare_local_request(head);
                None
            }
            (Self::Nothing | Self::View(_), _) => None,
        }
    }

    pub(crate) async fn end(
        self,
        response: Response<ResponseBody>,
        bridge: &GatewayState,
    ) -> Result<Response<ResponseBody>, Status> {
        match (self, &bridge.cluster_handle) {
            (Self::View(merged), Some(cluster_handle)) => {
                let metrics = bridge.metrics.discovery();
                merged.replace(response, cluster_handle, metrics).await
            }
            (Self::ServerList, Some(cluster_handle)) => {
                let cluster = cluster_handle.cluster.load();
                Ok(ServerList::replace(
                    response,
                    &cluster_handle.local,
                    &cluster,
                ))
            }
            (Self::ServerList, None) => Ok(ServerList::of_local_only(
                response,
                !bridge.peering_unavailable,
            )),
            (Self::Nothing | Self::View(_), _) => Ok(response),
        }
    }
}

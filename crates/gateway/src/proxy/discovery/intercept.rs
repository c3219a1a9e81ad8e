//! Decides which requests for discovery get merged discovery or the server list instead of the
//! local server's response.

use std::time::Instant;

use http::Response;
use http::request::Parts;
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_k8s_api::request_info::Kind;
use skewbridge_k8s_api::status::Status;

use super::merged_response::MergedResponse;
use super::server_list::ServerList;
use super::server_openapi::ServerOpenApi;
use crate::discovery_view::discovery_request::{is_for_merged, is_local_only};
use crate::metrics::discovery::Fallback;
use crate::proxy::request_context::RequestContext;
use crate::state::GatewayState;

/// What replaces the local server's response.
pub(crate) enum Intercept {
    /// Nothing: its response is forwarded.
    Nothing,
    /// Merged discovery.
    View(Box<MergedResponse>),
    /// The APIs of each server.
    ServerList,
    /// The OpenAPI of one peer.
    ServerOpenApi(ServerOpenApi),
}

impl Intercept {
    /// Decides by the request and the cluster snapshot.
    pub(crate) fn of(head: &Parts, context: &RequestContext<'_>) -> Self {
        let (state, path) = (context.bridge, context.info.path);
        if context.info.kind == Kind::Resource {
            return Self::Nothing;
        }
        let metrics = state.metrics.discovery();
        let Some(cluster_handle) = &state.cluster_handle else {
            if ServerList::is_requested(head, path) {
                return Self::ServerList;
            }
            if state.peering_unavailable && is_for_merged(head, path) {
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
        if let Some(requested) = ServerOpenApi::of(head, path) {
            return Self::ServerOpenApi(requested);
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
            MergedResponse::of(head, path, &context.caller, view, state.complete_discovery)
        }) {
            Some(merged) => Self::View(Box::new(merged)),
            None => Self::Nothing,
        }
    }

    /// A request of a peer, which always gets the local server's response. Discovery polls are
    /// counted.
    pub(crate) fn polled_by_peer(head: &Parts, context: &RequestContext<'_>) -> Self {
        if is_local_only(head, context.info.path) {
            context.bridge.metrics.discovery().local_request();
        }
        Self::Nothing
    }

    /// The response, if the permission of the caller is cached. Otherwise the request is turned
    /// into one to the local server, whose response shows whether the caller may read.
    pub(crate) async fn begin(
        &mut self,
        head: &mut Parts,
        state: &GatewayState,
    ) -> Option<Response<ResponseBody>> {
        match (self, &state.cluster_handle) {
            (Self::View(merged), Some(cluster_handle)) => {
                let metrics = state.metrics.discovery();
                if merged.is_permitted(cluster_handle)
                    // Boxed to keep the future of the many watches small.
                    && let Some(cached) =
                        Box::pin(merged.cached_response(cluster_handle, metrics)).await
                {
                    metrics.hit();
                    return Some(cached);
                }
                merged.prepare_local_request(head, cluster_handle);
                None
            }
            (Self::ServerList, _) => {
                ServerList::prepare_local_request(head);
                None
            }
            (Self::ServerOpenApi(_), _) => {
                ServerOpenApi::prepare_local_request(head);
                None
            }
            (Self::Nothing | Self::View(_), _) => None,
        }
    }

    /// Replaces the response of the local server.
    pub(crate) async fn end(
        self,
        response: Response<ResponseBody>,
        state: &GatewayState,
    ) -> Result<Response<ResponseBody>, Status> {
        match (self, &state.cluster_handle) {
            (Self::View(merged), Some(cluster_handle)) => {
                let metrics = state.metrics.discovery();
                merged.replace(response, cluster_handle, metrics).await
            }
            (Self::ServerList, Some(cluster_handle)) => {
                let cluster = cluster_handle.cluster.load();
                Ok(ServerList::replace(
                    response,
                    &cluster_handle.local,
                    &cluster,
                    state.leaders.list(Instant::now()),
                ))
            }
            (Self::ServerList, None) => Ok(ServerList::of_local_only(
                response,
                !state.peering_unavailable,
                state.leaders.list(Instant::now()),
            )),
            (Self::ServerOpenApi(requested), Some(cluster_handle)) => {
                requested.replace(response, cluster_handle).await
            }
            (Self::Nothing | Self::View(_) | Self::ServerOpenApi(_), _) => Ok(response),
        }
    }
}

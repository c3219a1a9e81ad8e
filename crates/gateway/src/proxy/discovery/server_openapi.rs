//! The OpenAPI of one server of the cluster, for `skewbridge skew --fields`: requested with a media
//! type that kube-apiserver ignores.

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, RANGE, VARY,
};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use skewbridge_discovery::servers::{OPENAPI_MEDIA_TYPE, requested_openapi_server};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_k8s_api::status::Status;
use skewbridge_openapi::GroupVersion;
use skewbridge_peer_directory::Identity;

use super::merged_response::read_body;
use super::openapi_response::MAX_DOCUMENT_BYTES;
use crate::cluster_state::ClusterHandle;
use crate::error_response;
use crate::openapi::PeerDocument;

/// A request for a document, or for the list of documents, of one server. It names the server also if
/// that is the local one: behind a load balancer, a client does not know which bridge answers.
#[derive(Debug)]
pub(crate) struct ServerOpenApi {
    server: Identity,
    path: String,
}

impl ServerOpenApi {
    /// Parses a request. The path contains only names, because a peer gets it unchanged.
    pub(crate) fn of(head: &Parts, path: &str) -> Option<Self> {
        let is_valid = match path.strip_prefix("/openapi/v3")? {
            "" => true,
            key => GroupVersion::from_key(key.strip_prefix('/')?).is_some(),
        };
        if !is_valid || head.method != Method::GET {
            return None;
        }
        let server = requested_openapi_server(&head.headers)?.parse().ok()?;
        let path = path.to_owned();
        Some(Self { server, path })
    }

    /// Turns the request into one to the local server, whose response shows whether the caller may
    /// read.
    pub(crate) fn prepare_local_request(head: &mut Parts) {
        for name in [ACCEPT_ENCODING, IF_NONE_MATCH, IF_MODIFIED_SINCE, RANGE] {
            head.headers.remove(name);
        }
        head.headers
            .insert(ACCEPT, HeaderValue::from_static("application/json"));
    }

    /// Replaces the local server's response, if it permits the caller to read. It answers 404 after
    /// authorization, if only the peer has the document.
    pub(crate) async fn replace(
        self,
        response: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
    ) -> Result<Response<ResponseBody>, Status> {
        if !matches!(response.status(), StatusCode::OK | StatusCode::NOT_FOUND) {
            return Ok(response);
        }
        if self.server == cluster_handle.local.identity {
            if response.status() == StatusCode::NOT_FOUND {
                return Err(no_such_document());
            }
            return Ok(found(
                read_body(response.into_body(), MAX_DOCUMENT_BYTES).await?,
            ));
        }
        let cluster = cluster_handle.cluster.load();
        if cluster.peers.get(&self.server).is_none() {
            return Err(Status::not_found("the bridge does not know this server"));
        }
        drop(cluster);
        let openapi = &cluster_handle.openapi;
        match openapi.of_peer(self.server, self.path).await {
            PeerDocument::Found(document) => Ok(found(document)),
            PeerDocument::NotFound => Err(no_such_document()),
            // Every caller that may read OpenAPI gets this, so it contains no address.
            PeerDocument::Unavailable => Err(error_response::retry_later(
                "the server does not answer; /debug/peers of the bridge shows the error",
            )),
        }
    }
}

fn no_such_document() -> Status {
    Status::not_found("the server has no such document")
}

fn found(document: Bytes) -> Response<ResponseBody> {
    let length = document.len();
    let mut response = Response::new(ResponseBody::full(document));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(OPENAPI_MEDIA_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

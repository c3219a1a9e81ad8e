//! Replaces the local server's response by merged discovery, after the local server has permitted
//! the caller to read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, IF_NONE_MATCH,
    LAST_MODIFIED, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use skewbridge_discovery::lists::{ApiGroup, ApiGroupList, ApiResourceList};
use skewbridge_discovery::{Document, DocumentEncoding, Object};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_k8s_api::cbor;
use skewbridge_k8s_api::content_negotiation::{Format, content_type};
use skewbridge_k8s_api::status::Status;
use tokio::time::timeout;

use crate::authn::Caller;
use crate::cluster_state::ClusterHandle;
use crate::discovery_view::discovery_request::ListEncoding;
use crate::discovery_view::encoded_document::EncodedBody;
use crate::discovery_view::{
    CompleteDiscovery, CredentialDigest, DiscoveryRequest, DiscoveryRoot, View,
};
use crate::gzip;
use crate::metrics::discovery::{DiscoveryMetrics, Fallback};
use crate::openapi::MergedDocument;

/// The document of a cluster with very many custom resources has about 2 MiB.
const MAX_RESPONSE_BYTES: usize = 32 * 1024 * 1024;

/// The timeout for the body of the local server's response.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A request that is answered from the view.
#[derive(Debug)]
pub(crate) struct MergedResponse {
    pub(super) view: Arc<View>,
    request: DiscoveryRequest,
    credential: Option<CredentialDigest>,
    /// The `If-None-Match` header of the client.
    pub(super) known: Option<HeaderValue>,
    pub(super) may_gzip: bool,
    pub(super) head_only: bool,
    /// The `?hash=` of a request for an OpenAPI document.
    pub(super) hash: Option<String>,
    /// The cached OpenAPI document.
    pub(super) cached: Option<Arc<MergedDocument>>,
}

/// The replaced response.
pub(crate) type ReplaceResult = Result<Response<ResponseBody>, Status>;

impl MergedResponse {
    /// `None` if the response of the local server is complete.
    pub(crate) fn of(
        head: &Parts,
        path: &str,
        caller: &Caller,
        view: &Arc<View>,
        complete: CompleteDiscovery,
    ) -> Option<Self> {
        let request = DiscoveryRequest::of(head, path, view, complete)?;
        Some(Self {
            view: view.clone(),
            request,
            credential: CredentialDigest::of(caller, head),
            known: head.headers.get(IF_NONE_MATCH).cloned(),
            may_gzip: gzip::is_accepted(&head.headers),
            head_only: head.method == Method::HEAD,
            hash: hash(head.uri.query()),
            cached: None,
        })
    }

    /// Turns the request into one to the local server.
    pub(crate) fn prepare_local_request(
        &mut self,
        head: &mut Parts,
        cluster_handle: &ClusterHandle,
    ) {
        self.request.prepare_local_request(head, &self.view);
        if let DiscoveryRequest::OpenApi(document_id, format) = &self.request {
            self.cached = cluster_handle.openapi.cache.get(document_id, *format);
            let cached = self.cached.as_ref();
            if let Some(etag) = cached.and_then(|cached| cached.local_etag.clone()) {
                head.headers.insert(IF_NONE_MATCH, etag);
            }
        }
    }

    /// Whether the local server has recently permitted this caller to read the document.
    pub(crate) fn is_permitted(&self, cluster_handle: &ClusterHandle) -> bool {
        let Some(credential) = &self.credential else {
            return false;
        };
        matches!(self.request, DiscoveryRequest::Document(..))
            && cluster_handle
                .discovery_authz
                .is_permitted(credential, Instant::now())
    }

    /// The response to a caller with a cached permission. No request is sent as the caller. If the
    /// local server may have other APIs by now, its discovery is read again, once for all concurrent
    /// requests.
    pub(crate) async fn cached_response(
        &self,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> Option<Response<ResponseBody>> {
        let DiscoveryRequest::Document(root, encoding) = self.request else {
            return None;
        };
        let cluster = cluster_handle.with_current_discovery(metrics).await?;
        let view = cluster.view.as_ref().unwrap_or(&self.view);
        let mut response = Response::new(ResponseBody::empty());
        response
            .headers_mut()
            .insert(DATE, skewbridge_http_engine::http_date::now());
        self.document(view, root, encoding, &mut response);
        Some(response)
    }

    /// Replaces the local server's response, if it permits the caller to read.
    pub(crate) async fn replace(
        self,
        response: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> ReplaceResult {
        let allowed = matches!(
            response.status(),
            StatusCode::OK
                | StatusCode::NOT_MODIFIED
                | StatusCode::NOT_FOUND
                // The local server has the OpenAPI document under another hash.
                | StatusCode::MOVED_PERMANENTLY
        );
        if let (DiscoveryRequest::Document(..), Some(credential)) = (&self.request, self.credential)
        {
            match response.status() {
                StatusCode::OK | StatusCode::NOT_MODIFIED => {
                    cluster_handle
                        .discovery_authz
                        .permit(credential, Instant::now());
                }
                _ => cluster_handle.discovery_authz.revoke(&credential),
            }
        }
        if !allowed {
            return Ok(response);
        }
        match &self.request {
            DiscoveryRequest::OpenApiIndex => {
                self.replace_index(response, cluster_handle, metrics).await
            }
            DiscoveryRequest::OpenApi(document_id, format) => {
                let (document_id, format) = (document_id.clone(), *format);
                self.replace_openapi(document_id, format, response, cluster_handle, metrics)
                    .await
            }
            DiscoveryRequest::Document(root, encoding) => {
                let (root, encoding) = (*root, *encoding);
                self.replace_document(root, encoding, response, cluster_handle, metrics)
                    .await
            }
            DiscoveryRequest::Groups(encoding) => {
                let (encoding, view) = (*encoding, self.view.clone());
                self.replace_list(response, encoding, metrics, |local| {
                    let local = ApiGroupList::parse(local?).ok()?;
                    Some(complete_groups(&view, local))
                })
                .await
            }
            DiscoveryRequest::Group(name, encoding) => {
                let (encoding, view, name) = (*encoding, self.view.clone(), name.clone());
                self.replace_list(response, encoding, metrics, |local| {
                    let local = local.map(ApiGroup::parse).transpose().ok()?;
                    complete_group(&view, &name, local)
                })
                .await
            }
            DiscoveryRequest::Resources(group, version, encoding) => {
                let (encoding, view) = (*encoding, self.view.clone());
                let (group, version) = (group.clone(), version.clone());
                self.replace_list(response, encoding, metrics, |local| {
                    let merged = view.version(&group, &version).0?;
                    let Some(local) = local else {
                        return Some(ApiResourceList::from_version(&group, merged));
                    };
                    let mut list = ApiResourceList::parse(local).ok()?;
                    list.merge_version(merged);
                    Some(list)
                })
                .await
            }
        }
    }

    async fn replace_document(
        self,
        root: DiscoveryRoot,
        encoding: DocumentEncoding,
        mut response: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> ReplaceResult {
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(response);
        }
        if exceeds_limit(&response, MAX_RESPONSE_BYTES) {
            metrics.fallback(Fallback::NotMerged);
            return Ok(response);
        }
        let etag = response.headers().get(ETAG).cloned();
        let has_changed = response.status() == StatusCode::OK
            && !self.head_only
            && etag.is_some()
            && etag.as_ref() != self.view.local_etag(root);
        if !has_changed {
            metrics.hit();
            self.document(&self.view, root, encoding, &mut response);
            return Ok(response);
        }
        // An API was created or deleted a moment ago, possibly by this caller. The peer controller merges
        // it, once for all concurrent requests and not on the thread of a worker.
        let local = take_body(&mut response).await?;
        let cluster = cluster_handle.refresh_local().await;
        let Some(view) = self.with_local_document(root, &local, etag, cluster.view.as_ref()) else {
            // The unmodified response of the local server.
            metrics.fallback(Fallback::NotMerged);
            *response.body_mut() = ResponseBody::full(local);
            return Ok(response);
        };
        metrics.hit();
        self.document(&view, root, encoding, &mut response);
        Ok(response)
    }

    /// The view of the peer controller if it contains this document of the local server. Otherwise, for
    /// instance while the bridge leaves, the document is merged here.
    fn with_local_document(
        &self,
        root: DiscoveryRoot,
        local: &[u8],
        etag: Option<HeaderValue>,
        current: Option<&Arc<View>>,
    ) -> Option<Arc<View>> {
        let current = current.unwrap_or(&self.view);
        if current.local_etag(root) == etag.as_ref() {
            return Some(current.clone());
        }
        let document = Document::parse(local).ok()?;
        Some(Arc::new(current.with_local_document(root, document, etag)))
    }

    fn document(
        &self,
        view: &View,
        root: DiscoveryRoot,
        encoding: DocumentEncoding,
        response: &mut Response<ResponseBody>,
    ) {
        let document = view.document(root);
        let is_known = (self.known.as_ref())
            .is_some_and(|known| etag_matches(known.as_bytes(), document.etag.as_bytes()));
        let headers = response.headers_mut();
        headers.insert(ETAG, document.etag.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        if is_known {
            for name in [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE] {
                headers.remove(name);
            }
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = ResponseBody::empty();
            return;
        }
        let content_type = HeaderValue::from_static(encoding.content_type());
        self.send(
            document.encoded(encoding, self.may_gzip),
            content_type,
            response,
        );
    }

    /// Merges a list of the local server (`None` if it answers 404) with the view.
    async fn replace_list<T: Object>(
        self,
        response: Response<ResponseBody>,
        encoding: ListEncoding,
        metrics: &DiscoveryMetrics,
        make: impl FnOnce(Option<&[u8]>) -> Option<T>,
    ) -> ReplaceResult {
        let (head, body) = response.into_parts();
        let response = Response::from_parts(head, body);
        if self.head_only || exceeds_limit(&response, MAX_RESPONSE_BYTES) {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let local = read_body(body, MAX_RESPONSE_BYTES).await?;
        let is_cbor = is_cbor(&head.headers);
        let read = match (head.status, is_cbor) {
            (StatusCode::NOT_FOUND, _) => Ok(make(None)),
            (_, false) => Ok(make(Some(&local))),
            (_, true) => cbor::read(&local).map(|value| make(Some(value.to_string().as_bytes()))),
        };
        let mut response = Response::from_parts(head, ResponseBody::empty());
        let Some(list) = read.ok().flatten() else {
            // The unmodified response of the local server.
            if response.status() == StatusCode::OK {
                metrics.fallback(Fallback::NotMerged);
            }
            *response.body_mut() = ResponseBody::full(local);
            return Ok(response);
        };
        // CBOR only if the local server has sent CBOR.
        let format = match encoding.format {
            Format::Cbor if !is_cbor => Format::Json,
            format => format,
        };
        for name in [LAST_MODIFIED, ETAG] {
            response.headers_mut().remove(name);
        }
        let bytes: Bytes = list.write(format, encoding.layout).into();
        let body = EncodedBody::of(&bytes, self.may_gzip);
        *response.status_mut() = StatusCode::OK;
        self.send(body, content_type(format), &mut response);
        Ok(response)
    }

    pub(super) fn send(
        &self,
        body: EncodedBody,
        content_type: HeaderValue,
        response: &mut Response<ResponseBody>,
    ) {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CONTENT_LENGTH, body.bytes.len().into());
        headers.remove(CONTENT_ENCODING);
        if body.gzipped {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        *response.status_mut() = StatusCode::OK;
        *response.body_mut() = if self.head_only {
            ResponseBody::empty()
        } else {
            ResponseBody::full(body.bytes)
        };
    }
}

/// The groups of the view, and those of the local server that are too new for the view.
fn complete_groups(view: &View, local: ApiGroupList) -> ApiGroupList {
    let mut list = ApiGroupList::from_document(&view.document(DiscoveryRoot::Apis).document);
    // A shared API is deleted when the local server does not list it.
    list.groups.retain_mut(|group| {
        let listed = local.groups.iter().find(|it| it.name == group.name);
        view.remove_deleted_versions(group, listed);
        !group.versions.is_empty()
    });
    for mut group in local.groups {
        let is_listable = |version: &str| view.is_listable(&group.name, version);
        let mut versions = std::mem::take(&mut group.versions);
        versions.retain(|it| is_listable(&it.version));
        match list.groups.iter_mut().find(|it| it.name == group.name) {
            Some(known) => known.add(versions),
            None if versions.is_empty() => {}
            None => {
                group.versions = versions;
                list.groups.push(group);
            }
        }
    }
    list
}

fn complete_group(view: &View, name: &str, local: Option<ApiGroup>) -> Option<ApiGroup> {
    let mut group = ApiGroup::from_group(view.group(name).0?);
    view.remove_deleted_versions(&mut group, local.as_ref());
    let mut versions = local.map(|local| local.versions).unwrap_or_default();
    versions.retain(|it| view.is_listable(name, &it.version));
    group.add(versions);
    (!group.versions.is_empty()).then_some(group)
}

pub(super) async fn read_body(body: ResponseBody, limit: usize) -> Result<Bytes, Status> {
    let read = timeout(BODY_TIMEOUT, body.collect(limit)).await;
    match read {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(Status::bad_gateway(error.to_string())),
        Err(_) => Err(Status::timeout(
            "the local kube-apiserver did not send discovery completely in time",
        )),
    }
}

async fn take_body(response: &mut Response<ResponseBody>) -> Result<Bytes, Status> {
    let body = std::mem::replace(response.body_mut(), ResponseBody::empty());
    read_body(body, MAX_RESPONSE_BYTES).await
}

/// Whether the `Content-Length` of a response exceeds the limit. Such a response is forwarded
/// unmodified.
pub(super) fn exceeds_limit(response: &Response<ResponseBody>, limit: usize) -> bool {
    let length = response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    length.is_some_and(|length| length > limit)
}

fn hash(query: Option<&str>) -> Option<String> {
    let mut pairs = query?.split('&');
    let hash = pairs.find_map(|pair| pair.strip_prefix("hash="))?;
    (!hash.is_empty()).then(|| hash.to_owned())
}

fn is_cbor(headers: &HeaderMap) -> bool {
    let local = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    local.is_some_and(|it| it.starts_with(b"application/cbor"))
}

/// Whether `If-None-Match` contains this `ETag`, or `*` (RFC 9110, 13.1.2).
pub(super) fn etag_matches(list: &[u8], etag: &[u8]) -> bool {
    list.split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|it| it == b"*" || it.strip_prefix(b"W/").unwrap_or(it) == etag)
}

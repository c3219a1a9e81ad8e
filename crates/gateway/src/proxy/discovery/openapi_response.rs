//! Replaces OpenAPI responses of the local server by merged ones.

use std::sync::Arc;

use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES,
    LAST_MODIFIED, LOCATION, VARY,
};
use http::{HeaderValue, Response, StatusCode};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::http_date;

use super::merged_response::{
    MergedResponse, ReplaceResult, etag_matches, exceeds_limit, read_body,
};
use crate::cluster_state::ClusterHandle;
use crate::discovery_view::encoded_document::{EncodedBody, quoted_sha512};
use crate::error_response;
use crate::gzip::MIN_COMPRESSED_BYTES;
use crate::metrics::discovery::{DiscoveryMetrics, Fallback};
use crate::openapi::{DocumentId, DocumentRequest, Format, LocalDocument, MergedDocument};

/// `/openapi/v2` of a cluster with very many custom resources has about 20 MiB.
pub(super) const MAX_DOCUMENT_BYTES: usize = 64 * 1024 * 1024;

impl MergedResponse {
    /// Replaces the list of documents by one that includes those of peers.
    pub(super) async fn replace_index(
        self,
        response: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> ReplaceResult {
        if response.status() != StatusCode::OK
            || self.head_only
            || exceeds_limit(&response, MAX_DOCUMENT_BYTES)
        {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let local = read_body(body, MAX_DOCUMENT_BYTES).await?;
        let contributors = (self.view.incomplete.iter())
            .map(|(key, peers)| (key.clone(), peers.clone()))
            .collect();
        let index = cluster_handle
            .openapi
            .index(local.clone(), contributors)
            .await;
        let mut response = Response::from_parts(head, ResponseBody::empty());
        if index.is_none() {
            metrics.fallback(Fallback::NotMerged);
        }
        let index = index.map_or(local, Into::into);
        let etag = quoted_sha512(&index);
        let is_known = (self.known.as_ref())
            .is_some_and(|known| etag_matches(known.as_bytes(), etag.as_bytes()));
        let headers = response.headers_mut();
        let content_type = headers.remove(CONTENT_TYPE);
        for name in [LAST_MODIFIED, ACCEPT_RANGES, CONTENT_LENGTH] {
            headers.remove(name);
        }
        headers.insert(ETAG, etag);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        let content_type =
            content_type.unwrap_or_else(|| HeaderValue::from_static("application/json"));
        self.send(
            EncodedBody::of(&index, self.may_gzip),
            content_type,
            &mut response,
        );
        Ok(response)
    }

    /// Replaces a document by the merged one.
    pub(super) async fn replace_openapi(
        self,
        document_id: DocumentId,
        format: Format,
        response: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> ReplaceResult {
        if exceeds_limit(&response, MAX_DOCUMENT_BYTES) {
            metrics.fallback(Fallback::NotMerged);
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        let etag = head.headers.get(ETAG).cloned();
        let (local, local_body) = match (head.status, etag) {
            (StatusCode::NOT_FOUND, _) => (LocalDocument::Missing, None),
            (StatusCode::OK, etag) if !self.head_only => {
                let local_body = read_body(body, MAX_DOCUMENT_BYTES).await?;
                let etag = etag.unwrap_or_else(|| HeaderValue::from_static(""));
                (
                    LocalDocument::Tagged(etag, Some(local_body.clone())),
                    Some(local_body),
                )
            }
            (_, Some(etag)) => (LocalDocument::Tagged(etag, None), None),
            (_, None) => {
                let cached_etag = self.cached.as_ref().and_then(|it| it.local_etag.clone());
                let etag = cached_etag.unwrap_or_else(|| HeaderValue::from_static(""));
                (LocalDocument::Tagged(etag, None), None)
            }
        };
        let incomplete = &self.view.incomplete;
        let contributors = match &document_id {
            DocumentId::GroupVersion { group, version } => {
                let key = (group.clone(), version.clone());
                incomplete.get(&key).cloned().unwrap_or_default()
            }
            DocumentId::V2 => {
                let mut all: Vec<_> = incomplete.values().flatten().cloned().collect();
                all.sort();
                all.dedup();
                all
            }
        };
        let pending = cluster_handle.openapi.document(|reply| DocumentRequest {
            document_id: document_id.clone(),
            format,
            local,
            contributors,
            incomplete: incomplete.keys().cloned().collect(),
            reply,
        });
        let Some(merged) = pending.await.or_else(|| self.cached.clone()) else {
            metrics.fallback(Fallback::NotMerged);
            if head.status == StatusCode::NOT_FOUND {
                // A peer is known to have the document.
                return Err(error_response::retry_later(format!(
                    "{} is merged by a peer that cannot be reached now",
                    document_id.path()
                )));
            }
            // The unmodified response of the local server.
            head.headers.remove(ACCEPT_RANGES);
            let body = local_body.map_or_else(ResponseBody::empty, ResponseBody::full);
            return Ok(Response::from_parts(head, body));
        };
        let mut response = Response::from_parts(head, ResponseBody::empty());
        self.send_merged(&merged, &mut response);
        Ok(response)
    }

    fn send_merged(&self, merged: &Arc<MergedDocument>, response: &mut Response<ResponseBody>) {
        let headers = response.headers_mut();
        for name in [
            ACCEPT_RANGES,
            CONTENT_LENGTH,
            CONTENT_RANGE,
            ETAG,
            EXPIRES,
            LAST_MODIFIED,
            LOCATION,
        ] {
            headers.remove(name);
        }
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        let no_cache = HeaderValue::from_static("no-cache, private");
        headers.insert(CACHE_CONTROL, no_cache);
        if let Some(hash) = &merged.hash {
            let quoted = HeaderValue::try_from(format!("\"{hash}\""));
            if let Ok(etag) = quoted {
                headers.insert(ETAG, etag);
            }
            match &self.hash {
                Some(requested) if requested != hash => {
                    let location = format!("{}?hash={hash}", merged.document_id.path());
                    if let Ok(location) = HeaderValue::try_from(location) {
                        headers.insert(LOCATION, location);
                    }
                    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
                    *response.body_mut() = ResponseBody::empty();
                    return;
                }
                Some(_) => {
                    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
                    headers.insert(EXPIRES, http_date::one_year_from_now());
                }
                None => {}
            }
        }
        let is_known = (self.known.as_ref().zip(headers.get(ETAG)))
            .is_some_and(|(known, etag)| etag_matches(known.as_bytes(), etag.as_bytes()));
        if is_known {
            headers.remove(CONTENT_TYPE);
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = ResponseBody::empty();
            return;
        }
        let gzipped = self.may_gzip && merged.plain.len() > MIN_COMPRESSED_BYTES;
        let body = EncodedBody {
            bytes: if gzipped {
                merged.gzip.clone()
            } else {
                merged.plain.clone()
            },
            gzipped,
        };
        let media = merged.format.media_type(merged.document_id.spec());
        self.send(body, HeaderValue::from_static(media), response);
    }
}

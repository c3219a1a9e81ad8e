//! OpenAPI in the stead of the local server's.

use std::sync::Arc;

use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES,
    LAST_MODIFIED, LOCATION, VARY,
};
use http::{HeaderValue, Response, StatusCode};

use super::merged_response::{MergedResponse, Replaced, is_longer, names, whole};
use crate::cluster_state::ClusterHandle;
use crate::discovery_view::encoded_document::{Sent, quoted_sha512};
use crate::error_response;
use crate::gzip::WORTH_COMPRESSING;
use crate::metrics::discovery::{DiscoveryMetrics, Fallback};
use crate::openapi::{DocumentRequest, Format, Local, Page, Published};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::http_date;

/// `/openapi/v2` of a cluster with very many custom resources has some 20 MiB.
const MAX_DOCUMENT: usize = 64 * 1024 * 1024;

impl MergedResponse {
    /// The list of documents, with those that peers have or add to.
    pub(super) async fn replace_index(
        self,
        answer: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> Replaced {
        if answer.status() != StatusCode::OK || self.head_only || is_longer(&answer, MAX_DOCUMENT) {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let local = whole(body, MAX_DOCUMENT).await?;
        let contributors = (self.view.incomplete.iter())
            .map(|(key, who)| (key.clone(), who.clone()))
            .collect();
        let index = cluster_handle
            .openapi
            .index(local.clone(), contributors)
            .await;
        let mut answer = Response::from_parts(head, ResponseBody::empty());
        if index.is_none() {
            metrics.fallback(Fallback::NotMerged);
        }
        let index = index.map_or(local, Into::into);
        let etag = quoted_sha512(&index);
        let is_known =
            (self.known.as_ref()).is_some_and(|known| names(known.as_bytes(), etag.as_bytes()));
        let headers = answer.headers_mut();
        let content_type = headers.remove(CONTENT_TYPE);
        for name in [LAST_MODIFIED, ACCEPT_RANGES, CONTENT_LENGTH] {
            headers.remove(name);
        }
        headers.insert(ETAG, etag);
        if is_known {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(answer);
        }
        let content_type =
            content_type.unwrap_or_else(|| HeaderValue::from_static("application/json"));
        self.send(Sent::of(&index, self.may_gzip), content_type, &mut answer);
        Ok(answer)
    }

    /// A document.
    pub(super) async fn replace_openapi(
        self,
        page: Page,
        format: Format,
        answer: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> Replaced {
        if is_longer(&answer, MAX_DOCUMENT) {
            metrics.fallback(Fallback::NotMerged);
            return Ok(answer);
        }
        let (mut head, body) = answer.into_parts();
        let etag = head.headers.get(ETAG).cloned();
        let (local, said) = match (head.status, etag) {
            (StatusCode::NOT_FOUND, _) => (Local::Nothing, None),
            (StatusCode::OK, etag) if !self.head_only => {
                let said = whole(body, MAX_DOCUMENT).await?;
                let etag = etag.unwrap_or_else(|| HeaderValue::from_static(""));
                (Local::Tagged(etag, Some(said.clone())), Some(said))
            }
            (_, Some(etag)) => (Local::Tagged(etag, None), None),
            (_, None) => {
                let before = self.before.as_ref().and_then(|it| it.local_etag.clone());
                let etag = before.unwrap_or_else(|| HeaderValue::from_static(""));
                (Local::Tagged(etag, None), None)
            }
        };
        let incomplete = &self.view.incomplete;
        let contributors = match &page {
            Page::GroupVersion { group, version } => {
                let key = (group.clone(), version.clone());
                incomplete.get(&key).cloned().unwrap_or_default()
            }
            Page::Everything => {
                let mut all: Vec<_> = incomplete.values().flatten().cloned().collect();
                all.sort();
                all.dedup();
                all
            }
        };
        let made = cluster_handle.openapi.document(|reply| DocumentRequest {
            page: page.clone(),
            format,
            local,
            contributors,
            incomplete: incomplete.keys().cloned().collect(),
            reply,
        });
        let Some(published) = made.await.or_else(|| self.before.clone()) else {
            metrics.fallback(Fallback::NotMerged);
            if head.status == StatusCode::NOT_FOUND {
                // It is known to be there.
                return Err(error_response::later(format!(
                    "{} is published by a peer that cannot be reached now",
                    page.path()
                )));
            }
            // What the server says, and no more.
            head.headers.remove(ACCEPT_RANGES);
            let body = said.map_or_else(ResponseBody::empty, ResponseBody::full);
            return Ok(Response::from_parts(head, body));
        };
        let mut answer = Response::from_parts(head, ResponseBody::empty());
        self.publish(&published, &mut answer);
        Ok(answer)
    }

    fn publish(&self, published: &Arc<Published>, answer: &mut Response<ResponseBody>) {
        let headers = answer.headers_mut();
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
        if let Some(hash) = &published.hash {
            let quoted = HeaderValue::try_from(format!("\"{hash}\""));
            if let Ok(etag) = quoted {
                headers.insert(ETAG, etag);
            }
            match &self.hash {
                Some(asked) if asked != hash => {
                    let location = format!("{}?hash={hash}", published.page.path());
                    if let Ok(location) = HeaderValue::try_from(location) {
                        headers.insert(LOCATION, location);
                    }
                    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
                    *answer.body_mut() = ResponseBody::empty();
                    return;
                }
                Some(_) => {
                    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
                    headers.insert(EXPIRES, http_date::in_a_year());
                }
                None => {}
            }
        }
        let is_known = (self.known.as_ref().zip(headers.get(ETAG)))
            .is_some_and(|(known, etag)| names(known.as_bytes(), etag.as_bytes()));
        if is_known {
            headers.remove(CONTENT_TYPE);
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            *answer.body_mut() = ResponseBody::empty();
            return;
        }
        let gzipped = self.may_gzip && published.plain.len() > WORTH_COMPRESSING;
        let sent = Sent {
            bytes: if gzipped {
                published.gzip.clone()
            } else {
                published.plain.clone()
            },
            gzipped,
        };
        let media = published.format.media_type(published.page.spec());
        self.send(sent, HeaderValue::from_static(media), answer);
    }
}

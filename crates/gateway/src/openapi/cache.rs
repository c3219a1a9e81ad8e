//! A least-recently-used cache of merged documents.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderValue;
use skewbridge_openapi::Format;
use skewbridge_peer_directory::Identity;

use super::DocumentId;

/// A document that was merged from several servers.
#[derive(Debug)]
pub(crate) struct MergedDocument {
    pub(crate) document_id: DocumentId,
    pub(crate) format: Format,
    pub(crate) plain: Bytes,
    pub(crate) gzip: Bytes,
    /// The hash of all parts. Clients cache the document under it for a year. `None` if a part is
    /// missing, because the document must not be cached then.
    pub(crate) hash: Option<String>,
    /// The `ETag` of the local server's document.
    pub(crate) local_etag: Option<HeaderValue>,
    /// The documents of peers.
    pub(crate) parts: Vec<Part>,
}

/// The document of a peer, which is a part of a merged document.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) identity: Identity,
    pub(crate) etag: Option<HeaderValue>,
    pub(crate) bytes: Bytes,
}

impl MergedDocument {
    fn size(&self) -> usize {
        let parts: usize = self.parts.iter().map(|part| part.bytes.len()).sum();
        self.plain.len() + self.gzip.len() + parts
    }
}

/// A cluster in the middle of an upgrade has a handful of documents of about 1 MiB.
const MAX_CACHE_BYTES: usize = 64 * 1024 * 1024;

/// Merged documents; the most recently used one is the last.
#[derive(Debug, Default)]
pub(crate) struct OpenApiCache(Mutex<Vec<Arc<MergedDocument>>>);

impl OpenApiCache {
    pub(crate) fn get(
        &self,
        document_id: &DocumentId,
        format: Format,
    ) -> Option<Arc<MergedDocument>> {
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = documents
            .iter()
            .position(|it| it.document_id == *document_id && it.format == format)?;
        let found = documents.remove(at);
        documents.push(found.clone());
        Some(found)
    }

    pub(crate) fn put(&self, merged: Arc<MergedDocument>) {
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        documents.retain(|it| it.document_id != merged.document_id || it.format != merged.format);
        documents.push(merged);
        let mut total: usize = documents.iter().map(|it| it.size()).sum();
        while total > MAX_CACHE_BYTES && documents.len() > 1 {
            total -= documents.remove(0).size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(version: &str, bytes: usize) -> Arc<MergedDocument> {
        Arc::new(MergedDocument {
            document_id: document_id(version),
            format: Format::Json,
            plain: vec![0; bytes].into(),
            gzip: Bytes::new(),
            hash: None,
            local_etag: None,
            parts: Vec::new(),
        })
    }

    fn document_id(version: &str) -> DocumentId {
        DocumentId::GroupVersion {
            group: "g".to_owned(),
            version: version.to_owned(),
        }
    }

    #[test]
    fn the_least_recently_used_document_is_evicted() {
        let cache = OpenApiCache::default();
        cache.put(merged("v1", MAX_CACHE_BYTES / 3));
        cache.put(merged("v2", MAX_CACHE_BYTES / 3));
        assert!(cache.get(&document_id("v1"), Format::Json).is_some());
        assert!(cache.get(&document_id("v1"), Format::Protobuf).is_none());
        cache.put(merged("v3", MAX_CACHE_BYTES / 2));
        assert!(cache.get(&document_id("v2"), Format::Json).is_none());
        assert!(cache.get(&document_id("v1"), Format::Json).is_some());
        // A document larger than the cache stays until the next insertion.
        cache.put(merged("v4", 2 * MAX_CACHE_BYTES));
        assert!(cache.get(&document_id("v4"), Format::Json).is_some());
        assert!(cache.get(&document_id("v1"), Format::Json).is_none());
    }
}

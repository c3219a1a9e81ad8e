//! Completed documents, kept for who asks next.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderValue;
use skewbridge_openapi::Format;
use skewbridge_peer_directory::Identity;

use super::Page;

/// A document that is made of several servers'.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) page: Page,
    pub(crate) format: Format,
    pub(crate) plain: Bytes,
    pub(crate) gzip: Bytes,
    /// Of all parts: clients keep the document under it, for a year. None if some
    /// part is missing, so that it must not be kept.
    pub(crate) hash: Option<String>,
    /// What the local server calls its part.
    pub(crate) local_etag: Option<HeaderValue>,
    /// What others have added.
    pub(crate) parts: Vec<Part>,
}

/// What a peer has added to a document.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) identity: Identity,
    pub(crate) etag: Option<HeaderValue>,
    pub(crate) bytes: Bytes,
}

impl Published {
    fn size(&self) -> usize {
        let parts: usize = self.parts.iter().map(|part| part.bytes.len()).sum();
        self.plain.len() + self.gzip.len() + parts
    }
}

/// What is kept at most. A cluster in the middle of an upgrade has a handful of
/// documents of about a megabyte.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Documents, the one used last at the end.
#[derive(Debug, Default)]
pub(crate) struct OpenApiCache(Mutex<Vec<Arc<Published>>>);

impl OpenApiCache {
    pub(crate) fn get(&self, page: &Page, format: Format) -> Option<Arc<Published>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept
            .iter()
            .position(|it| it.page == *page && it.format == format)?;
        let found = kept.remove(at);
        kept.push(found.clone());
        Some(found)
    }

    pub(crate) fn put(&self, published: Arc<Published>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|it| it.page != published.page || it.format != published.format);
        kept.push(published);
        let mut total: usize = kept.iter().map(|it| it.size()).sum();
        while total > MAX_BYTES && kept.len() > 1 {
            total -= kept.remove(0).size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(version: &str, bytes: usize) -> Arc<Published> {
        Arc::new(Published {
            page: page(version),
            format: Format::Json,
            plain: vec![0; bytes].into(),
            gzip: Bytes::new(),
            hash: None,
            local_etag: None,
            parts: Vec::new(),
        })
    }

    fn page(version: &str) -> Page {
        Page::GroupVersion {
            group: "g".to_owned(),
            version: version.to_owned(),
        }
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let shelf = OpenApiCache::default();
        shelf.put(published("v1", MAX_BYTES / 3));
        shelf.put(published("v2", MAX_BYTES / 3));
        assert!(shelf.get(&page("v1"), Format::Json).is_some());
        assert!(shelf.get(&page("v1"), Format::Protobuf).is_none());
        shelf.put(published("v3", MAX_BYTES / 2));
        assert!(shelf.get(&page("v2"), Format::Json).is_none());
        assert!(shelf.get(&page("v1"), Format::Json).is_some());
        // One that is too large is kept until the next.
        shelf.put(published("v4", 2 * MAX_BYTES));
        assert!(shelf.get(&page("v4"), Format::Json).is_some());
        assert!(shelf.get(&page("v1"), Format::Json).is_none());
    }
}

//! Lists: complete or in pages, where all pages have the same version.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use skewbridge_k8s_api::status::Status;

use super::{Key, Store, parse_version};
use crate::conversion::storage_resource;
use crate::object::Object;
use crate::selectors::Selection;
use crate::status::{self, GroupResource};

/// Options of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Maximum number of objects; 0 is all.
    pub limit: usize,
    /// The continue token; empty for a new list.
    pub continue_token: String,
    /// The client's resource version; empty for the latest.
    pub resource_version: String,
    /// How the version is matched.
    pub version_match: VersionMatch,
}

/// `resourceVersionMatch`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// This version or a later one.
    #[default]
    NotOlderThan,
    /// Exactly this version.
    Exact,
}

/// A list, or a page of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListPage {
    /// Sorted by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// The version of the list.
    pub version: u64,
    /// The token of the next page; empty for the last one.
    pub continue_token: String,
    /// The number of objects on further pages, if there is no selector.
    pub remaining: Option<usize>,
}

/// The content of a token, as in kube-apiserver.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    #[serde(rename = "v")]
    api_version: String,
    #[serde(rename = "rv")]
    version: u64,
    /// `namespace/name`, and a zero byte: the first place behind it.
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

const TOKEN_EXPIRED: &str = "The provided continue parameter is too old to display a consistent \
     list result. You can start a new list without the continue parameter.";
const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";

impl Store {
    /// The selected objects of a resource, in a namespace or in all (empty).
    pub fn list(
        &self,
        resource: &GroupResource,
        namespace: &str,
        selection: &Selection,
        options: &ListOptions,
    ) -> Result<ListPage, Status> {
        let resource = &storage_resource(resource);
        let requested = parse_version(&options.resource_version)?;
        let (version, behind) = if options.continue_token.is_empty() {
            match (requested, options.version_match) {
                (requested, _) if requested > self.version() => {
                    return Err(status::too_large_version(requested, self.version()));
                }
                (1.., VersionMatch::Exact) => (requested, None),
                _ => (self.version(), None),
            }
        } else {
            if requested != 0 {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let token = Token::read(&options.continue_token)?;
            (token.version.min(self.version()), Some(token.last_key()?))
        };
        let objects = self.as_of(resource, namespace, version).ok_or_else(|| {
            status::expired(match behind {
                Some(_) => TOKEN_EXPIRED,
                None => LIST_EXPIRED,
            })
        })?;
        let is_behind = |key: &Key| match &behind {
            Some((namespace, name)) => (&key.namespace, &key.name) > (namespace, name),
            None => true,
        };
        let left = objects.iter().filter(|(key, _)| is_behind(key));
        let mut left = left
            .filter(|(_, object)| selection.matches(object))
            .peekable();
        let limit = match options.limit {
            0 => usize::MAX,
            limit => limit,
        };
        let page: Vec<_> = left.by_ref().take(limit).collect();
        let mut listed = ListPage {
            items: page.iter().map(|(_, object)| Arc::clone(object)).collect(),
            version,
            continue_token: String::new(),
            remaining: None,
        };
        if let (Some((last, _)), true) = (page.last(), left.peek().is_some()) {
            listed.continue_token = Token::after(last, version).write();
            listed.remaining = selection.is_everything().then(|| left.count());
        }
        Ok(listed)
    }

    /// The objects at a past version: later events are undone. `None` if the history no longer
    /// has them.
    fn as_of(
        &self,
        resource: &GroupResource,
        namespace: &str,
        version: u64,
    ) -> Option<BTreeMap<Key, Arc<Object>>> {
        let since = self.log.after(version).ok()?;
        let current = self.current(resource, namespace);
        let mut objects: BTreeMap<_, _> = current
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        let since = since.filter(|event| event.key.is_within(resource, namespace));
        for event in since.rev() {
            match &event.before {
                Some(before) => objects.insert(event.key.clone(), Arc::clone(before)),
                None => objects.remove(&event.key),
            };
        }
        Some(objects)
    }
}

impl Token {
    fn after(key: &Key, version: u64) -> Self {
        Self {
            api_version: TOKEN_VERSION.to_owned(),
            version,
            start: format!("{}/{}\0", key.namespace, key.name),
        }
    }

    fn write(&self) -> String {
        // A plain structure does not fail to serialise.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn read(text: &str) -> Result<Self, Status> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let token: Option<Self> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        token
            .filter(|token| token.api_version == TOKEN_VERSION && token.version > 0)
            .ok_or_else(invalid_token)
    }

    /// The namespace and name that it continues after.
    fn last_key(&self) -> Result<(String, String), Status> {
        let place = self
            .start
            .strip_suffix('\0')
            .and_then(|it| it.split_once('/'));
        let (namespace, name) = place.ok_or_else(invalid_token)?;
        Ok((namespace.to_owned(), name.to_owned()))
    }
}

fn invalid_token() -> Status {
    Status::bad_request("invalid continue token: continue key is not valid")
}

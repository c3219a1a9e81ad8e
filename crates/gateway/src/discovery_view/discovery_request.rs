//! Parses requests for discovery and OpenAPI, and derives the request to the local server. Pure.

use http::header::{ACCEPT, ACCEPT_ENCODING, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use skewbridge_discovery::accept::{self, LOCAL_AGGREGATED, LOCAL_DOCUMENT};
use skewbridge_discovery::{DocumentEncoding, Layout, RequestedDiscovery};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate};
use skewbridge_openapi::GroupVersion;

use super::{DiscoveryRoot, View};
use crate::config::{Feature, Features};
use crate::openapi;

/// The feature gate `CompleteDiscovery`: whether responses that KEP-4020 leaves to the local server
/// are merged too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompleteDiscovery {
    /// `/api`, lists and OpenAPI are merged too.
    Enabled,
    /// Only `/apis` in its aggregated form is merged.
    Disabled,
}

impl CompleteDiscovery {
    pub(crate) fn of(features: &Features) -> Self {
        if features.enabled(Feature::CompleteDiscovery) {
            Self::Enabled
        } else {
            Self::Disabled
        }
    }
}

/// A request for a part of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiscoveryRequest {
    /// A document of aggregated discovery.
    Document(DiscoveryRoot, DocumentEncoding),
    /// `/apis` as a list.
    Groups(ListEncoding),
    /// `/apis/GROUP`
    Group(String, ListEncoding),
    /// `/apis/GROUP/VERSION` or `/api/VERSION` that the local server does not serve completely.
    Resources(String, String, ListEncoding),
    /// `/openapi/v3`
    OpenApiIndex,
    /// An OpenAPI document that the local server does not serve completely.
    OpenApi(openapi::DocumentId, openapi::Format),
}

/// The encoding of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListEncoding {
    pub(crate) format: Format,
    pub(crate) layout: Layout,
}

/// The formats of lists, the preferred one first. Only some servers offer CBOR, and only for lists
/// of resources.
const LIST_FORMATS: [Format; 4] = [Format::Json, Format::Yaml, Format::Protobuf, Format::Cbor];

/// kube-apiserver sorts up to twelve media types stably. The bridge adds four, which have to stay
/// the first.
const MAX_CLIENT_MEDIA_RANGES: usize = 8;

impl DiscoveryRequest {
    /// Parses a request for a part of the view that the local server does not serve completely.
    pub(crate) fn of(
        head: &Parts,
        path: &str,
        view: &View,
        complete: CompleteDiscovery,
    ) -> Option<Self> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return None;
        }
        let mut parts = path.strip_prefix('/')?.split('/');
        let parts = [parts.next(), parts.next(), parts.next(), parts.next()];
        match (parts, complete) {
            ([Some("apis" | "api"), ..], _) if is_peer_request(head) => None,
            ([Some("apis"), None, ..], _) => {
                match RequestedDiscovery::from_headers(&head.headers, |schema| {
                    view.serves_schema(schema)
                }) {
                    RequestedDiscovery::Merged(encoding) => Some(Self::Document(
                        DiscoveryRoot::Apis,
                        with_layout(encoding, head),
                    )),
                    RequestedDiscovery::Lists if complete == CompleteDiscovery::Enabled => {
                        list_encoding(head, &LIST_FORMATS[..3]).map(Self::Groups)
                    }
                    RequestedDiscovery::Local(_) | RequestedDiscovery::Lists => None,
                }
            }
            (_, CompleteDiscovery::Disabled) => None,
            // `/apis/` is a list for every `Accept` header.
            ([Some("apis"), Some(""), None, _], _) => {
                list_encoding(head, &LIST_FORMATS[..3]).map(Self::Groups)
            }
            ([Some("api"), None, ..], _) => {
                match RequestedDiscovery::from_headers(&head.headers, |schema| {
                    view.serves_schema(schema)
                }) {
                    RequestedDiscovery::Merged(encoding) => Some(Self::Document(
                        DiscoveryRoot::Api,
                        with_layout(encoding, head),
                    )),
                    RequestedDiscovery::Local(_) | RequestedDiscovery::Lists => None,
                }
            }
            ([Some("apis"), Some(group), None, _], _) => {
                view.group(group).0?;
                let encoding = list_encoding(head, &LIST_FORMATS[..3])?;
                Some(Self::Group(group.to_owned(), encoding))
            }
            ([Some("apis"), Some(group), Some(version), None], _) => {
                Self::resources(group, version, head, view)
            }
            ([Some("api"), Some(version), None, _], _) => Self::resources("", version, head, view),
            ([Some("openapi"), Some(_), ..], _) => Self::openapi(path, head, view),
            _ => None,
        }
    }

    fn resources(group: &str, version: &str, head: &Parts, view: &View) -> Option<Self> {
        let (merged, local) = view.version(group, version);
        if merged? == local.unwrap_or(&skewbridge_discovery::document::Version::default()) {
            return None;
        }
        let encoding = list_encoding(head, &LIST_FORMATS)?;
        Some(Self::Resources(
            group.to_owned(),
            version.to_owned(),
            encoding,
        ))
    }

    fn openapi(path: &str, head: &Parts, view: &View) -> Option<Self> {
        // kube-apiserver ignores the profile here: its own documents are never merged.
        if view.incomplete.is_empty() || accept::requests_local_only(&head.headers) {
            return None;
        }
        let document_id = match path {
            "/openapi/v2" => openapi::DocumentId::V2,
            "/openapi/v3" => return Some(Self::OpenApiIndex),
            _ => {
                let key = path.strip_prefix("/openapi/v3/")?;
                let GroupVersion { group, version } = GroupVersion::from_key(key)?;
                let (group, version) = (group.to_owned(), version.to_owned());
                let key = (group, version);
                view.incomplete.get(&key)?;
                let (group, version) = key;
                openapi::DocumentId::GroupVersion { group, version }
            }
        };
        let format = openapi::negotiate(&head.headers, document_id.spec())?;
        Some(Self::OpenApi(document_id, format))
    }

    /// Turns the request into one to the local server. Its response shows whether the caller may
    /// read, and what the local server serves now.
    pub(crate) fn prepare_local_request(&self, head: &mut Parts, view: &View) {
        let headers = &mut head.headers;
        for name in [ACCEPT_ENCODING, IF_NONE_MATCH, IF_MODIFIED_SINCE, RANGE] {
            headers.remove(name);
        }
        let accept = match self {
            Self::Document(root, _) => {
                if let Some(etag) = view.local_etag(*root) {
                    headers.insert(IF_NONE_MATCH, etag.clone());
                }
                let accept = local_document(headers);
                headers.insert(ACCEPT, accept);
                return;
            }
            // Only some servers offer CBOR.
            Self::Resources(_, _, encoding) if encoding.format == Format::Cbor => {
                match negotiate(headers, &LIST_FORMATS[..3]) {
                    Some(_) => "application/cbor,application/json;q=0.5",
                    None => "application/cbor",
                }
            }
            Self::OpenApi(document_id, format) => format.media_type(document_id.spec()),
            Self::Groups(_) | Self::Group(..) | Self::Resources(..) | Self::OpenApiIndex => {
                "application/json"
            }
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
    }
}

/// The `Accept` header for the local server's own document, followed by that of the client, because
/// the format of an error response is negotiated too.
fn local_document(headers: &HeaderMap) -> HeaderValue {
    let mut accept = LOCAL_AGGREGATED.as_bytes().to_vec();
    let mut ranges = 0;
    for requested in headers.get_all(ACCEPT) {
        ranges += requested.as_bytes().split(|byte| *byte == b',').count();
        accept.push(b',');
        accept.extend(requested.as_bytes());
    }
    match HeaderValue::from_bytes(&accept) {
        Ok(accept) if ranges <= MAX_CLIENT_MEDIA_RANGES => accept,
        _ => HeaderValue::from_static(LOCAL_DOCUMENT),
    }
}

/// Whether the request is for the local server's own document, as requests of peers are.
pub(crate) fn is_local_only(head: &Parts, path: &str) -> bool {
    is_apis(head, path)
        && matches!(
            RequestedDiscovery::from_headers(&head.headers, |_| true),
            RequestedDiscovery::Local(_)
        )
}

/// Whether the request is for merged discovery.
pub(crate) fn is_for_merged(head: &Parts, path: &str) -> bool {
    is_apis(head, path)
        && matches!(
            RequestedDiscovery::from_headers(&head.headers, |_| true),
            RequestedDiscovery::Merged(_)
        )
}

pub(crate) fn is_apis(head: &Parts, path: &str) -> bool {
    matches!(head.method, Method::GET | Method::HEAD) && path == "/apis"
}

/// Whether a peer sends the request. A peer that does not understand the document requests lists,
/// which have to be those of the local server too.
fn is_peer_request(head: &Parts) -> bool {
    accept::requests_local_only(&head.headers)
        && !matches!(
            RequestedDiscovery::from_headers(&head.headers, |_| true),
            RequestedDiscovery::Merged(_)
        )
}

fn list_encoding(head: &Parts, offers: &[Format]) -> Option<ListEncoding> {
    Some(ListEncoding {
        format: negotiate(&head.headers, offers)?,
        layout: layout(head),
    })
}

fn with_layout(encoding: DocumentEncoding, head: &Parts) -> DocumentEncoding {
    DocumentEncoding {
        layout: match encoding.layout {
            Layout::Pretty => Layout::Pretty,
            Layout::Compact => layout(head),
        },
        ..encoding
    }
}

/// kube-apiserver indents JSON for requests with `?pretty=true`, and for browsers, curl and wget.
fn layout(head: &Parts) -> Layout {
    let pretty = head.uri.query().and_then(|query| {
        let mut pairs = query.split('&');
        pairs.find_map(|pair| pair.strip_prefix("pretty="))
    });
    let is_pretty = match pretty {
        Some(pretty) if !pretty.is_empty() => {
            matches!(pretty, "1" | "t" | "T" | "true" | "TRUE" | "True")
        }
        _ => is_interactive_client(&head.headers),
    };
    if is_pretty {
        Layout::Pretty
    } else {
        Layout::Compact
    }
}

fn is_interactive_client(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_some_and(|agent| {
        [&b"curl"[..], b"Wget", b"Mozilla/5.0"]
            .iter()
            .any(|it| agent.starts_with(it))
    })
}

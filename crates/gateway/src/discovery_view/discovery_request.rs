//! Which part of the view a request asks for, and what the local server is asked
//! in its place. Pure: every row is a test.

use http::header::{ACCEPT, ACCEPT_ENCODING, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use skewbridge_discovery::accept::{self, LOCAL_AGGREGATED, LOCAL_DOCUMENT};
use skewbridge_discovery::{DocumentEncoding, Layout, RequestedDiscovery};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate};
use skewbridge_openapi::GroupVersion;

use super::{View, Which};
use crate::config::{Feature, Features};
use crate::openapi;

/// Whether what KEP-4020 leaves to the local server is complete too: the gate
/// `CompleteDiscovery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complete {
    /// Also `/api`, lists and OpenAPI.
    Yes,
    /// `/apis` in its aggregated form.
    No,
}

impl Complete {
    pub(crate) fn of(features: &Features) -> Self {
        if features.enabled(Feature::CompleteDiscovery) {
            Self::Yes
        } else {
            Self::No
        }
    }
}

/// A part of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// A document of aggregated discovery.
    Document(Which, DocumentEncoding),
    /// `/apis` as a list.
    Groups(Form),
    /// `/apis/GROUP`
    Group(String, Form),
    /// `/apis/GROUP/VERSION` or `/api/VERSION`, which is not whole here.
    Resources(String, String, Form),
    /// `/openapi/v3`
    OpenApiIndex,
    /// A document of OpenAPI that is not whole here.
    OpenApi(openapi::Page, openapi::Format),
}

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) format: Format,
    pub(crate) layout: Layout,
}

/// What servers write lists in, the best first. CBOR only some, and only lists
/// of resources.
const OFFERS: [Format; 4] = [Format::Json, Format::Yaml, Format::Protobuf, Format::Cbor];

/// kube-apiserver sorts up to twelve media types without changing the order of
/// equals; four are ours, which have to stay the first.
const MAX_RANGES: usize = 8;

impl Question {
    /// Whether a request asks for a part of the view that the local server would
    /// not show whole.
    pub(crate) fn of(head: &Parts, path: &str, view: &View, complete: Complete) -> Option<Self> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return None;
        }
        let mut parts = path.strip_prefix('/')?.split('/');
        let parts = [parts.next(), parts.next(), parts.next(), parts.next()];
        match (parts, complete) {
            ([Some("apis" | "api"), ..], _) if is_among_peers(head) => None,
            ([Some("apis"), None, ..], _) => {
                match RequestedDiscovery::from_headers(&head.headers, |schema| {
                    view.is_spoken(schema)
                }) {
                    RequestedDiscovery::Merged(wish) => {
                        Some(Self::Document(Which::Apis, laid_out(wish, head)))
                    }
                    RequestedDiscovery::Lists if complete == Complete::Yes => {
                        form(head, &OFFERS[..3]).map(Self::Groups)
                    }
                    RequestedDiscovery::Local(_) | RequestedDiscovery::Lists => None,
                }
            }
            (_, Complete::No) => None,
            // A list, whatever is accepted.
            ([Some("apis"), Some(""), None, _], _) => form(head, &OFFERS[..3]).map(Self::Groups),
            ([Some("api"), None, ..], _) => {
                match RequestedDiscovery::from_headers(&head.headers, |schema| {
                    view.is_spoken(schema)
                }) {
                    RequestedDiscovery::Merged(wish) => {
                        Some(Self::Document(Which::Api, laid_out(wish, head)))
                    }
                    RequestedDiscovery::Local(_) | RequestedDiscovery::Lists => None,
                }
            }
            ([Some("apis"), Some(group), None, _], _) => {
                view.group(group).0?;
                let form = form(head, &OFFERS[..3])?;
                Some(Self::Group(group.to_owned(), form))
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
        let (whole, local) = view.version(group, version);
        if whole? == local.unwrap_or(&skewbridge_discovery::document::Version::default()) {
            return None;
        }
        let form = form(head, &OFFERS)?;
        Some(Self::Resources(group.to_owned(), version.to_owned(), form))
    }

    fn openapi(path: &str, head: &Parts, view: &View) -> Option<Self> {
        if view.incomplete.is_empty() {
            return None;
        }
        let page = match path {
            "/openapi/v2" => openapi::Page::Everything,
            "/openapi/v3" => return Some(Self::OpenApiIndex),
            _ => {
                let key = path.strip_prefix("/openapi/v3/")?;
                let GroupVersion { group, version } = GroupVersion::from_key(key)?;
                let (group, version) = (group.to_owned(), version.to_owned());
                let key = (group, version);
                view.incomplete.get(&key)?;
                let (group, version) = key;
                openapi::Page::GroupVersion { group, version }
            }
        };
        let format = openapi::negotiate(&head.headers, page.spec())?;
        Some(Self::OpenApi(page, format))
    }

    /// Turns the request into one to the local server that says whether this
    /// caller may read, and what is there beside what we know.
    pub(crate) fn ask_local(&self, head: &mut Parts, view: &View) {
        let headers = &mut head.headers;
        for name in [ACCEPT_ENCODING, IF_NONE_MATCH, IF_MODIFIED_SINCE, RANGE] {
            headers.remove(name);
        }
        let accept = match self {
            Self::Document(which, _) => {
                if let Some(etag) = view.local_etag(*which) {
                    headers.insert(IF_NONE_MATCH, etag.clone());
                }
                let accept = local_document(headers);
                headers.insert(ACCEPT, accept);
                return;
            }
            // Only the server knows whether it offers that.
            Self::Resources(_, _, form) if form.format == Format::Cbor => {
                match negotiate(headers, &OFFERS[..3]) {
                    Some(_) => "application/cbor,application/json;q=0.5",
                    None => "application/cbor",
                }
            }
            Self::OpenApi(page, format) => format.media_type(page.spec()),
            Self::Groups(_) | Self::Group(..) | Self::Resources(..) | Self::OpenApiIndex => {
                "application/json"
            }
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
    }
}

/// The local server's own document; and if it has none for this caller, whatever it
/// says to one who asks in this way: the form of a refusal is negotiated too.
fn local_document(headers: &HeaderMap) -> HeaderValue {
    let mut accept = LOCAL_AGGREGATED.as_bytes().to_vec();
    let mut ranges = 0;
    for asked in headers.get_all(ACCEPT) {
        ranges += asked.as_bytes().split(|byte| *byte == b',').count();
        accept.push(b',');
        accept.extend(asked.as_bytes());
    }
    match HeaderValue::from_bytes(&accept) {
        Ok(accept) if ranges <= MAX_RANGES => accept,
        _ => HeaderValue::from_static(LOCAL_DOCUMENT),
    }
}

/// Whether a caller wants the local server's own document, as peers do.
pub(crate) fn is_for_local_alone(head: &Parts, path: &str) -> bool {
    is_apis(head, path)
        && matches!(
            RequestedDiscovery::from_headers(&head.headers, |_| true),
            RequestedDiscovery::Local(_)
        )
}

/// Whether a caller would be given the document of the whole cluster, if there
/// were one.
pub(crate) fn is_for_all(head: &Parts, path: &str) -> bool {
    is_apis(head, path)
        && matches!(
            RequestedDiscovery::from_headers(&head.headers, |_| true),
            RequestedDiscovery::Merged(_)
        )
}

pub(crate) fn is_apis(head: &Parts, path: &str) -> bool {
    matches!(head.method, Method::GET | Method::HEAD) && path == "/apis"
}

/// A document that is asked for may be one that is not understood: then the lists
/// that follow it are meant so too.
fn is_among_peers(head: &Parts) -> bool {
    accept::requests_local_only(&head.headers)
        && !matches!(
            RequestedDiscovery::from_headers(&head.headers, |_| true),
            RequestedDiscovery::Merged(_)
        )
}

fn form(head: &Parts, offers: &[Format]) -> Option<Form> {
    Some(Form {
        format: negotiate(&head.headers, offers)?,
        layout: layout(head),
    })
}

fn laid_out(wish: DocumentEncoding, head: &Parts) -> DocumentEncoding {
    DocumentEncoding {
        layout: match wish.layout {
            Layout::Pretty => Layout::Pretty,
            Layout::Compact => layout(head),
        },
        ..wish
    }
}

/// kube-apiserver lays JSON out for those who say that they want it, and for
/// browsers and command lines.
fn layout(head: &Parts) -> Layout {
    let said = head.uri.query().and_then(|query| {
        let mut pairs = query.split('&');
        pairs.find_map(|pair| pair.strip_prefix("pretty="))
    });
    let is_for_people = match said {
        Some(said) if !said.is_empty() => {
            matches!(said, "1" | "t" | "T" | "true" | "TRUE" | "True")
        }
        _ => is_read_by_people(&head.headers),
    };
    if is_for_people {
        Layout::Pretty
    } else {
        Layout::Compact
    }
}

fn is_read_by_people(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_some_and(|agent| {
        [&b"curl"[..], b"Wget", b"Mozilla/5.0"]
            .iter()
            .any(|it| agent.starts_with(it))
    })
}

//! What each server of a cluster serves, as a bridge reports it.
//!
//! A client requests it at `/apis` by its `Accept` header ([`ACCEPT`]). A kube-apiserver does
//! not support the media type and uses the next alternative, as with `profile=nopeer`. The
//! `Content-Type` shows whether a bridge answered.

use http::HeaderMap;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use skewbridge_k8s_api::content_negotiation::{MediaRange, sorted_accept};

use crate::document::Group;
use crate::parse::{ParseError, TypeMeta, null_as_default, read};

const KIND: &str = "ServerDiscoveryList";
const GROUP: &str = "skewbridge.io";
const VERSION: &str = "v1alpha1";
const API_VERSION: &str = "skewbridge.io/v1alpha1";

/// The media type.
pub const MEDIA_TYPE: &str = "application/json;g=skewbridge.io;v=v1alpha1;as=ServerDiscoveryList";

const OPENAPI_KIND: &str = "ServerOpenAPI";

/// The media type of the OpenAPI of one server.
pub const OPENAPI_MEDIA_TYPE: &str = "application/json;g=skewbridge.io;v=v1alpha1;as=ServerOpenAPI";

/// What a client sends: this media type first, then the alternatives
/// ([`LOCAL_DOCUMENT`](crate::accept::LOCAL_DOCUMENT)).
pub const ACCEPT: &str = concat!(
    "application/json;g=skewbridge.io;v=v1alpha1;as=ServerDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,",
    "application/json",
);

/// The servers of a cluster, as a bridge reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerDiscoveryList {
    /// Sorted by identity.
    pub servers: Vec<ServerDiscovery>,
    /// Why the bridge is local-only, if it is. Then `servers` is empty.
    pub local_only: Option<String>,
    /// The leaders of the control plane whose requests the bridge has seen.
    pub leaders: Vec<Leader>,
    /// The version of the bridge.
    pub bridge_version: Option<String>,
}

/// A component that has renewed the Lease of its leader election in `kube-system`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leader {
    /// The name of the component and of the Lease: `kube-scheduler`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub component: String,
    /// The version in its user agent: `v1.36.4`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub version: String,
    /// The time since it has renewed the Lease through this bridge.
    #[serde(default, deserialize_with = "null_as_default")]
    pub renewed_seconds_ago: u64,
}

/// A kube-apiserver and what it serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerDiscovery {
    /// The name of its identity Lease.
    #[serde(default, deserialize_with = "null_as_default")]
    pub identity: String,
    /// The host that it runs on, if its identity Lease names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its `gitVersion`: `v1.34.4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether it is the server behind the answering bridge.
    #[serde(default, deserialize_with = "null_as_default")]
    pub local: bool,
    /// Where the bridge reaches it, if it is not the local one: `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether the last request to it succeeded.
    #[serde(default, deserialize_with = "null_as_default")]
    pub reachable: bool,
    /// When its discovery was last fetched, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// Why requests have failed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What it serves, including the core group. `None` if its discovery was not fetched yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<Group>>,
}

impl ServerDiscoveryList {
    /// Parses a list. Unknown fields are ignored, and `null` is treated as missing.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default, deserialize_with = "null_as_default")]
            servers: Vec<ServerDiscovery>,
            #[serde(default, rename = "localOnly")]
            local_only: Option<String>,
            #[serde(default, deserialize_with = "null_as_default")]
            leaders: Vec<Leader>,
            #[serde(default, rename = "bridgeVersion")]
            bridge_version: Option<String>,
        }
        let meta = TypeMeta::expect(bytes, KIND)?;
        if meta.api_version != API_VERSION {
            return Err(meta.unexpected(KIND));
        }
        let Body {
            servers,
            local_only,
            leaders,
            bridge_version,
        } = read(bytes, KIND)?;
        Ok(Self {
            servers,
            local_only,
            leaders,
            bridge_version,
        })
    }
}

impl Serialize for ServerDiscoveryList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let optional = [
            self.local_only.is_some(),
            !self.leaders.is_empty(),
            self.bridge_version.is_some(),
        ];
        let fields = 3 + optional.map(usize::from).iter().sum::<usize>();
        let mut list = serializer.serialize_struct(KIND, fields)?;
        list.serialize_field("kind", KIND)?;
        list.serialize_field("apiVersion", API_VERSION)?;
        list.serialize_field("servers", &self.servers)?;
        if let Some(reason) = &self.local_only {
            list.serialize_field("localOnly", reason)?;
        }
        if !self.leaders.is_empty() {
            list.serialize_field("leaders", &self.leaders)?;
        }
        if let Some(version) = &self.bridge_version {
            list.serialize_field("bridgeVersion", version)?;
        }
        list.end()
    }
}

/// Whether a `Content-Type` is that of a [`ServerDiscoveryList`].
pub fn is_content_type(text: &str) -> bool {
    MediaRange::parse(text).is_some_and(|range| matches_media_type(&range))
}

/// What a client sends to get the OpenAPI of one server of the cluster, in place of that of all.
/// Other servers than bridges ignore the parameters; the `Content-Type` shows whether a bridge
/// answered.
pub fn openapi_accept(identity: &str) -> String {
    format!("{OPENAPI_MEDIA_TYPE};server={identity}")
}

/// The server whose OpenAPI a client requests.
pub fn requested_openapi_server(headers: &HeaderMap) -> Option<String> {
    let accepted = sorted_accept(headers)?;
    let first = accepted.first().filter(|range| range.quality > 0)?;
    is_of(first, OPENAPI_KIND).then(|| first.parameter("server").map(str::to_owned))?
}

/// Whether a `Content-Type` is that of the OpenAPI of one server.
pub fn is_openapi_content_type(text: &str) -> bool {
    MediaRange::parse(text).is_some_and(|range| is_of(&range, OPENAPI_KIND))
}

/// Whether a client prefers it over all other media types.
pub fn is_requested(headers: &HeaderMap) -> bool {
    let accepted = sorted_accept(headers).unwrap_or_default();
    let first = accepted.first().filter(|range| range.quality > 0);
    first.is_some_and(matches_media_type)
}

fn matches_media_type(range: &MediaRange<'_>) -> bool {
    is_of(range, KIND)
}

fn is_of(range: &MediaRange<'_>, kind: &str) -> bool {
    let has_parameter = |name: &str, value: &str| {
        range
            .parameters
            .iter()
            .any(|(key, found)| key == name && found.eq_ignore_ascii_case(value))
    };
    (&*range.kind, &*range.subtype) == ("application", "json")
        && has_parameter("g", GROUP)
        && has_parameter("v", VERSION)
        && has_parameter("as", kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::{DiscoveryFormat, LOCAL_DOCUMENT, RequestedDiscovery};

    fn accepting(accept: &str) -> HeaderMap {
        let value = accept.parse().unwrap();
        HeaderMap::from_iter([(http::header::ACCEPT, value)])
    }

    #[test]
    fn it_is_requested_before_the_standard_media_types() {
        assert_eq!(ACCEPT, format!("{MEDIA_TYPE},{LOCAL_DOCUMENT}"));
        assert!(is_requested(&accepting(ACCEPT)));
        // A server without support answers with its own discovery.
        let requested = RequestedDiscovery::from_headers(&accepting(ACCEPT), |_| true);
        assert!(
            matches!(requested, RequestedDiscovery::Local(_)),
            "{requested:?}"
        );
    }

    #[test]
    fn it_is_returned_only_if_the_client_prefers_it() {
        let rows = [
            (MEDIA_TYPE.to_owned(), true),
            (ACCEPT.to_owned(), true),
            (format!("{MEDIA_TYPE};q=0.9,application/json"), false),
            (format!("{MEDIA_TYPE};q=0"), false),
            (format!("application/json,{MEDIA_TYPE}"), false),
            (format!("application/json;q=0.5,{MEDIA_TYPE}"), true),
            (LOCAL_DOCUMENT.to_owned(), false),
            ("*/*".to_owned(), false),
            (String::new(), false),
        ];
        for (accept, expected) in rows {
            assert_eq!(is_requested(&accepting(&accept)), expected, "{accept}");
        }
    }

    #[test]
    fn the_response_is_recognised_by_its_content_type() {
        let rows = [
            (MEDIA_TYPE, true),
            (
                "Application/JSON; charset=utf-8; As=serverdiscoverylist; v=v1alpha1; g=\"skewbridge.io\"",
                true,
            ),
            ("application/json", false),
            (
                "application/json;g=skewbridge.io;v=v1;as=ServerDiscoveryList",
                false,
            ),
            (
                "application/json;g=skewbridge.io;v=v1alpha1;as=Table",
                false,
            ),
            (
                "application/cbor;g=skewbridge.io;v=v1alpha1;as=ServerDiscoveryList",
                false,
            ),
            (crate::accept::V2, false),
            ("", false),
        ];
        for (text, expected) in rows {
            assert_eq!(is_content_type(text), expected, "{text}");
        }
        // A client without support parses it as a list of groups, and then rejects its kind.
        assert_eq!(
            DiscoveryFormat::from_content_type(MEDIA_TYPE),
            Some(DiscoveryFormat::Legacy)
        );
    }

    #[test]
    fn unknown_fields_of_a_server_are_omitted() {
        let list = ServerDiscoveryList {
            servers: vec![
                ServerDiscovery {
                    identity: "apiserver-a".to_owned(),
                    version: Some("v1.34.4".to_owned()),
                    local: true,
                    reachable: true,
                    last_sync: Some("2026-11-15T12:00:00Z".to_owned()),
                    groups: Some(Vec::new()),
                    ..ServerDiscovery::default()
                },
                ServerDiscovery {
                    identity: "apiserver-b".to_owned(),
                    address: Some("10.0.0.2:6443".to_owned()),
                    problem: Some("connection refused".to_owned()),
                    ..ServerDiscovery::default()
                },
            ],
            ..ServerDiscoveryList::default()
        };
        let text = concat!(
            r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","servers":["#,
            r#"{"identity":"apiserver-a","version":"v1.34.4","local":true,"reachable":true,"#,
            r#""lastSync":"2026-11-15T12:00:00Z","groups":[]},"#,
            r#"{"identity":"apiserver-b","local":false,"address":"10.0.0.2:6443","#,
            r#""reachable":false,"problem":"connection refused"}]}"#
        );
        assert_eq!(serde_json::to_string(&list).unwrap(), text);
        assert_eq!(ServerDiscoveryList::parse(text.as_bytes()).unwrap(), list);
        let list = ServerDiscoveryList {
            local_only: Some("the gate is off".to_owned()),
            leaders: vec![Leader {
                component: "kube-scheduler".to_owned(),
                version: "v1.36.4".to_owned(),
                renewed_seconds_ago: 2,
            }],
            bridge_version: Some("0.2.0".to_owned()),
            ..ServerDiscoveryList::default()
        };
        let text = concat!(
            r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","#,
            r#""servers":[],"localOnly":"the gate is off","leaders":[{"component":"#,
            r#""kube-scheduler","version":"v1.36.4","renewedSecondsAgo":2}],"#,
            r#""bridgeVersion":"0.2.0"}"#
        );
        assert_eq!(serde_json::to_string(&list).unwrap(), text);
        assert_eq!(ServerDiscoveryList::parse(text.as_bytes()).unwrap(), list);
    }

    #[test]
    fn the_openapi_of_one_server_is_requested_by_its_identity() {
        for (accept, expected) in [
            (&*openapi_accept("apiserver-a"), Some("apiserver-a")),
            (OPENAPI_MEDIA_TYPE, None),
            (MEDIA_TYPE, None),
            ("application/json;server=apiserver-a", None),
            ("application/json", None),
        ] {
            let headers = accepting(accept);
            assert_eq!(
                requested_openapi_server(&headers).as_deref(),
                expected,
                "{accept}"
            );
            assert!(!is_requested(&headers) || accept == MEDIA_TYPE, "{accept}");
        }
        assert!(is_openapi_content_type(OPENAPI_MEDIA_TYPE));
        assert!(!is_openapi_content_type(MEDIA_TYPE));
        assert!(!is_openapi_content_type("application/json"));
    }

    #[test]
    fn groups_serialise_like_in_a_document() {
        let bytes = include_bytes!("../tests/data/1.36.4-all-apis.json");
        let document = crate::Document::parse(bytes).unwrap();
        let list = ServerDiscoveryList {
            servers: vec![ServerDiscovery {
                groups: Some(document.items.clone()),
                ..ServerDiscovery::default()
            }],
            ..ServerDiscoveryList::default()
        };
        let written = serde_json::to_vec(&list).unwrap();
        assert_eq!(ServerDiscoveryList::parse(&written).unwrap(), list);
        let items = serde_json::to_string(&document.items).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert!(written.ends_with(&format!(r#""groups":{items}}}]}}"#)));
    }

    #[test]
    fn other_objects_are_rejected_and_missing_fields_have_defaults() {
        let empty = r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","servers":null,"new":1}"#;
        let read = ServerDiscoveryList::parse(empty.as_bytes()).unwrap();
        assert_eq!(read, ServerDiscoveryList::default());
        let gaps = r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","servers":[
            {"identity":null,"version":null,"local":null,"address":null,"reachable":null,
             "lastSync":null,"problem":null,"groups":null,"mood":"fine"},{}]}"#;
        let read = ServerDiscoveryList::parse(gaps.as_bytes()).unwrap();
        assert_eq!(read.servers, vec![ServerDiscovery::default(); 2]);

        let deep = format!(
            r#"{{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","servers":{}"#,
            "[".repeat(100_000)
        );
        for text in [
            "",
            "[]",
            "{}",
            r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#,
            r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v2","servers":[]}"#,
            r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","servers":[7]}"#,
            r#"{"kind":"ServerDiscoveryList","apiVersion":"skewbridge.io/v1alpha1","servers":[{"groups":{}}]}"#,
            &deep,
        ] {
            assert!(
                ServerDiscoveryList::parse(text.as_bytes()).is_err(),
                "{text:.100}"
            );
        }
    }
}

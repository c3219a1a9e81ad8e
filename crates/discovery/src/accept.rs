//! Content negotiation of discovery: how a document is requested, and which format a response
//! has.

use http::HeaderMap;
use skewbridge_k8s_api::content_negotiation::{Format, MediaRange, sorted_accept};

use crate::document::Schema;
use crate::object::Layout;

/// The media type for what the server itself serves, for servers that merge the discovery of their
/// peers (1.35 and later). Other servers ignore the profile.
pub const V2_NOPEER: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer";
/// Aggregated discovery of 1.30 and later.
pub const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Aggregated discovery of 1.26 and later.
pub const V2_BETA1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// The lists that every server has.
pub const LEGACY: &str = "application/json";
/// The lists of the server itself, for a bridge that would merge them. Servers ignore the
/// profile.
pub const LEGACY_NOPEER: &str = "application/json;profile=nopeer";

/// A document in any version, the best first: a server takes the first that it supports.
pub const LOCAL_AGGREGATED: &str = concat!(
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
);

/// The same, and lists for a server without aggregated discovery.
pub const LOCAL_DOCUMENT: &str = concat!(
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,",
    "application/json",
);

/// The format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryFormat {
    /// A document in `apidiscovery.k8s.io/v2`.
    V2,
    /// A document in `apidiscovery.k8s.io/v2beta1`.
    V2Beta1,
    /// `APIVersions` or an `APIGroupList`, from a server older than 1.26.
    Legacy,
}

impl DiscoveryFormat {
    /// From the `Content-Type`. `None` if that is not JSON.
    pub fn from_content_type(text: &str) -> Option<Self> {
        let media = MediaRange::parse(text)?;
        if (&*media.kind, &*media.subtype) != ("application", "json") {
            return None;
        }
        let has_parameter = |name: &str, value: &str| {
            media
                .parameters
                .iter()
                .any(|(key, found)| key == name && found.eq_ignore_ascii_case(value))
        };
        if !has_parameter("g", "apidiscovery.k8s.io")
            || !has_parameter("as", "APIGroupDiscoveryList")
        {
            Some(Self::Legacy)
        } else if has_parameter("v", "v2") {
            Some(Self::V2)
        } else if has_parameter("v", "v2beta1") {
            Some(Self::V2Beta1)
        } else {
            Some(Self::Legacy)
        }
    }
}

/// What a client requests from `/api` or `/apis`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedDiscovery {
    /// The merged document of the whole cluster.
    Merged(DocumentEncoding),
    /// The document of the server itself.
    Local(DocumentEncoding),
    /// The older lists.
    Lists,
}

/// The encoding of a requested document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentEncoding {
    /// The schema version.
    pub schema: Schema,
    /// The serialisation format.
    pub format: Format,
    /// The JSON layout.
    pub layout: Layout,
}

/// The formats that servers offer for documents, the best first.
const OFFERS: [Format; 3] = [Format::Json, Format::Yaml, Format::Protobuf];

impl RequestedDiscovery {
    /// Negotiates like kube-apiserver: alternatives other than documents are skipped, and the
    /// first that the server supports counts. The document of the server itself is requested
    /// by the profile `nopeer` (in kube-apiserver) or `local` (in KEP-4020).
    pub fn from_headers(headers: &HeaderMap, supports: impl Fn(Schema) -> bool) -> Self {
        let mut from_peer = false;
        for range in sorted_accept(headers).unwrap_or_default() {
            let Some(schema) = schema(&range).filter(|_| !range.has_unsupported_parameters())
            else {
                continue;
            };
            // Such a request comes from a server that requests what this server serves itself, also
            // if only a later alternative is supported. With a merged answer, two servers could
            // keep reporting an API to each other that neither has.
            from_peer |= is_local(&range);
            let format = OFFERS.into_iter().find(|format| range.includes(*format));
            let (Some(format), true) = (format, supports(schema)) else {
                continue;
            };
            let encoding = DocumentEncoding {
                schema,
                format,
                layout: match range.parameter("pretty") {
                    Some("1") => Layout::Pretty,
                    _ => Layout::Compact,
                },
            };
            return if from_peer {
                Self::Local(encoding)
            } else {
                Self::Merged(encoding)
            };
        }
        Self::Lists
    }
}

impl DocumentEncoding {
    /// The content type of the response.
    pub fn content_type(self) -> &'static str {
        match (self.format, self.schema) {
            (Format::Protobuf, Schema::V2) => PROTOBUF_V2,
            (Format::Protobuf, Schema::V2Beta1) => PROTOBUF_V2_BETA1,
            (Format::Yaml, Schema::V2) => YAML_V2,
            (Format::Yaml, Schema::V2Beta1) => YAML_V2_BETA1,
            (Format::Json | Format::Cbor, Schema::V2) => V2,
            (Format::Json | Format::Cbor, Schema::V2Beta1) => V2_BETA1,
        }
    }
}

const PROTOBUF_V2: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF_V2_BETA1: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const YAML_V2: &str = "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const YAML_V2_BETA1: &str =
    "application/yaml;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Whether a request is for what the server itself serves, in any format.
pub fn requests_local_only(headers: &HeaderMap) -> bool {
    let ranges = sorted_accept(headers).unwrap_or_default();
    ranges.iter().any(is_local)
}

fn is_local(range: &MediaRange<'_>) -> bool {
    matches!(range.parameter("profile"), Some("nopeer" | "local"))
}

/// The document version that an alternative requests.
fn schema(range: &MediaRange<'_>) -> Option<Schema> {
    let names = ["g", "v", "as"].map(|name| range.parameter(name));
    match names {
        [Some("apidiscovery.k8s.io"), Some("v2"), Some(LIST)] => Some(Schema::V2),
        [Some("apidiscovery.k8s.io"), Some("v2beta1"), Some(LIST)] => Some(Schema::V2Beta1),
        _ => None,
    }
}

const LIST: &str = "APIGroupDiscoveryList";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_format_is_requested_first() {
        let beta_nopeer = format!("{V2_BETA1};profile=nopeer");
        let offers = [V2_NOPEER, V2, &beta_nopeer, V2_BETA1, LEGACY];
        assert_eq!(LOCAL_DOCUMENT, offers.join(","));
        assert_eq!(LOCAL_DOCUMENT, format!("{LOCAL_AGGREGATED},{LEGACY}"));
    }

    #[test]
    fn the_format_is_derived_from_the_content_type() {
        let rows = [
            (V2_NOPEER, Some(DiscoveryFormat::V2)),
            (V2, Some(DiscoveryFormat::V2)),
            (V2_BETA1, Some(DiscoveryFormat::V2Beta1)),
            (LEGACY, Some(DiscoveryFormat::Legacy)),
            (
                "Application/JSON ; AS=apigroupdiscoverylist; V=V2 ;G=\"apidiscovery.k8s.io\"",
                Some(DiscoveryFormat::V2),
            ),
            (
                "application/json;charset=utf-8;as=APIGroupDiscoveryList;v=\"v2beta1\";g=apidiscovery.k8s.io;",
                Some(DiscoveryFormat::V2Beta1),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
                Some(DiscoveryFormat::Legacy),
            ),
            (
                "application/json;g=meta.k8s.io;v=v2;as=APIGroupDiscoveryList",
                Some(DiscoveryFormat::Legacy),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2",
                Some(DiscoveryFormat::Legacy),
            ),
            (
                "application/json; charset=utf-8",
                Some(DiscoveryFormat::Legacy),
            ),
            (
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                None,
            ),
            ("text/plain; charset=utf-8", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(DiscoveryFormat::from_content_type(text), expected, "{text}");
        }
    }

    fn requested(accept: &[&str], supports: fn(Schema) -> bool) -> RequestedDiscovery {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(http::header::ACCEPT, value.parse().unwrap());
        }
        RequestedDiscovery::from_headers(&headers, supports)
    }

    fn encoding(schema: Schema, format: Format) -> DocumentEncoding {
        DocumentEncoding {
            schema,
            format,
            layout: Layout::Compact,
        }
    }

    const BETA_TOO: fn(Schema) -> bool = |_| true;
    const ONLY_V2: fn(Schema) -> bool = |schema| schema == Schema::V2;
    const ONLY_BETA: fn(Schema) -> bool = |schema| schema == Schema::V2Beta1;

    #[test]
    fn the_first_supported_document_is_chosen() {
        let v2 = RequestedDiscovery::Merged(encoding(Schema::V2, Format::Json));
        let beta = RequestedDiscovery::Merged(encoding(Schema::V2Beta1, Format::Json));
        let local = RequestedDiscovery::Local(encoding(Schema::V2, Format::Json));
        let local_beta = RequestedDiscovery::Local(encoding(Schema::V2Beta1, Format::Json));
        let client = format!("{V2},{V2_BETA1},{LEGACY}");
        let lists_first = format!("{LEGACY},{V2}");
        let low = format!("{V2};q=0.5,{V2_BETA1}");
        let kep = format!("{V2};profile=local,{V2}");
        let peers_first = format!("{V2},{V2_NOPEER}");
        let unknown = format!("{V2};profile=other");
        let twice = format!("{V2_NOPEER};profile=local");
        let any = V2.replace("application/json", "*/*");
        let rows = [
            (&*client, BETA_TOO, v2),
            (&client, ONLY_V2, v2),
            (&client, ONLY_BETA, beta),
            // Alternatives other than documents are skipped, at any position.
            (&lists_first, ONLY_V2, v2),
            (&low, BETA_TOO, beta),
            (&low, ONLY_V2, v2),
            (V2_BETA1, ONLY_V2, RequestedDiscovery::Lists),
            (V2_NOPEER, BETA_TOO, local),
            (LOCAL_DOCUMENT, BETA_TOO, local),
            (LOCAL_DOCUMENT, ONLY_BETA, local_beta),
            (&kep, BETA_TOO, local),
            (&peers_first, BETA_TOO, v2),
            (&unknown, BETA_TOO, v2),
            (&twice, BETA_TOO, local),
            (&any, BETA_TOO, v2),
            (LEGACY, BETA_TOO, RequestedDiscovery::Lists),
            ("*/*", BETA_TOO, RequestedDiscovery::Lists),
            ("", BETA_TOO, RequestedDiscovery::Lists),
            ("text/html", BETA_TOO, RequestedDiscovery::Lists),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                BETA_TOO,
                RequestedDiscovery::Lists,
            ),
        ];
        for (accept, supports, expected) in rows {
            assert_eq!(requested(&[accept], supports), expected, "{accept}");
        }
        // Only the first header counts.
        assert_eq!(requested(&[V2_BETA1, V2], BETA_TOO), beta);
        assert_eq!(
            requested(&[LEGACY, V2], BETA_TOO),
            RequestedDiscovery::Lists
        );
        assert_eq!(requested(&[], BETA_TOO), RequestedDiscovery::Lists);
    }

    #[test]
    fn a_document_has_the_requested_format() {
        for (media, format, content_type) in [
            ("application/json", Format::Json, V2),
            (
                "application/vnd.kubernetes.protobuf",
                Format::Protobuf,
                PROTOBUF_V2,
            ),
            ("application/yaml", Format::Yaml, YAML_V2),
        ] {
            let accept = V2.replace("application/json", media);
            let expected = encoding(Schema::V2, format);
            assert_eq!(
                requested(&[&accept], ONLY_V2),
                RequestedDiscovery::Merged(expected)
            );
            assert_eq!(expected.content_type(), content_type);
            let beta = encoding(Schema::V2Beta1, format).content_type();
            assert_eq!(beta, content_type.replace("v=v2;", "v=v2beta1;"));
        }
        let cbor = V2.replace("json", "cbor");
        assert_eq!(requested(&[&cbor], ONLY_V2), RequestedDiscovery::Lists);
        let pretty = format!("{V2};pretty=1");
        let RequestedDiscovery::Merged(encoding) = requested(&[&pretty], ONLY_V2) else {
            panic!("not merged");
        };
        assert_eq!(encoding.layout, Layout::Pretty);
    }
}

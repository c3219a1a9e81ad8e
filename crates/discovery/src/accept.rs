//! How a document is asked for, and in which form the answer came.

use http::HeaderMap;
use skewbridge_api::media::{Format, MediaRange, alternatives};

use crate::document::Schema;
use crate::object::Layout;

/// What this server itself serves, by one that merges its peers' discovery into
/// its own (1.35 and later). Servers that know no such profile pass it over.
pub const V2_NOPEER: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer";
/// Aggregated discovery of 1.30 and later.
pub const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Aggregated discovery of 1.26 and later.
pub const V2_BETA1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// The lists that every server has.
pub const LEGACY: &str = "application/json";
/// The same of the server itself, by a bridge that would complete them. Servers pass
/// the profile over.
pub const LEGACY_NOPEER: &str = "application/json;profile=nopeer";

/// A document in any version, the best first: a server takes the first that it
/// knows.
pub const LOCAL_AGGREGATED: &str = concat!(
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
);

/// The same, and lists of a server that knows no documents.
pub const LOCAL_DOCUMENT: &str = concat!(
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,",
    "application/json",
);

/// In which form an answer came.
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
    /// By the `Content-Type`. None if that is not JSON.
    pub fn from_content_type(text: &str) -> Option<Self> {
        let media = MediaRange::parse(text)?;
        if (&*media.kind, &*media.subkind) != ("application", "json") {
            return None;
        }
        let says = |name: &str, value: &str| {
            media
                .parameters
                .iter()
                .any(|(key, said)| key == name && said.eq_ignore_ascii_case(value))
        };
        if !says("g", "apidiscovery.k8s.io") || !says("as", "APIGroupDiscoveryList") {
            Some(Self::Legacy)
        } else if says("v", "v2") {
            Some(Self::V2)
        } else if says("v", "v2beta1") {
            Some(Self::V2Beta1)
        } else {
            Some(Self::Legacy)
        }
    }
}

/// What a client wants of `/api` or `/apis`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedDiscovery {
    /// The document of the whole cluster.
    Merged(DocumentEncoding),
    /// That of the server itself.
    Local(DocumentEncoding),
    /// Lists, as before there were documents.
    Lists,
}

/// In which form a document is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentEncoding {
    /// In which version.
    pub schema: Schema,
    /// In which format.
    pub format: Format,
    /// How it is laid out.
    pub layout: Layout,
}

/// What servers write documents in, the best first.
const OFFERS: [Format; 3] = [Format::Json, Format::Yaml, Format::Protobuf];

impl RequestedDiscovery {
    /// As kube-apiserver negotiates: what is no document is passed over, and of
    /// the others the first that the server understands counts. The document of
    /// the server alone is asked for by the profile `nopeer` (on the wire) or
    /// `local` (in KEP-4020).
    pub fn from_headers(headers: &HeaderMap, understands: impl Fn(Schema) -> bool) -> Self {
        let mut among_peers = false;
        for range in alternatives(headers).unwrap_or_default() {
            let Some(schema) = schema(&range).filter(|_| !range.is_beyond_objects()) else {
                continue;
            };
            // Who asks so is a server that wants to know what this one serves by
            // itself, also where only a later alternative is understood. Were it
            // told more, two servers could keep telling each other of an API that
            // neither has.
            among_peers |= is_local(&range);
            let format = OFFERS.into_iter().find(|format| range.includes(*format));
            let (Some(format), true) = (format, understands(schema)) else {
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
            return if among_peers {
                Self::Local(encoding)
            } else {
                Self::Merged(encoding)
            };
        }
        Self::Lists
    }
}

impl DocumentEncoding {
    /// Of the answer.
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

/// Whether somebody wants to know what a server serves by itself, in whatever form.
pub fn requests_local_only(headers: &HeaderMap) -> bool {
    let ranges = alternatives(headers).unwrap_or_default();
    ranges.iter().any(is_local)
}

fn is_local(range: &MediaRange<'_>) -> bool {
    matches!(range.parameter("profile"), Some("nopeer" | "local"))
}

/// The version of documents that an alternative asks for.
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
    fn the_best_form_is_asked_for_first() {
        let beta_nopeer = format!("{V2_BETA1};profile=nopeer");
        let offers = [V2_NOPEER, V2, &beta_nopeer, V2_BETA1, LEGACY];
        assert_eq!(LOCAL_DOCUMENT, offers.join(","));
        assert_eq!(LOCAL_DOCUMENT, format!("{LOCAL_AGGREGATED},{LEGACY}"));
    }

    #[test]
    fn the_form_is_told_by_the_content_type() {
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

    fn requested(accept: &[&str], understands: fn(Schema) -> bool) -> RequestedDiscovery {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(http::header::ACCEPT, value.parse().unwrap());
        }
        RequestedDiscovery::from_headers(&headers, understands)
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
    fn the_first_document_that_is_understood_is_wanted() {
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
            // What is no document is passed over, wherever it stands.
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
        for (accept, understands, expected) in rows {
            assert_eq!(requested(&[accept], understands), expected, "{accept}");
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
    fn a_document_comes_in_the_format_that_is_asked_for() {
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

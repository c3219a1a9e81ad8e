//! OpenAPI: enough for `kubectl apply` to detect options of a server, and for `kubectl explain`
//! with hand-written descriptions.
//!
//! Strategic merge patches are supported but not advertised: kubectl would compute them from
//! these schemas, which lack some lists. It has the real ones built in.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use aws_lc_rs::digest::{SHA512, digest};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate, sorted_accept};
use skewbridge_k8s_api::protobuf::Writer;

use super::query::Query;
use super::responses::{self, ApiResponse};
use super::schemas::{Dialect, gvk, kind_name, schemas};
use crate::catalogue::{Catalogue, Served};
use crate::status::not_acceptable;

/// The only format of version 3.
const JSON: &str = "application/json";
/// The media type of version 2 in protobuf, in requests and in responses.
const V2_PROTOBUF: &str = "com.github.proto-openapi.spec.v2@v1.0+protobuf";
const V2_PROTOBUF_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The documents of a server, generated when they are first requested.
pub(super) struct Documents {
    catalogue: Catalogue,
    v3: OnceLock<BTreeMap<String, Document>>,
    v2: OnceLock<Bytes>,
}

struct Document {
    bytes: Bytes,
    hash: String,
}

impl Documents {
    pub(super) fn new(catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            v3: OnceLock::new(),
            v2: OnceLock::new(),
        }
    }

    /// By their paths below `/openapi/v3/`.
    fn v3(&self) -> &BTreeMap<String, Document> {
        self.v3.get_or_init(|| {
            let versions = self.catalogue.versions();
            versions
                .map(|(group, version)| {
                    let path = match group {
                        "" => format!("api/{version}"),
                        group => format!("apis/{group}/{version}"),
                    };
                    let document = self.document(group, version, &path);
                    (path, document)
                })
                .collect()
        })
    }

    fn document(&self, group: &str, version: &str, path: &str) -> Document {
        let mut paths = Map::new();
        for served in self.catalogue.in_version(group, version) {
            describe(&served, path, &mut paths);
        }
        let of_version = self.catalogue.in_version(group, version);
        let document = json!({
            "openapi": "3.0.0",
            "info": self.info(),
            "paths": paths,
            "components": {"schemas": schemas(of_version, self.catalogue.release(), Dialect::V3)},
        });
        let bytes = Bytes::from(document.to_string());
        let mut hash = String::new();
        for byte in digest(&SHA512, &bytes).as_ref() {
            // Writing to a String does not fail.
            let _ = write!(hash, "{byte:02X}");
        }
        Document { bytes, hash }
    }

    fn v2(&self) -> &Bytes {
        self.v2.get_or_init(|| {
            let document = json!({
                "swagger": "2.0",
                "info": self.info(),
                "paths": {},
                "definitions": schemas(
                    self.catalogue.preferred(),
                    self.catalogue.release(),
                    Dialect::V2,
                ),
            });
            document.to_string().into()
        })
    }

    /// Without definitions: kubectl falls back to its built-in ones.
    fn v2_protobuf(&self) -> Bytes {
        let info = Writer::default()
            .text(1, "Kubernetes")
            .text(2, self.catalogue.release().git_version());
        let document = Writer::default()
            .text(1, "2.0")
            .message(2, info)
            .message(8, Writer::default())
            .message(9, Writer::default());
        document.finish().into()
    }

    fn info(&self) -> Value {
        json!({"title": "Kubernetes", "version": self.catalogue.release().git_version()})
    }
}

/// `/openapi/v2`, `/openapi/v3` and the paths below; `None` for others.
pub(super) fn answer(
    documents: &Documents,
    path: &str,
    query: &Query,
    headers: &HeaderMap,
) -> Option<ApiResponse> {
    match path.trim_end_matches('/') {
        "/openapi/v2" => Some(v2(documents, headers)),
        "/openapi/v3" => Some(index(documents)),
        path => {
            let document = documents.v3().get(path.strip_prefix("/openapi/v3/")?)?;
            Some(v3(document, query, headers))
        }
    }
}

fn index(documents: &Documents) -> ApiResponse {
    let paths: Map<String, Value> = (documents.v3().iter())
        .map(|(path, document)| {
            let url = format!("/openapi/v3/{path}?hash={}", document.hash);
            (path.clone(), json!({"serverRelativeURL": url}))
        })
        .collect();
    responses::json(StatusCode::OK, &json!({"paths": paths}))
}

fn v3(document: &Document, query: &Query, headers: &HeaderMap) -> ApiResponse {
    if negotiate(headers, &[Format::Json]).is_none() {
        return responses::failure(&not_acceptable(&[JSON]), headers);
    }
    let etag = format!("\"{}\"", document.hash);
    let known = headers.get(IF_NONE_MATCH);
    let mut reply = if known.is_some_and(|it| it.as_bytes() == etag.as_bytes()) {
        responses::full(StatusCode::NOT_MODIFIED, JSON, "")
    } else {
        responses::full(StatusCode::OK, JSON, document.bytes.clone())
    };
    let fields = reply.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        fields.insert(ETAG, etag);
    }
    fields.insert(VARY, HeaderValue::from_static("Accept"));
    let cached = if query.get("hash") == document.hash {
        "public, immutable"
    } else {
        "no-cache, private"
    };
    fields.insert(CACHE_CONTROL, HeaderValue::from_static(cached));
    reply
}

fn v2(documents: &Documents, headers: &HeaderMap) -> ApiResponse {
    let ranges = sorted_accept(headers).unwrap_or_default();
    let is_protobuf = |subkind: &str| {
        subkind == V2_PROTOBUF || V2_PROTOBUF_TYPE.strip_prefix("application/") == Some(subkind)
    };
    let wanted = ranges.iter().find_map(|range| match &*range.subtype {
        subkind if is_protobuf(subkind) => Some(Format::Protobuf),
        _ if range.includes(Format::Json) => Some(Format::Json),
        _ => None,
    });
    match wanted {
        Some(Format::Protobuf) => {
            responses::full(StatusCode::OK, V2_PROTOBUF_TYPE, documents.v2_protobuf())
        }
        None if !ranges.is_empty() => responses::failure(&not_acceptable(&[JSON]), headers),
        _ => responses::full(StatusCode::OK, JSON, documents.v2().clone()),
    }
}

/// The paths of a resource, and their operations.
fn describe(served: &Served<'_>, root: &str, paths: &mut Map<String, Value>) {
    let resource = &served.resource.resource;
    let collection = if served.is_namespaced() {
        format!("/{root}/namespaces/{{namespace}}/{resource}")
    } else {
        format!("/{root}/{resource}")
    };
    let one = format!("{collection}/{{name}}");
    let namespace = || parameter("namespace", "path", "string");
    let operation = |action: &str, verb: &str, options: &[&str]| {
        served.allows(verb).then(|| {
            let mut parameters: Vec<_> = (options.iter())
                .map(|name| parameter(name, "query", type_of(name)))
                .collect();
            if served.is_namespaced() {
                parameters.push(namespace());
            }
            let schema = json!({"$ref": format!("#/components/schemas/{}", kind_name(served))});
            json!({
                "description": format!("{verb} {resource}"),
                "parameters": parameters,
                "responses": {"200": {
                    "description": "OK",
                    "content": {JSON: {"schema": schema}},
                }},
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": gvk(served),
            })
        })
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let rows = [
        (
            &collection,
            "get",
            operation("list", "list", &["labelSelector", "limit", "continue"]),
        ),
        (&collection, "post", operation("post", "create", &write)),
        (&one, "get", operation("get", "get", &[])),
        (&one, "put", operation("put", "update", &write)),
        (
            &one,
            "patch",
            patch(operation(
                "patch",
                "patch",
                &["dryRun", "fieldManager", "fieldValidation", "force"],
            )),
        ),
        (
            &one,
            "delete",
            operation("delete", "delete", &["dryRun", "propagationPolicy"]),
        ),
    ];
    for (path, method, operation) in rows {
        if let Some(operation) = operation {
            let at = paths.entry(path.clone()).or_insert_with(|| json!({}));
            at[method] = operation;
        }
    }
}

fn patch(operation: Option<Value>) -> Option<Value> {
    let mut operation = operation?;
    let forms = ["apply-patch+yaml", "json-patch+json", "merge-patch+json"];
    let content: Map<String, Value> = forms
        .map(|form| {
            (
                format!("application/{form}"),
                json!({"schema": {"type": "object"}}),
            )
        })
        .into_iter()
        .collect();
    operation["requestBody"] = json!({"required": true, "content": content});
    Some(operation)
}

fn parameter(name: &str, place: &str, kind: &str) -> Value {
    let mut parameter = json!({"name": name, "in": place, "schema": {"type": kind}});
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

fn type_of(option: &str) -> &'static str {
    match option {
        "limit" => "integer",
        "force" => "boolean",
        _ => "string",
    }
}

//! A parsed and authorized request.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use serde_json::Value;
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::status::Status;

use super::Server;
use super::query::Query;
use crate::apply::FieldManager;
use crate::catalogue::Served;
use crate::object::Object;
use crate::protobuf::{self, DecodeError};
use crate::resource_strategy::Definition;
use crate::schema_validation;
use crate::status::{GroupResource, quoted, unsupported_media_type};

/// A request for an API resource.
pub(super) struct ApiRequest<'a> {
    pub(super) server: &'a Server,
    pub(super) head: &'a Parts,
    pub(super) info: &'a RequestInfo<'a>,
    pub(super) query: Query,
    pub(super) user: &'a User,
    pub(super) body: Bytes,
}

/// The resource of an [`ApiRequest`].
pub(super) struct ApiTarget<'a> {
    pub(super) served: Served<'a>,
    pub(super) definition: Definition,
    /// Empty for cluster-scoped resources, or for all namespaces.
    pub(super) namespace: &'a str,
    /// Empty for a collection.
    pub(super) name: &'a str,
}

/// An object that has only fields of its kind.
pub(super) struct ValidatedObject {
    pub(super) object: Object,
    /// Warnings for the client.
    pub(super) warnings: Vec<String>,
}

/// Longer names are truncated, as by kube-apiserver.
const MAX_MANAGER_BYTES: usize = 128;

impl ApiRequest<'_> {
    fn header(&self, name: http::HeaderName) -> &str {
        let value = self.head.headers.get(name);
        value.and_then(|it| it.to_str().ok()).unwrap_or_default()
    }

    pub(super) fn content_type(&self) -> &str {
        self.header(CONTENT_TYPE)
    }

    /// The body, as JSON or YAML.
    pub(super) fn value(&self) -> Result<Value, Status> {
        let media = self.content_type().split(';').next().unwrap_or_default();
        match media.trim().to_ascii_lowercase().as_str() {
            "" | "application/json" => {
                serde_json::from_slice(&self.body).map_err(|error| unreadable(&error))
            }
            "application/yaml" => yaml(&self.body),
            "application/vnd.kubernetes.protobuf" => {
                protobuf::decode(&self.body).map_err(|error| match error {
                    DecodeError::Malformed => unreadable(&error),
                    DecodeError::Unknown(_) => unread_media_type(),
                })
            }
            _ => Err(unread_media_type()),
        }
    }

    /// The body, as an object of the requested resource.
    pub(super) fn object(&self, target: &ApiTarget<'_>) -> Result<ValidatedObject, Status> {
        let mut object = Object::new(self.value()?)?;
        target.expect(&mut object)?;
        self.typed(target, object)
    }

    /// An object without unknown fields; `fieldValidation` decides how these are reported.
    pub(super) fn typed(
        &self,
        target: &ApiTarget<'_>,
        object: Object,
    ) -> Result<ValidatedObject, Status> {
        let (kind, api_version) = (&target.definition.kind, target.served.api_version());
        let refuse = |why: String| {
            Status::bad_request(format!(
                "{kind} in version {} cannot be handled as a {kind}: {why}",
                quoted(target.served.version)
            ))
        };
        let mut value = object.into_value();
        let unknown = schema_validation::prune(&api_version, kind, &mut value)
            .map_err(|wrong| refuse(wrong.0))?;
        let unknown = unknown
            .iter()
            .map(|it| format!("unknown field {}", quoted(it)));
        let warnings = match self.query.get("fieldValidation") {
            "Strict" => {
                let unknown: Vec<_> = unknown.collect();
                if !unknown.is_empty() {
                    let list = unknown.join(", ");
                    return Err(refuse(format!("strict decoding error: {list}")));
                }
                unknown
            }
            "Ignore" => Vec::new(),
            _ => unknown.collect(),
        };
        Ok(ValidatedObject {
            object: Object::new(value)?,
            warnings,
        })
    }

    /// The field manager: that of the query, or else the name of the client program.
    pub(super) fn writer<'b>(&'b self, api_version: &'b str) -> FieldManager<'b> {
        let manager = match self.query.get("fieldManager") {
            "" => {
                let agent = self.header(USER_AGENT);
                let name = agent.split('/').next().unwrap_or_default();
                let mut end = name.len().min(MAX_MANAGER_BYTES);
                while !name.is_char_boundary(end) {
                    end -= 1;
                }
                if name.is_empty() {
                    "unknown"
                } else {
                    &name[..end]
                }
            }
            manager => manager,
        };
        FieldManager {
            manager,
            api_version,
            subresource: self.info.subresource,
            now: super::shared_store::now(),
        }
    }
}

impl ApiTarget<'_> {
    pub(super) fn resource(&self) -> &GroupResource {
        &self.definition.resource
    }

    /// 400 for an object of another kind or version; missing ones are filled in.
    fn expect(&self, object: &mut Object) -> Result<(), Status> {
        let (kind, api_version) = (&self.definition.kind, self.served.api_version());
        if object.kind().is_empty() {
            object.set(&["kind"], kind.as_str());
        }
        if object.api_version().is_empty() {
            object.set(&["apiVersion"], api_version.as_str());
        }
        if object.kind() != kind {
            return Err(Status::bad_request(format!(
                "{} in version {} cannot be handled as a {kind}: no kind {} is registered for \
                 this resource",
                object.kind(),
                quoted(version_of(object.api_version())),
                quoted(object.kind()),
            )));
        }
        if object.api_version() != api_version {
            return Err(Status::bad_request(format!(
                "the API version in the data ({}) does not match the expected API version \
                 ({api_version})",
                object.api_version(),
            )));
        }
        Ok(())
    }
}

/// Parses an object or a patch in YAML.
pub(super) fn yaml(bytes: &[u8]) -> Result<Value, Status> {
    let text = std::str::from_utf8(bytes).map_err(|error| unreadable(&error))?;
    serde_saphyr::from_str(text).map_err(|error| unreadable(&error))
}

fn unreadable(error: &dyn std::fmt::Display) -> Status {
    Status::bad_request(format!("the object provided is unrecognized: {error}"))
}

fn unread_media_type() -> Status {
    unsupported_media_type(&[
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ])
}

fn version_of(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or_default()
}

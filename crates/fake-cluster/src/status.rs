//! Status responses with exactly kube-apiserver's messages: kubectl prints them, and scripts
//! match them.

use std::fmt;
use std::fmt::Write as _;

use skewbridge_k8s_api::status::{Cause, Details, Status};

/// A resource without its version.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// Empty for the core group.
    pub group: String,
    /// In the plural: `pods`.
    pub resource: String,
}

/// A field of an object, and its error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// `metadata.name`
    pub field: String,
    /// The error.
    pub fault: FieldErrorKind,
}

/// The kind of a field error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The field is required, for this reason.
    Required(String),
    /// This value is invalid, for this reason.
    Invalid(String, String),
    /// The same for a value that is not a string, as JSON.
    InvalidJson(String, String),
    /// The field is forbidden, for this reason.
    Forbidden(String),
    /// This value is not one of the supported ones.
    Unsupported(String, String),
}

impl GroupResource {
    /// The group is empty for the core group.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }

    fn details(&self, name: &str) -> Details {
        Details {
            name: name.to_owned(),
            group: self.group.clone(),
            kind: self.resource.clone(),
            causes: Vec::new(),
        }
    }
}

/// `pods`, `deployments.apps`
impl fmt::Display for GroupResource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.resource)?;
        match self.group.as_str() {
            "" => Ok(()),
            group => write!(out, ".{group}"),
        }
    }
}

impl fmt::Display for FieldErrorKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required(why) if why.is_empty() => out.write_str("Required value"),
            Self::Required(why) => write!(out, "Required value: {why}"),
            Self::Invalid(value, why) => write!(out, "Invalid value: {}: {why}", quoted(value)),
            Self::InvalidJson(value, why) => write!(out, "Invalid value: {value}: {why}"),
            Self::Forbidden(why) => write!(out, "Forbidden: {why}"),
            Self::Unsupported(value, why) => {
                write!(out, "Unsupported value: {}: {why}", quoted(value))
            }
        }
    }
}

impl FieldError {
    /// A required field.
    pub fn required(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            fault: FieldErrorKind::Required(why.into()),
        }
    }

    /// An invalid value.
    pub fn invalid(
        field: impl Into<String>,
        value: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            fault: FieldErrorKind::Invalid(value.into(), why.into()),
        }
    }

    /// A field that must not be set or changed.
    pub fn forbidden(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            fault: FieldErrorKind::Forbidden(why.into()),
        }
    }

    fn cause(&self) -> Cause {
        let reason = match self.fault {
            FieldErrorKind::Required(_) => "FieldValueRequired",
            FieldErrorKind::Invalid(..) | FieldErrorKind::InvalidJson(..) => "FieldValueInvalid",
            FieldErrorKind::Forbidden(_) => "FieldValueForbidden",
            FieldErrorKind::Unsupported(..) => "FieldValueNotSupported",
        };
        Cause {
            reason: reason.to_owned(),
            message: self.fault.to_string(),
            field: self.field.clone(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.field, self.fault)
    }
}

/// 404: unknown object.
pub fn not_found(resource: &GroupResource, name: &str) -> Status {
    let message = format!("{resource} {} not found", quoted(name));
    Status::not_found(message).with_details(resource.details(name))
}

/// 404: unknown resource of a known version.
pub fn unknown_resource() -> Status {
    Status::not_found("the server could not find the requested resource")
        .with_details(Details::default())
}

/// 409: it exists already.
pub fn already_exists(resource: &GroupResource, name: &str) -> Status {
    let message = format!("{resource} {} already exists", quoted(name));
    Status::new(409, "AlreadyExists", message).with_details(resource.details(name))
}

/// 409: no generated name is free.
pub fn no_unique_name(resource: &GroupResource, name: &str) -> Status {
    let message = format!(
        "{resource} {} already exists, the server was not able to generate a unique name for \
         the object",
        quoted(name)
    );
    Status {
        retry_after_seconds: Some(1),
        ..Status::new(409, "AlreadyExists", message).with_details(resource.details(name))
    }
}

/// 409: a precondition failed.
pub fn conflict(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Status {
    let message = format!(
        "Operation cannot be fulfilled on {resource} {}: {why}",
        quoted(name)
    );
    Status::new(409, "Conflict", message).with_details(resource.details(name))
}

/// 409: it was modified since it was read.
pub fn modified_since(resource: &GroupResource, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version \
               and try again";
    conflict(resource, name, why)
}

/// 403: not allowed, for this user or for any.
pub fn forbidden(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Status {
    let message = match (resource.resource.as_str(), name) {
        ("", _) => format!("forbidden: {why}"),
        (_, "") => format!("{resource} is forbidden: {why}"),
        (_, name) => format!("{resource} {} is forbidden: {why}", quoted(name)),
    };
    Status::forbidden(message).with_details(resource.details(name))
}

/// 422: validation errors.
pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Status {
    let kind = GroupResource::new(group, kind);
    let what = match errors {
        [] => String::new(),
        [one] => format!(": {one}"),
        several => {
            let mut texts: Vec<String> = Vec::new();
            for error in several.iter().map(ToString::to_string) {
                if !texts.contains(&error) {
                    texts.push(error);
                }
            }
            format!(": [{}]", texts.join(", "))
        }
    };
    let message = format!("{kind} {} is invalid{what}", quoted(name));
    Status::new(422, "Invalid", message).with_details(Details {
        causes: errors.iter().map(FieldError::cause).collect(),
        ..kind.details(name)
    })
}

/// 410: the history no longer has these events.
pub fn expired(message: impl Into<String>) -> Status {
    Status::new(410, "Expired", message)
}

/// 500, as kube-apiserver forwards etcd's error: the object is larger than 1.5 MiB.
pub fn too_large() -> Status {
    Status::new(500, "", "etcdserver: request is too large")
}

/// 500, as kube-apiserver forwards etcd's error: all objects together are too large.
pub fn no_space() -> Status {
    Status::new(500, "", "etcdserver: mvcc: database space exceeded")
}

/// 405: the message of kube-apiserver's router for an unknown method.
pub fn method_not_allowed() -> Status {
    Status::method_not_allowed("the server does not allow this method on the requested resource")
        .with_details(Details::default())
}

/// 415: unsupported media type of a body.
pub fn unsupported_media_type(accepted: &[&str]) -> Status {
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        accepted.join(", ")
    );
    Status::new(415, "UnsupportedMediaType", message)
}

/// 406: no accepted media type.
pub fn not_acceptable(accepted: &[&str]) -> Status {
    let message = format!(
        "only the following media types are accepted: {}",
        accepted.join(", ")
    );
    Status::new(406, "NotAcceptable", message)
}

/// 504: a future resource version.
pub fn too_large_version(requested: u64, current: u64) -> Status {
    let cause = Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    };
    let message = format!("Too large resource version: {requested}, current: {current}");
    Status {
        retry_after_seconds: Some(1),
        ..Status::timeout(message).with_details(Details {
            causes: vec![cause],
            ..Details::default()
        })
    }
}

/// Text in Go's `%q` format.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a String does not fail.
            other if other.is_control() => drop(write!(out, "\\x{:02x}", u32::from(other))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::content_negotiation::Format;

    use super::*;

    #[test]
    fn failures_have_kube_apiservers_messages() {
        let pods = GroupResource::new("", "pods");
        let deployments = GroupResource::new("apps", "deployments");
        let name = [FieldError::required(
            "metadata.name",
            "name or generateName is required",
        )];
        let two = [
            FieldError::invalid("a", "x\"y", "no"),
            FieldError::forbidden("b", "never"),
        ];
        let rows = [
            (
                not_found(&pods, "x"),
                404,
                "NotFound",
                r#"pods "x" not found"#,
            ),
            (
                not_found(&deployments, "x"),
                404,
                "NotFound",
                r#"deployments.apps "x" not found"#,
            ),
            (
                already_exists(&pods, "x"),
                409,
                "AlreadyExists",
                r#"pods "x" already exists"#,
            ),
            (
                modified_since(&deployments, "x"),
                409,
                "Conflict",
                "Operation cannot be fulfilled on deployments.apps \"x\": the object has been \
                 modified; please apply your changes to the latest version and try again",
            ),
            (
                invalid("", "ConfigMap", "", &name),
                422,
                "Invalid",
                "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName \
                 is required",
            ),
            (
                invalid("apps", "Deployment", "x", &two),
                422,
                "Invalid",
                "Deployment.apps \"x\" is invalid: [a: Invalid value: \"x\\\"y\": no, b: \
                 Forbidden: never]",
            ),
            (
                forbidden(&pods, "", "no"),
                403,
                "Forbidden",
                "pods is forbidden: no",
            ),
            (
                forbidden(&pods, "x", "no"),
                403,
                "Forbidden",
                r#"pods "x" is forbidden: no"#,
            ),
            (
                forbidden(&GroupResource::default(), "", "no"),
                403,
                "Forbidden",
                "forbidden: no",
            ),
            (
                unsupported_media_type(&["application/json", "application/yaml"]),
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types \
                 include: application/json, application/yaml",
            ),
            (
                too_large_version(9, 5),
                504,
                "Timeout",
                "Too large resource version: 9, current: 5",
            ),
        ];
        for (status, code, reason, message) in rows {
            assert_eq!(
                (status.code, status.reason, &*status.message),
                (code, reason, message)
            );
        }
    }

    #[test]
    fn a_status_names_what_it_is_about() {
        let status = not_found(&GroupResource::new("apps", "deployments"), "web");
        let expected = concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
            r#""message":"deployments.apps \"web\" not found","reason":"NotFound","#,
            r#""details":{"name":"web","group":"apps","kind":"deployments"},"code":404}"#,
            "\n"
        );
        assert_eq!(status.encode(Format::Json), expected);
    }
}

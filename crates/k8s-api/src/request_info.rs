//! The attributes of a request, parsed by kube-apiserver's rules (`RequestInfo`).
//!
//! kube-apiserver splits the decoded path (Go's `URL.Path`) at every slash, including slashes
//! that were sent as `%2F`. This parser does the same: a routing decision has to be based on
//! the path that the upstream server will see.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

use crate::identity::escapes_are_valid;

/// A percent-decoded path. It borrows where possible: almost no path contains escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedPath<'a>(Cow<'a, str>);

/// A path that Go's HTTP server rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request path contains an invalid percent escape")]
pub struct InvalidEscape;

impl<'a> DecodedPath<'a> {
    /// Decodes the path of a request target.
    pub fn new(raw: &'a str) -> Result<Self, InvalidEscape> {
        if !raw.contains('%') {
            return Ok(Self(Cow::Borrowed(raw)));
        }
        if !escapes_are_valid(raw.as_bytes()) {
            return Err(InvalidEscape);
        }
        Ok(Self(percent_decode_str(raw).decode_utf8_lossy()))
    }

    /// The decoded path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The attributes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// Whether it is a resource request.
    pub kind: Kind,
    /// The requested verb.
    pub verb: Verb,
    /// The whole path.
    pub path: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// The version of the group.
    pub version: &'a str,
    /// Empty for cluster-scoped resources and for all namespaces.
    pub namespace: &'a str,
    /// The plural resource name, such as `pods`.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for a collection.
    pub name: Cow<'a, str>,
}

/// Whether a path is a resource path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An object or a collection.
    Resource,
    /// Discovery, health, metrics, and every other path.
    NonResource,
}

/// The verb, as in RBAC. The set is closed because it is a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names of the variants describe them
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    Proxy,
    Post,
    Put,
    Head,
    Options,
    Other,
}

impl Verb {
    /// The RBAC name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Post => "post",
            Self::Put => "put",
            Self::Head => "head",
            Self::Options => "options",
            Self::Other => "other",
        }
    }

    /// For non-resource requests: the method in lower case.
    fn of_method(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            Method::HEAD => Self::Head,
            Method::OPTIONS => Self::Options,
            _ => Self::Other,
        }
    }

    fn of_resource(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Get,
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }
}

impl<'a> RequestInfo<'a> {
    /// Parses a request.
    pub fn parse(method: &Method, path: &'a DecodedPath<'_>, query: Option<&str>) -> Self {
        let path = path.as_str();
        let mut info = Self {
            kind: Kind::NonResource,
            verb: Verb::of_method(method),
            path,
            group: "",
            version: "",
            namespace: "",
            resource: "",
            subresource: "",
            name: Cow::Borrowed(""),
        };
        let trimmed = path.trim_matches('/');
        let (prefix, rest) = split_segment(trimmed);
        let rest = match (prefix, rest) {
            ("api", Some(rest)) => rest,
            ("apis", Some(rest)) => match split_segment(rest) {
                (group, Some(rest)) => {
                    info.group = group;
                    rest
                }
                (_, None) => return info,
            },
            _ => return info,
        };
        let (version, Some(rest)) = split_segment(rest) else {
            info.group = "";
            return info;
        };
        info.kind = Kind::Resource;
        info.version = version;
        info.verb = Verb::of_resource(method);
        let rest = match split_segment(rest) {
            ("watch", Some(rest)) => {
                info.verb = Verb::Watch;
                rest
            }
            ("proxy", Some(rest)) => {
                info.verb = Verb::Proxy;
                rest
            }
            // kube-apiserver responds 500 to a special verb without a resource.
            ("watch" | "proxy", None) => return info,
            _ => rest,
        };
        info.parse_object(rest);
        info.set_collection_verb(query);
        info
    }

    /// `[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE[/…]]]`
    fn parse_object(&mut self, rest: &'a str) {
        let mut rest = rest;
        if let ("namespaces", Some(inside)) = split_segment(rest) {
            let (namespace, inside) = split_segment(inside);
            self.namespace = namespace;
            if let Some(inside) = inside
                && !matches!(split_segment(inside).0, "status" | "finalize")
            {
                rest = inside;
            }
        }
        let (resource, rest) = split_segment(rest);
        self.resource = resource;
        if let Some(rest) = rest {
            let (name, rest) = split_segment(rest);
            self.name = Cow::Borrowed(name);
            if let (Some(rest), true) = (rest, self.verb != Verb::Proxy) {
                self.subresource = split_segment(rest).0;
            }
        }
    }

    /// Without a name, a get becomes a list or a watch, and a delete becomes a
    /// deletecollection.
    fn set_collection_verb(&mut self, query: Option<&str>) {
        if !self.name.is_empty() {
            return;
        }
        match self.verb {
            Verb::Get => {
                self.verb = if is_watch_query(query) {
                    Verb::Watch
                } else {
                    Verb::List
                };
                if let Some(name) = selected_name(query) {
                    self.name = Cow::Owned(name);
                }
            }
            Verb::Delete => self.verb = Verb::DeleteCollection,
            _ => {}
        }
    }

    /// Whether it is a readiness request, for all checks or for one.
    pub fn is_readyz(&self) -> bool {
        self.path == "/readyz" || self.path.starts_with("/readyz/")
    }

    /// Whether a workload or a node responds, and not the API server.
    pub fn reaches_workload(&self) -> bool {
        self.kind == Kind::Resource && (self.verb == Verb::Proxy || self.subresource == "proxy")
    }

    /// Whether the request can be repeated without side effects: a read of the API itself.
    /// A request that is proxied to a workload or a node may have side effects with any
    /// method.
    pub fn is_idempotent_read(&self, method: &Method) -> bool {
        matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
            && self.verb != Verb::Proxy
            && !matches!(
                self.subresource,
                "attach" | "exec" | "proxy" | "portforward"
            )
    }

    /// Whether the response may take any amount of time, by kube-apiserver's `LongRunningFunc`.
    pub fn is_long_running(&self) -> bool {
        match self.kind {
            Kind::Resource => {
                matches!(self.verb, Verb::Watch | Verb::Proxy)
                    || matches!(
                        self.subresource,
                        "attach" | "exec" | "proxy" | "log" | "portforward"
                    )
            }
            Kind::NonResource => self.path.starts_with("/debug/pprof/"),
        }
    }
}

/// The first segment of a path, and the rest after its slash.
fn split_segment(path: &str) -> (&str, Option<&str>) {
    match path.split_once('/') {
        Some((part, rest)) => (part, Some(rest)),
        None => (path, None),
    }
}

/// The first value of a query parameter, decoded.
fn first_value<'a>(query: Option<&'a str>, key: &str) -> Option<Cow<'a, str>> {
    query?
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .find(|(name, _)| *name == key || (name.contains('%') && form_decode(name) == key))
        .map(|(_, value)| form_decode(value))
}

fn form_decode(text: &str) -> Cow<'_, str> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
    } else {
        percent_decode_str(text).decode_utf8_lossy()
    }
}

/// Every value but `false` and `0` is true, including an absent one (`?watch`).
fn is_watch_query(query: Option<&str>) -> bool {
    first_value(query, "watch")
        .is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
}

/// `fieldSelector=metadata.name=web` selects one object, if the value is a valid name.
fn selected_name(query: Option<&str>) -> Option<String> {
    let selector = first_value(query, "fieldSelector")?;
    let mut found = None;
    for term in split_terms(&selector) {
        let (field, value) = match term.split_once("!=") {
            Some(_) => continue,
            None => term.split_once("==").or_else(|| term.split_once('='))?,
        };
        if field == "metadata.name" && found.is_none() {
            found = Some(unescape_term(value)?);
        }
    }
    found.filter(|name| {
        !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
    })
}

/// Splits at commas that are not escaped.
fn split_terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    selector
        .split(move |character| {
            let separates = character == ',' && !escaped;
            escaped = character == '\\' && !escaped;
            separates
        })
        .filter(|term| !term.is_empty())
}

fn unescape_term(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(characters.next().filter(|it| "\\,=".contains(*it))?),
            '=' => return None,
            _ => plain.push(character),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests;

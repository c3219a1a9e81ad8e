//! What a request asks for, by kube-apiserver's rules.
//!
//! kube-apiserver looks at the decoded path (Go's `URL.Path`), cut at every
//! slash, also at one that was written `%2F`. So do we: whoever decides by a
//! path has to see the path that the server behind will see.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

use crate::identity::escapes_are_whole;

/// A path without escapes. Borrows what it can: nearly every path has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedPath<'a>(Cow<'a, str>);

/// A path that Go's server refuses to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request path holds a broken percent escape")]
pub struct BrokenEscape;

impl<'a> DecodedPath<'a> {
    /// Decodes a path as it stands in a request.
    pub fn new(raw: &'a str) -> Result<Self, BrokenEscape> {
        if !raw.contains('%') {
            return Ok(Self(Cow::Borrowed(raw)));
        }
        if !escapes_are_whole(raw.as_bytes()) {
            return Err(BrokenEscape);
        }
        Ok(Self(percent_decode_str(raw).decode_utf8_lossy()))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// An object or collection of the API, or something else.
    pub kind: Kind,
    /// What is to be done with it.
    pub verb: Verb,
    /// The whole path.
    pub path: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// The version of the group.
    pub version: &'a str,
    /// Empty for what is in no namespace, or in all.
    pub namespace: &'a str,
    /// In the plural: `pods`.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for a collection.
    pub name: Cow<'a, str>,
}

/// Whether a path names something of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An object or a collection.
    Resource,
    /// Discovery, health, metrics, and everything else.
    NonResource,
}

/// What is to be done, in RBAC's words. A closed set, since it is a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // their names say it
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
    /// As RBAC writes it.
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

    /// For what is not of the API: the method in lower case.
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
    /// Understands a request.
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
        let (prefix, rest) = cut(trimmed);
        let rest = match (prefix, rest) {
            ("api", Some(rest)) => rest,
            ("apis", Some(rest)) => match cut(rest) {
                (group, Some(rest)) => {
                    info.group = group;
                    rest
                }
                (_, None) => return info,
            },
            _ => return info,
        };
        let (version, Some(rest)) = cut(rest) else {
            info.group = "";
            return info;
        };
        info.kind = Kind::Resource;
        info.version = version;
        info.verb = Verb::of_resource(method);
        let rest = match cut(rest) {
            ("watch", Some(rest)) => {
                info.verb = Verb::Watch;
                rest
            }
            ("proxy", Some(rest)) => {
                info.verb = Verb::Proxy;
                rest
            }
            // kube-apiserver answers 500 to a special verb without an object.
            ("watch" | "proxy", None) => return info,
            _ => rest,
        };
        info.object(rest);
        info.settle(query);
        info
    }

    /// `[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE[/…]]]`
    fn object(&mut self, rest: &'a str) {
        let mut rest = rest;
        if let ("namespaces", Some(inside)) = cut(rest) {
            let (namespace, inside) = cut(inside);
            self.namespace = namespace;
            if let Some(inside) = inside
                && !matches!(cut(inside).0, "status" | "finalize")
            {
                rest = inside;
            }
        }
        let (resource, rest) = cut(rest);
        self.resource = resource;
        if let Some(rest) = rest {
            let (name, rest) = cut(rest);
            self.name = Cow::Borrowed(name);
            if let (Some(rest), true) = (rest, self.verb != Verb::Proxy) {
                self.subresource = cut(rest).0;
            }
        }
    }

    /// Without a name, a get is a list or a watch and a delete is that of a
    /// collection.
    fn settle(&mut self, query: Option<&str>) {
        if !self.name.is_empty() {
            return;
        }
        match self.verb {
            Verb::Get => {
                self.verb = if asks_to_watch(query) {
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

    /// Whether it asks if the server is ready, in whole or in part.
    pub fn is_readyz(&self) -> bool {
        self.path == "/readyz" || self.path.starts_with("/readyz/")
    }

    /// Whether it is a workload or a node that answers, and not the API.
    pub fn reaches_workload(&self) -> bool {
        self.kind == Kind::Resource && (self.verb == Verb::Proxy || self.subresource == "proxy")
    }

    /// Whether asking twice does no harm: a read of the API itself. What is
    /// passed on to a workload or a node may do anything, whatever its method.
    pub fn is_harmless(&self, method: &Method) -> bool {
        matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
            && self.verb != Verb::Proxy
            && !matches!(
                self.subresource,
                "attach" | "exec" | "proxy" | "portforward"
            )
    }

    /// Whether the answer may take as long as it likes, by kube-apiserver's
    /// `LongRunningFunc`.
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

/// The first part of a path, and what follows its slash.
fn cut(path: &str) -> (&str, Option<&str>) {
    match path.split_once('/') {
        Some((part, rest)) => (part, Some(rest)),
        None => (path, None),
    }
}

/// The first value of a key in a query, decoded.
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

/// Anything but `false` and `0` is true, also nothing at all (`?watch`).
fn asks_to_watch(query: Option<&str>) -> bool {
    first_value(query, "watch")
        .is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
}

/// `fieldSelector=metadata.name=web` names an object, if that is a name.
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

/// Terms are separated by commas that are not escaped.
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

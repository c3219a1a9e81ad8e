//! Merges documents in JSON. Paths, methods and names are parsed; everything below is copied
//! verbatim.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error as _;

use crate::error::{Error, Server};
use crate::object::{self, Member};
use crate::references::{Encoding, Paths, definitions_left_out};
use crate::spec::{self, Field, FieldRole, Spec, is_method, rank_among, rank_in_path};

/// Merges documents of one group version (v3) or of whole servers (v2). The local server's
/// document comes first, and takes precedence for equal names. Added are paths of others for
/// which `take` returns true, missing methods of existing paths, and all schemas and similar
/// items with missing names, except for definitions (v2) that belong only to other paths. Everything
/// else, including the other members of a path, is the local server's.
///
/// Returns the bytes of the local server unchanged if there is nothing to add.
pub fn merge<'a>(
    spec: Spec,
    local: &'a [u8],
    others: &[&'a [u8]],
    take: impl Fn(&str) -> bool,
) -> Result<Cow<'a, [u8]>, Error> {
    let document = read_document(local).map_err(with_server(Server::Local))?;
    let mut other_documents = Vec::with_capacity(others.len());
    for (number, other) in others.iter().enumerate() {
        let server = Server::Other(number);
        other_documents.push((server, read_document(other).map_err(with_server(server))?));
    }
    let merge = Merge { spec, take: &take };
    let merged = merge.fields(spec.document(), document, &other_documents)?;
    Ok(match merged {
        None => Cow::Borrowed(local),
        Some(merged) => {
            let mut bytes = Vec::new();
            merged.write(&mut bytes);
            // The result is cached, and may be long.
            bytes.shrink_to_fit();
            Cow::Owned(bytes)
        }
    })
}

fn read_document(bytes: &[u8]) -> Result<Vec<Member<'_>>, serde_json::Error> {
    let text = str::from_utf8(bytes).map_err(serde_json::Error::custom)?;
    object::read(text)
}

/// Adds the server of the document to an error.
fn with_server(server: Server) -> impl Fn(serde_json::Error) -> Error {
    move |source| Error::Json { of: server, source }
}

/// The documents of others, parsed as far as the local server's.
type OtherServers<'a> = [(Server, Vec<Member<'a>>)];

struct Merge<'t, T> {
    spec: Spec,
    take: &'t T,
}

/// A value of the result.
enum Value<'a> {
    Text(&'a str),
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
    List(Vec<&'a str>),
}

impl<T: Fn(&str) -> bool> Merge<'_, T> {
    /// Merges the fields that others add to; `None` if there are none.
    fn fields<'a>(
        &self,
        fields: &[Field],
        local: Vec<Member<'a>>,
        others: &OtherServers<'a>,
    ) -> Result<Option<Value<'a>>, Error> {
        let mut changed = Vec::new();
        let left_out = self.definitions_left_out(&local, others)?;
        for field in fields {
            let text = object::get(&local, field.json);
            let theirs: Vec<_> = others
                .iter()
                .filter_map(|(server, members)| Some((*server, object::get(members, field.json)?)))
                .filter(|(_, theirs)| Some(*theirs) != text)
                .collect();
            if theirs.is_empty() {
                continue;
            }
            let text = text.unwrap_or("null");
            let value = match field.role {
                FieldRole::Local => None,
                FieldRole::Paths => self.paths(text, &theirs)?,
                FieldRole::Names if field.json == spec::DEFINITIONS => {
                    names(text, &theirs, &left_out)?
                }
                FieldRole::Names => names(text, &theirs, &BTreeMap::new())?,
                FieldRole::Tags => tags(text, &theirs)?,
                FieldRole::Components => {
                    let local = object::read(text).map_err(with_server(Server::Local))?;
                    let others = read_all(&theirs)?;
                    self.fields(self.spec.components(), local, &others)?
                }
            };
            changed.extend(value.map(|value| (field.json, value)));
        }
        if changed.is_empty() {
            return Ok(None);
        }
        let mut members = unparsed(local);
        for (name, value) in changed {
            put(&mut members, name.into(), value, |name| {
                rank_among(fields, name)
            });
        }
        Ok(Some(Value::Object(members)))
    }

    /// The definitions of each server that belong only to paths which are not taken.
    fn definitions_left_out(
        &self,
        local: &[Member<'_>],
        others: &OtherServers<'_>,
    ) -> Result<BTreeMap<Server, BTreeSet<String>>, Error> {
        let mut left_out = BTreeMap::new();
        if self.spec != Spec::V2 {
            return Ok(left_out);
        }
        let own = read_object(Server::Local, local, spec::PATHS)?;
        let own: BTreeSet<&str> = own.iter().map(|(path, _)| &**path).collect();
        for (server, members) in others {
            let all = read_object(*server, members, spec::PATHS)?;
            let mut paths = Paths::default();
            for (path, text) in all.iter().filter(|(path, _)| path.starts_with('/')) {
                if (self.take)(path) {
                    paths.taken.push(text.as_bytes());
                } else if !own.contains(&**path) {
                    paths.left_out.push(text.as_bytes());
                }
            }
            if paths.left_out.is_empty() {
                continue;
            }
            let definitions = read_object(*server, members, spec::DEFINITIONS)?;
            let definitions = definitions
                .iter()
                .map(|(name, text)| (&**name, text.as_bytes()));
            let names = definitions_left_out(Encoding::Json, &paths, &definitions.collect());
            left_out.insert(*server, names);
        }
        Ok(left_out)
    }

    fn paths<'a>(
        &self,
        local: &'a str,
        others: &[(Server, &'a str)],
    ) -> Result<Option<Value<'a>>, Error> {
        let local = object::read(local).map_err(with_server(Server::Local))?;
        let mut paths: BTreeMap<_, _> = local
            .into_iter()
            .map(|(path, text)| (path, PathItem::new(Server::Local, text)))
            .collect();
        let mut changed = false;
        for (server, members) in read_all(others)? {
            for (path, text) in members {
                // Other names are extensions, which do not concern what is served.
                if !path.starts_with('/') || !(self.take)(&path) {
                    continue;
                }
                match paths.entry(path) {
                    Entry::Vacant(place) => {
                        place.insert(PathItem::new(server, text));
                        changed = true;
                    }
                    Entry::Occupied(mut place) => {
                        changed |= place.get_mut().add_methods(server, text)?;
                    }
                }
            }
        }
        if !changed {
            return Ok(None);
        }
        let mut members = Vec::with_capacity(paths.len());
        for (path, item) in paths {
            members.push((path, item.value()?));
        }
        Ok(Some(Value::Object(members)))
    }
}

/// The value of a path.
struct PathItem<'a> {
    /// The server that had it first.
    of: Server,
    text: &'a str,
    /// Methods from other servers.
    added: Vec<Member<'a>>,
}

impl<'a> PathItem<'a> {
    fn new(of: Server, text: &'a str) -> Self {
        let added = Vec::new();
        Self { of, text, added }
    }

    /// Adds missing methods; returns whether there were any.
    fn add_methods(&mut self, server: Server, other: &'a str) -> Result<bool, Error> {
        if self.text == other {
            return Ok(false);
        }
        let own = object::read(self.text).map_err(with_server(self.of))?;
        let mut missing = object::read(other).map_err(with_server(server))?;
        missing.retain(|(name, _)| {
            let mut known = own.iter().chain(&self.added);
            is_method(name) && known.all(|(known, _)| known != name)
        });
        let changed = !missing.is_empty();
        self.added.extend(missing);
        Ok(changed)
    }

    fn value(self) -> Result<Value<'a>, Error> {
        if self.added.is_empty() {
            return Ok(Value::Text(self.text));
        }
        let own = object::read(self.text).map_err(with_server(self.of))?;
        let mut members = unparsed(own);
        for (name, text) in self.added {
            put(&mut members, name, Value::Text(text), rank_in_path);
        }
        Ok(Value::Object(members))
    }
}

fn names<'a>(
    local: &'a str,
    others: &[(Server, &'a str)],
    left_out: &BTreeMap<Server, BTreeSet<String>>,
) -> Result<Option<Value<'a>>, Error> {
    let local = object::read(local).map_err(with_server(Server::Local))?;
    let before = local.len();
    let mut names: BTreeMap<_, _> = unparsed(local).into_iter().collect();
    for (server, members) in read_all(others)? {
        let left_out = left_out.get(&server);
        for (name, text) in members {
            if left_out.is_some_and(|it| it.contains(&*name)) {
                continue;
            }
            names.entry(name).or_insert(Value::Text(text));
        }
    }
    let changed = names.len() > before;
    Ok(changed.then(|| Value::Object(names.into_iter().collect())))
}

/// In the order of the servers: tags are not sorted.
fn tags<'a>(local: &'a str, others: &[(Server, &'a str)]) -> Result<Option<Value<'a>>, Error> {
    let mut known = BTreeSet::new();
    let mut tags = Vec::new();
    let mut before = 0;
    for (server, text) in std::iter::once(&(Server::Local, local)).chain(others) {
        for tag in object::read_list(text).map_err(with_server(*server))? {
            let name = tag_name(tag).map_err(with_server(*server))?;
            if known.insert(name) || *server == Server::Local {
                tags.push(tag);
            }
        }
        if *server == Server::Local {
            before = tags.len();
        }
    }
    Ok((tags.len() > before).then_some(Value::List(tags)))
}

fn tag_name(tag: &str) -> Result<String, serde_json::Error> {
    let members = object::read(tag)?;
    let name = object::get(&members, "name");
    serde_json::from_str(name.ok_or_else(|| serde_json::Error::missing_field("name"))?)
}

/// The members of an object that is a member; none if it is missing.
fn read_object<'a>(
    server: Server,
    members: &[Member<'a>],
    name: &str,
) -> Result<Vec<Member<'a>>, Error> {
    object::read(object::get(members, name).unwrap_or("null")).map_err(with_server(server))
}

fn read_all<'a>(others: &[(Server, &'a str)]) -> Result<Vec<(Server, Vec<Member<'a>>)>, Error> {
    others
        .iter()
        .map(|(server, text)| Ok((*server, object::read(text).map_err(with_server(*server))?)))
        .collect()
}

fn unparsed(members: Vec<Member<'_>>) -> Vec<(Cow<'_, str>, Value<'_>)> {
    let members = members.into_iter();
    members
        .map(|(name, text)| (name, Value::Text(text)))
        .collect()
}

/// Replaces a member, or inserts it after those that precede it in a document.
fn put<'a>(
    members: &mut Vec<(Cow<'a, str>, Value<'a>)>,
    name: Cow<'a, str>,
    value: Value<'a>,
    rank: impl Fn(&str) -> usize,
) {
    if let Some((_, before)) = members.iter_mut().find(|(known, _)| *known == name) {
        *before = value;
        return;
    }
    let own = rank(&name);
    let earlier = members.iter().rposition(|(known, _)| rank(known) < own);
    members.insert(earlier.map_or(0, |place| place + 1), (name, value));
}

impl Value<'_> {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Text(text) => to.extend_from_slice(text.as_bytes()),
            Self::Object(members) => {
                to.push(b'{');
                for (number, (name, value)) in members.iter().enumerate() {
                    if number > 0 {
                        to.push(b',');
                    }
                    object::write_string(name, to);
                    to.push(b':');
                    value.write(to);
                }
                to.push(b'}');
            }
            Self::List(items) => {
                to.push(b'[');
                for (number, item) in items.iter().enumerate() {
                    if number > 0 {
                        to.push(b',');
                    }
                    to.extend_from_slice(item.as_bytes());
                }
                to.push(b']');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn merged(spec: Spec, documents: &[&str]) -> String {
        let (local, others) = documents.split_first().unwrap();
        let others: Vec<_> = others.iter().map(|other| other.as_bytes()).collect();
        let take = |path: &str| !path.starts_with("/apis/crd/");
        let merged = merge(spec, local.as_bytes(), &others, take).unwrap();
        String::from_utf8(merged.into_owned()).unwrap()
    }

    #[test]
    fn missing_parts_are_added_at_their_position() {
        let rows: &[(Spec, &[&str], &str)] = &[
            // Paths are sorted; paths that are not taken, and extensions, are omitted.
            (
                Spec::V2,
                &[
                    r#"{"swagger":"2.0","paths":{"/b":{"get":1},"/d":{}},"security":[]}"#,
                    r#"{"swagger":"9.9","paths":{"/a":{"get":2},"/c":{},"/apis/crd/v1":{},"x-a":1}}"#,
                ],
                r#"{"swagger":"2.0","paths":{"/a":{"get":2},"/b":{"get":1},"/c":{},"/d":{}},"security":[]}"#,
            ),
            // A path of both servers gains methods, in Go's order, and nothing else.
            (
                Spec::V2,
                &[
                    r#"{"paths":{"/a":{"get":1,"patch":1,"parameters":[1]}}}"#,
                    r#"{"paths":{"/a":{"$ref":2,"get":2,"delete":2,"parameters":[2],"x-a":2}}}"#,
                    r#"{"paths":{"/a":{"get":3,"put":3,"delete":3}}}"#,
                ],
                r#"{"paths":{"/a":{"get":1,"put":3,"delete":2,"patch":1,"parameters":[1]}}}"#,
            ),
            // So does a path that came from another server.
            (
                Spec::V3,
                &[
                    "{}",
                    r#"{"paths":{"/a":{"post":2}}}"#,
                    r#"{"paths":{"/a":{"get":3}}}"#,
                ],
                r#"{"paths":{"/a":{"get":3,"post":2}}}"#,
            ),
            // Names: the local server takes precedence.
            (
                Spec::V2,
                &[
                    r#"{"paths":{},"definitions":{"b":1},"securityDefinitions":{"s":1}}"#,
                    r#"{"definitions":{"a":2,"b":2},"parameters":{"p":2},"securityDefinitions":{"s":2,"t":2}}"#,
                    r#"{"definitions":{"a":3,"c":3},"responses":{"r":3}}"#,
                ],
                r#"{"paths":{},"definitions":{"a":2,"b":1,"c":3},"parameters":{"p":2},"responses":{"r":3},"securityDefinitions":{"s":1,"t":2}}"#,
            ),
            (
                Spec::V3,
                &[
                    r#"{"openapi":"3.0.0","components":{"schemas":{"b":1},"x-b":1}}"#,
                    r#"{"paths":{},"components":{"schemas":{"a":2,"b":2},"securitySchemes":{"s":2},"x-a":2}}"#,
                ],
                r#"{"openapi":"3.0.0","components":{"schemas":{"a":2,"b":1},"securitySchemes":{"s":2},"x-b":1}}"#,
            ),
            // A missing section is inserted at its position.
            (
                Spec::V3,
                &[
                    r#"{"openapi":"3.0.0","security":[],"x-a":1}"#,
                    r#"{"components":{"schemas":{"a":2}}}"#,
                ],
                r#"{"openapi":"3.0.0","components":{"schemas":{"a":2}},"security":[],"x-a":1}"#,
            ),
            // Definitions that belong only to paths which are not taken, as those of a custom resource
            // that is deleted; the local server has no such path any more.
            (
                Spec::V2,
                &[
                    r#"{"paths":{"/b":{"get":1}},"definitions":{"b":1}}"#,
                    r##"{"paths":{"/apis/crd/v1":{"get":{"$ref":"#/definitions/crd"}},"/c":{"$ref":"#/definitions/c"}},"definitions":{"c":{"$ref":"#/definitions/meta"},"crd":{"x":[{"$ref":"#/definitions/below"},{"$ref":"#/definitions/meta"}]},"below":1,"meta":2}}"##,
                ],
                r##"{"paths":{"/b":{"get":1},"/c":{"$ref":"#/definitions/c"}},"definitions":{"b":1,"c":{"$ref":"#/definitions/meta"},"meta":2}}"##,
            ),
            // Tags keep the order of the servers.
            (
                Spec::V2,
                &[
                    r#"{"tags":[{"name":"b"}]}"#,
                    r#"{"tags":[{"name":"c","x":1},{"name":"b","x":2},{"name":"a"}]}"#,
                ],
                r#"{"tags":[{"name":"b"},{"name":"c","x":1},{"name":"a"}]}"#,
            ),
            // `null` is treated as missing, as in Go.
            (
                Spec::V2,
                &[
                    r#"{"paths":{"/a":null},"definitions":null}"#,
                    r#"{"paths":{"/a":{"get":2}},"definitions":{"a":2},"tags":null}"#,
                ],
                r#"{"paths":{"/a":{"get":2}},"definitions":{"a":2}}"#,
            ),
        ];
        for (spec, documents, expected) in rows {
            assert_eq!(merged(*spec, documents), *expected);
        }
    }

    #[test]
    fn other_parts_are_kept_verbatim() {
        let local = r#"{ "paths" : {"/a":{ "get":"\u003c" }}, "info":{"b":1, "a":1.0} }"#;
        let same: [&[u8]; 2] = [local.as_bytes(), br#"{"paths":{"/a":{"get":2}},"info":2}"#];
        let unchanged = merge(Spec::V2, local.as_bytes(), &same, |_| true).unwrap();
        assert!(matches!(unchanged, Cow::Borrowed(bytes) if bytes == local.as_bytes()));
        assert_eq!(
            merged(Spec::V2, &[local, r#"{"paths":{"/b":{}}}"#]),
            r#"{"paths":{"/a":{ "get":"\u003c" },"/b":{}},"info":{"b":1, "a":1.0}}"#
        );
    }

    #[test]
    fn an_error_names_the_server_of_the_document() {
        let good = r#"{"paths":{"/a":{"get":1}},"components":{},"tags":[]}"#;
        for broken in [
            "",
            "[]",
            "{",
            "404 page not found",
            r#"{"paths":[]}"#,
            r#"{"paths":"no"}"#,
            r#"{"paths":{"/a":1}}"#,
            r#"{"paths":{"/a":{},"/a":{}}}"#,
            r#"{"paths":{},"paths":{}}"#,
            r#"{"components":{"schemas":1}}"#,
            r#"{"components":1}"#,
            r#"{"tags":{}}"#,
            r#"{"tags":"no"}"#,
            r#"{"tags":[1]}"#,
            r#"{"tags":[{}]}"#,
            r#"{"tags":[{"name":1}]}"#,
        ] {
            let other =
                r#"{"paths":{"/a":{"put":1}},"components":{"schemas":{}},"tags":[{"name":"b"}]}"#;
            let [good, broken, other] = [good, broken, other].map(str::as_bytes);
            let error = merge(Spec::V3, good, &[other, broken], |_| true).unwrap_err();
            assert_eq!(error.server(), Some(Server::Other(1)), "{error}");
            let error = merge(Spec::V3, broken, &[other], |_| true).unwrap_err();
            assert_eq!(error.server(), Some(Server::Local), "{error}");
        }
        assert!(merge(Spec::V3, b"{\"\xff\":1}", &[], |_| true).is_err());
    }
}

//! Merges documents in gnostic's protobuf. Paths, methods and names are parsed; everything
//! below is copied byte for byte.

mod fields;

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

pub use crate::error::DecodeError;
use crate::error::{Error, Server};
use crate::references::{Encoding, Paths, definitions_left_out};
use crate::spec::{self, FieldRole, Spec};
use fields::{Chunks, Field, length_delimited, split_fields};

/// Merges documents of one group version (v3) or of whole servers (v2), by the rules of
/// [`json::merge`](crate::json::merge).
///
/// Returns the bytes of the local server unchanged if there is nothing to add.
pub fn merge<'a>(
    spec: Spec,
    local: &'a [u8],
    others: &[&'a [u8]],
    take: impl Fn(&str) -> bool,
) -> Result<Cow<'a, [u8]>, Error> {
    let document = split_fields(local).map_err(with_server(Server::Local))?;
    let mut other_documents = Vec::with_capacity(others.len());
    for (number, other) in others.iter().enumerate() {
        let server = Server::Other(number);
        other_documents.push((server, split_fields(other).map_err(with_server(server))?));
    }
    let merge = Merge { spec, take: &take };
    let merged = merge.fields(spec.document(), &document, &other_documents)?;
    Ok(match merged {
        None => Cow::Borrowed(local),
        Some(chunks) => Cow::Owned(chunks.concat()),
    })
}

/// Adds the server of the document to an error.
fn with_server(server: Server) -> impl Fn(DecodeError) -> Error {
    move |cause| Error::Protobuf { of: server, cause }
}

/// The fields of messages of other servers.
type OtherServers<'a> = [(Server, Vec<Field<'a>>)];

struct Merge<'t, T> {
    spec: Spec,
    take: &'t T,
}

impl<T: Fn(&str) -> bool> Merge<'_, T> {
    /// Merges the fields of a message that others add to; `None` if there are none.
    fn fields<'a>(
        &self,
        known: &[spec::Field],
        local: &[Field<'a>],
        others: &OtherServers<'a>,
    ) -> Result<Option<Chunks<'a>>, Error> {
        let mut changed = BTreeMap::new();
        let left_out = self.definitions_left_out(local, others)?;
        for field in known {
            let number = field.number;
            let merged = match field.role {
                FieldRole::Local => None,
                FieldRole::Tags => tags(number, local, others)?,
                FieldRole::Paths | FieldRole::Names | FieldRole::Components => {
                    let own =
                        submessage_fields(number, local).map_err(with_server(Server::Local))?;
                    let mut theirs = Vec::with_capacity(others.len());
                    for (server, message) in others {
                        theirs.push((
                            *server,
                            submessage_fields(number, message).map_err(with_server(*server))?,
                        ));
                    }
                    let content = match field.role {
                        FieldRole::Paths => self.paths(&own, &theirs)?,
                        FieldRole::Components => {
                            self.fields(self.spec.components(), &own, &theirs)?
                        }
                        _ if field.json == spec::DEFINITIONS => names(&own, &theirs, &left_out)?,
                        _ => names(&own, &theirs, &BTreeMap::new())?,
                    };
                    content.map(|content| length_delimited(number, content))
                }
            };
            changed.extend(merged.map(|chunks| (number, chunks)));
        }
        Ok((!changed.is_empty()).then(|| with_replaced_fields(local, changed)))
    }

    /// The definitions of each server that belong only to paths which are not taken.
    fn definitions_left_out(
        &self,
        local: &[Field<'_>],
        others: &OtherServers<'_>,
    ) -> Result<BTreeMap<Server, BTreeSet<String>>, Error> {
        let mut left_out = BTreeMap::new();
        if self.spec != Spec::V2 {
            return Ok(left_out);
        }
        let number = self.spec.path_number();
        let own = submessage_fields(spec::V2_PATHS, local).map_err(with_server(Server::Local))?;
        let own = map_entries(number, &own).map_err(with_server(Server::Local))?;
        let own: BTreeSet<&str> = own.iter().map(|entry| entry.name).collect();
        for (server, message) in others {
            let entries = |field, number| {
                let fields = submessage_fields(field, message).map_err(with_server(*server))?;
                map_entries(number, &fields).map_err(with_server(*server))
            };
            let mut paths = Paths::default();
            for entry in entries(spec::V2_PATHS, number)? {
                if !entry.name.starts_with('/') {
                    continue;
                }
                if (self.take)(entry.name) {
                    paths.taken.push(entry.raw);
                } else if !own.contains(entry.name) {
                    paths.left_out.push(entry.raw);
                }
            }
            if paths.left_out.is_empty() {
                continue;
            }
            let definitions = entries(spec::V2_DEFINITIONS, ENTRY)?;
            let definitions = definitions.iter().map(|entry| (entry.name, entry.raw));
            let names = definitions_left_out(Encoding::Protobuf, &paths, &definitions.collect());
            left_out.insert(*server, names);
        }
        Ok(left_out)
    }

    fn paths<'a>(
        &self,
        local: &[Field<'a>],
        others: &OtherServers<'a>,
    ) -> Result<Option<Chunks<'a>>, Error> {
        let number = self.spec.path_number();
        let mut paths = BTreeMap::new();
        for entry in map_entries(number, local).map_err(with_server(Server::Local))? {
            paths.insert(entry.name, PathItem::new(Server::Local, entry));
        }
        let mut changed = false;
        for (server, message) in others {
            for entry in map_entries(number, message).map_err(with_server(*server))? {
                if !entry.name.starts_with('/') || !(self.take)(entry.name) {
                    continue;
                }
                match paths.entry(entry.name) {
                    Entry::Vacant(place) => {
                        place.insert(PathItem::new(*server, entry));
                        changed = true;
                    }
                    Entry::Occupied(mut place) => {
                        changed |= place.get_mut().add_methods(self.spec, *server, &entry)?;
                    }
                }
            }
        }
        if !changed {
            return Ok(None);
        }
        let mut entries = Chunks::new();
        for item in paths.into_values() {
            entries.extend(item.chunks(number)?);
        }
        let changed = BTreeMap::from([(number, entries)]);
        Ok(Some(with_replaced_fields(local, changed)))
    }
}

/// The field number of the entries of a map, except for the paths of v2.
const ENTRY: u32 = 1;
/// The field number of the name of an entry or tag.
const NAME: u32 = 1;
/// The field number of the value of an entry.
const VALUE: u32 = 2;

fn names<'a>(
    local: &[Field<'a>],
    others: &OtherServers<'a>,
    left_out: &BTreeMap<Server, BTreeSet<String>>,
) -> Result<Option<Chunks<'a>>, Error> {
    let mut names = BTreeMap::new();
    for entry in map_entries(ENTRY, local).map_err(with_server(Server::Local))? {
        names.insert(entry.name, entry.raw);
    }
    let before = names.len();
    for (server, message) in others {
        let left_out = left_out.get(server);
        for entry in map_entries(ENTRY, message).map_err(with_server(*server))? {
            if !left_out.is_some_and(|it| it.contains(entry.name)) {
                names.entry(entry.name).or_insert(entry.raw);
            }
        }
    }
    if names.len() == before {
        return Ok(None);
    }
    let entries = names.into_values().map(Cow::Borrowed).collect();
    let changed = BTreeMap::from([(ENTRY, entries)]);
    Ok(Some(with_replaced_fields(local, changed)))
}

/// In the order of the servers: tags are not sorted.
fn tags<'a>(
    number: u32,
    local: &[Field<'a>],
    others: &OtherServers<'a>,
) -> Result<Option<Chunks<'a>>, Error> {
    let mut known = BTreeSet::new();
    let mut tags = Chunks::new();
    for field in local.iter().filter(|field| field.number == number) {
        known.insert(
            MapEntry::read(field)
                .map_err(with_server(Server::Local))?
                .name,
        );
        tags.push(Cow::Borrowed(field.raw));
    }
    let before = tags.len();
    for (server, message) in others {
        for field in message.iter().filter(|field| field.number == number) {
            if known.insert(MapEntry::read(field).map_err(with_server(*server))?.name) {
                tags.push(Cow::Borrowed(field.raw));
            }
        }
    }
    Ok((tags.len() > before).then_some(tags))
}

/// The entry of a path.
struct PathItem<'a> {
    /// The server that had it first.
    of: Server,
    entry: MapEntry<'a>,
    /// Methods from other servers.
    added: Vec<Field<'a>>,
}

impl<'a> PathItem<'a> {
    fn new(of: Server, entry: MapEntry<'a>) -> Self {
        let added = Vec::new();
        Self { of, entry, added }
    }

    /// Adds missing methods; returns whether there were any.
    fn add_methods(
        &mut self,
        spec: Spec,
        server: Server,
        other: &MapEntry<'a>,
    ) -> Result<bool, Error> {
        if self.entry.raw == other.raw {
            return Ok(false);
        }
        let own = self.entry.fields().map_err(with_server(self.of))?;
        let known: BTreeSet<u32> = own
            .iter()
            .chain(&self.added)
            .map(|field| field.number)
            .collect();
        let before = self.added.len();
        for field in other.fields().map_err(with_server(server))? {
            if spec.is_method_number(field.number) && !known.contains(&field.number) {
                field.content().map_err(with_server(server))?;
                self.added.push(field);
            }
        }
        Ok(self.added.len() > before)
    }

    fn chunks(self, number: u32) -> Result<Chunks<'a>, Error> {
        if self.added.is_empty() {
            return Ok(vec![Cow::Borrowed(self.entry.raw)]);
        }
        let mut fields = self.entry.fields().map_err(with_server(self.of))?;
        fields.extend(self.added);
        fields.sort_by_key(|field| field.number);
        let fields = fields.iter().map(|field| Cow::Borrowed(field.raw));
        let mut entry = length_delimited(NAME, vec![Cow::Borrowed(self.entry.name.as_bytes())]);
        entry.extend(length_delimited(VALUE, fields.collect()));
        Ok(length_delimited(number, entry))
    }
}

/// An entry of a map, or a tag.
struct MapEntry<'a> {
    /// The whole field.
    raw: &'a [u8],
    name: &'a str,
    /// The value; several parts if it was written so.
    values: Vec<&'a [u8]>,
}

impl<'a> MapEntry<'a> {
    fn read(field: &Field<'a>) -> Result<Self, DecodeError> {
        let mut entry = Self {
            raw: field.raw,
            name: "",
            values: Vec::new(),
        };
        for inner in split_fields(field.content()?)? {
            match inner.number {
                NAME => {
                    entry.name =
                        str::from_utf8(inner.content()?).map_err(|_| DecodeError::NameNotUtf8)?;
                }
                VALUE => entry.values.push(inner.content()?),
                _ => {}
            }
        }
        Ok(entry)
    }

    /// The fields of the value.
    fn fields(&self) -> Result<Vec<Field<'a>>, DecodeError> {
        concat_fields(self.values.iter().copied())
    }
}

/// The entries of a map.
fn map_entries<'a>(number: u32, map: &[Field<'a>]) -> Result<Vec<MapEntry<'a>>, DecodeError> {
    let entries = map.iter().filter(|field| field.number == number);
    let all: Vec<_> = entries.map(MapEntry::read).collect::<Result<_, _>>()?;
    let names: BTreeSet<&str> = all.iter().map(|entry| entry.name).collect();
    if names.len() < all.len() {
        return Err(DecodeError::DuplicateName);
    }
    Ok(all)
}

/// The fields of a submessage. As the specification says, repeated occurrences are
/// concatenated.
fn submessage_fields<'a>(
    number: u32,
    message: &[Field<'a>],
) -> Result<Vec<Field<'a>>, DecodeError> {
    let found = message.iter().filter(|field| field.number == number);
    let contents: Vec<_> = found.map(Field::content).collect::<Result<_, _>>()?;
    concat_fields(contents.into_iter())
}

fn concat_fields<'a>(
    chunks: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Field<'a>>, DecodeError> {
    let mut fields = Vec::new();
    for chunk in chunks {
        fields.extend(split_fields(chunk)?);
    }
    Ok(fields)
}

/// A message in which some fields are replaced, or added in the order of their numbers.
fn with_replaced_fields<'a>(
    message: &[Field<'a>],
    mut changed: BTreeMap<u32, Chunks<'a>>,
) -> Chunks<'a> {
    let numbers: BTreeSet<u32> = message.iter().map(|field| field.number).collect();
    let with_replaced_fields: BTreeSet<u32> = changed.keys().copied().collect();
    let mut chunks = Chunks::new();
    for field in message {
        let new: Vec<u32> = changed
            .keys()
            .copied()
            .filter(|number| {
                *number == field.number || *number < field.number && !numbers.contains(number)
            })
            .collect();
        for number in new {
            chunks.extend(changed.remove(&number).unwrap_or_default());
        }
        if !with_replaced_fields.contains(&field.number) {
            chunks.push(Cow::Borrowed(field.raw));
        }
    }
    chunks.extend(changed.into_values().flatten());
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u32, chunks: &[&[u8]]) -> Vec<u8> {
        length_delimited(number, vec![chunks.concat().into()]).concat()
    }

    fn map_entry(number: u32, name: &str, value: &[u8]) -> Vec<u8> {
        let inner = [field(NAME, &[name.as_bytes()]), field(VALUE, &[value])];
        field(number, &[&inner.concat()])
    }

    /// A path of v2 with these methods, followed by parameters.
    fn path(name: &str, methods: &[(u32, &[u8])]) -> Vec<u8> {
        let mut item: Vec<u8> = methods
            .iter()
            .flat_map(|(number, content)| field(*number, &[content]))
            .collect();
        item.extend(field(9, &[b"parameters"]));
        map_entry(2, name, &item)
    }

    fn merged(documents: &[Vec<u8>]) -> Vec<u8> {
        let (local, others) = documents.split_first().unwrap();
        let others: Vec<_> = others.iter().map(Vec::as_slice).collect();
        let take = |path: &str| !path.starts_with("/apis/crd/");
        merge(Spec::V2, local, &others, take).unwrap().into_owned()
    }

    #[test]
    fn paths_are_added_in_order_and_gain_methods() {
        let extension = map_entry(1, "x-a", b"1");
        let local = [
            field(1, &[b"2.0"]),
            field(
                8,
                &[
                    &extension,
                    &path("/b", &[(2, b"get 1"), (8, b"patch 1")]),
                    &path("/d", &[]),
                ],
            ),
            field(12, &[b"security"]),
        ];
        let other = field(
            8,
            &[
                &map_entry(1, "x-b", b"2"),
                &path("/a", &[(2, b"get 2")]),
                &path("/b", &[(2, b"get 2"), (5, b"delete 2")]),
                &path("/apis/crd/v1", &[]),
            ],
        );
        let third = field(8, &[&path("/b", &[(3, b"put 3"), (5, b"delete 3")])]);
        let both = path(
            "/b",
            &[
                (2, b"get 1"),
                (3, b"put 3"),
                (5, b"delete 2"),
                (8, b"patch 1"),
            ],
        );
        let expected = [
            field(1, &[b"2.0"]),
            field(
                8,
                &[
                    &extension,
                    &path("/a", &[(2, b"get 2")]),
                    &both,
                    &path("/d", &[]),
                ],
            ),
            field(12, &[b"security"]),
        ];
        assert_eq!(merged(&[local.concat(), other, third]), expected.concat());
    }

    #[test]
    fn missing_names_and_tags_are_added() {
        let tag = |name: &str| field(14, &[&field(NAME, &[name.as_bytes()])]);
        let local = [
            field(1, &[b"2.0"]),
            field(9, &[&map_entry(1, "b", b"1")]),
            field(12, &[b"security"]),
            tag("t"),
            field(16, &[b"extension"]),
        ];
        let other = [
            field(9, &[&map_entry(1, "a", b"2"), &map_entry(1, "b", b"2")]),
            field(10, &[&map_entry(1, "p", b"2")]),
            field(13, &[&map_entry(1, "s", b"2")]),
            tag("u"),
            tag("t"),
        ];
        let expected = [
            field(1, &[b"2.0"]),
            field(9, &[&map_entry(1, "a", b"2"), &map_entry(1, "b", b"1")]),
            field(10, &[&map_entry(1, "p", b"2")]),
            field(12, &[b"security"]),
            field(13, &[&map_entry(1, "s", b"2")]),
            tag("t"),
            tag("u"),
            field(16, &[b"extension"]),
        ];
        assert_eq!(merged(&[local.concat(), other.concat()]), expected.concat());
    }

    #[test]
    fn definitions_of_paths_that_are_not_taken_are_left_out() {
        let to = |name: &str| field(1, &[format!("#/definitions/{name}").as_bytes()]);
        let local = [
            field(8, &[&path("/b", &[])]),
            field(9, &[&map_entry(1, "b", b"1")]),
        ];
        let crd = path("/apis/crd/v1", &[(2, &to("crd"))]);
        let other = [
            field(8, &[&crd, &path("/c", &[(2, &to("c"))])]),
            field(
                9,
                &[
                    &map_entry(1, "c", &to("meta")),
                    &map_entry(1, "crd", &[to("below"), to("meta")].concat()),
                    &map_entry(1, "below", b""),
                    &map_entry(1, "meta", b""),
                ],
            ),
        ];
        let expected = [
            field(8, &[&path("/b", &[]), &path("/c", &[(2, &to("c"))])]),
            field(
                9,
                &[
                    &map_entry(1, "b", b"1"),
                    &map_entry(1, "c", &to("meta")),
                    &map_entry(1, "meta", b""),
                ],
            ),
        ];
        assert_eq!(merged(&[local.concat(), other.concat()]), expected.concat());
    }

    #[test]
    fn a_message_in_several_parts_is_concatenated() {
        let local = [
            field(8, &[&path("/c", &[])]),
            field(9, &[b""]),
            field(8, &[&path("/a", &[])]),
        ];
        let other = field(8, &[&path("/b", &[])]);
        let all = ["/a", "/b", "/c"].map(|name| path(name, &[])).concat();
        let expected = [field(8, &[&all]), field(9, &[b""])];
        assert_eq!(merged(&[local.concat(), other]), expected.concat());
    }

    #[test]
    fn an_error_names_the_server_of_the_document() {
        let good = field(8, &[&path("/a", &[(2, b"")])]);
        let name_not_text = field(2, &[&field(NAME, &[b"\xff"])]);
        let method_as_number = map_entry(2, "/a", &[0x18, 1]);
        let rows: [(Vec<u8>, DecodeError); 6] = [
            (vec![0x0a, 9], DecodeError::Malformed),
            (field(8, &[&[0x12, 9]]), DecodeError::Malformed),
            (vec![0x40, 1], DecodeError::WrongType),
            (field(8, &[&name_not_text]), DecodeError::NameNotUtf8),
            (field(8, &[&method_as_number]), DecodeError::WrongType),
            (
                field(8, &[&path("/a", &[]), &path("/a", &[])]),
                DecodeError::DuplicateName,
            ),
        ];
        for (broken, expected) in rows {
            let error = merge(Spec::V2, &good, &[&good, &broken], |_| true).unwrap_err();
            assert!(
                matches!(error, Error::Protobuf { of: Server::Other(1), cause } if cause == expected),
                "{error}, not {expected}"
            );
        }
        let error = merge(Spec::V2, &[0x0a, 9], &[&good], |_| true).unwrap_err();
        assert_eq!(error.server(), Some(Server::Local));
    }
}

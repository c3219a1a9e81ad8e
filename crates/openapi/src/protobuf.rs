//! Documents in the protobuf of gnostic. They are cut into paths, methods and
//! names, and these put together again as the bytes that they were.

mod wire_format;

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

pub use crate::error::DecodeError;
use crate::error::{Error, Server};
use crate::spec::{self, FieldRole, Spec};
use wire_format::{Chunks, Field, length_delimited};

/// Merges documents of one group-version (v3) or of whole servers (v2), by the
/// rules of [`json::merge`](crate::json::merge).
///
/// The local server's bytes themselves come back if there is nothing to add.
pub fn merge<'a>(
    spec: Spec,
    local: &'a [u8],
    others: &[&'a [u8]],
    take: impl Fn(&str) -> bool,
) -> Result<Cow<'a, [u8]>, Error> {
    let document = wire_format::fields(local).map_err(of(Server::Local))?;
    let mut further = Vec::with_capacity(others.len());
    for (number, other) in others.iter().enumerate() {
        let server = Server::Other(number);
        further.push((server, wire_format::fields(other).map_err(of(server))?));
    }
    let merge = Merge { spec, take: &take };
    let merged = merge.fields(spec.document(), &document, &further)?;
    Ok(match merged {
        None => Cow::Borrowed(local),
        Some(chunks) => Cow::Owned(chunks.concat()),
    })
}

/// Says whose document it was.
fn of(server: Server) -> impl Fn(DecodeError) -> Error {
    move |cause| Error::Protobuf { of: server, cause }
}

/// The fields of messages of others.
type Others<'a> = [(Server, Vec<Field<'a>>)];

struct Merge<'t, T> {
    spec: Spec,
    take: &'t T,
}

impl<T: Fn(&str) -> bool> Merge<'_, T> {
    /// Merges those fields of a message that others add to; `None` if there are
    /// none.
    fn fields<'a>(
        &self,
        known: &[spec::Field],
        local: &[Field<'a>],
        others: &Others<'a>,
    ) -> Result<Option<Chunks<'a>>, Error> {
        let mut changed = BTreeMap::new();
        for field in known {
            let number = field.number;
            let merged = match field.role {
                FieldRole::Local => None,
                FieldRole::Tags => tags(number, local, others)?,
                FieldRole::Paths | FieldRole::Names | FieldRole::Components => {
                    let own = submessage_fields(number, local).map_err(of(Server::Local))?;
                    let mut theirs = Vec::with_capacity(others.len());
                    for (server, message) in others {
                        theirs.push((
                            *server,
                            submessage_fields(number, message).map_err(of(*server))?,
                        ));
                    }
                    let content = match field.role {
                        FieldRole::Paths => self.paths(&own, &theirs)?,
                        FieldRole::Components => {
                            self.fields(self.spec.components(), &own, &theirs)?
                        }
                        _ => names(&own, &theirs)?,
                    };
                    content.map(|content| length_delimited(number, content))
                }
            };
            changed.extend(merged.map(|chunks| (number, chunks)));
        }
        Ok((!changed.is_empty()).then(|| with_replaced_fields(local, changed)))
    }

    fn paths<'a>(
        &self,
        local: &[Field<'a>],
        others: &Others<'a>,
    ) -> Result<Option<Chunks<'a>>, Error> {
        let number = self.spec.path_number();
        let mut paths = BTreeMap::new();
        for named in map_entries(number, local).map_err(of(Server::Local))? {
            paths.insert(named.name, PathItem::new(Server::Local, named));
        }
        let mut changed = false;
        for (server, message) in others {
            for named in map_entries(number, message).map_err(of(*server))? {
                if !named.name.starts_with('/') || !(self.take)(named.name) {
                    continue;
                }
                match paths.entry(named.name) {
                    Entry::Vacant(place) => {
                        place.insert(PathItem::new(*server, named));
                        changed = true;
                    }
                    Entry::Occupied(mut place) => {
                        changed |= place.get_mut().add_methods(self.spec, *server, &named)?;
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

/// Where a map has its entries, except that of v2's paths.
const ENTRY: u32 = 1;
/// Where an entry has its name, and a tag.
const NAME: u32 = 1;
/// Where an entry has what is named.
const VALUE: u32 = 2;

fn names<'a>(local: &[Field<'a>], others: &Others<'a>) -> Result<Option<Chunks<'a>>, Error> {
    let mut names = BTreeMap::new();
    for named in map_entries(ENTRY, local).map_err(of(Server::Local))? {
        names.insert(named.name, named.raw);
    }
    let before = names.len();
    for (server, message) in others {
        for named in map_entries(ENTRY, message).map_err(of(*server))? {
            names.entry(named.name).or_insert(named.raw);
        }
    }
    if names.len() == before {
        return Ok(None);
    }
    let entries = names.into_values().map(Cow::Borrowed).collect();
    let changed = BTreeMap::from([(ENTRY, entries)]);
    Ok(Some(with_replaced_fields(local, changed)))
}

/// In the order in which they come: nobody sorts them.
fn tags<'a>(
    number: u32,
    local: &[Field<'a>],
    others: &Others<'a>,
) -> Result<Option<Chunks<'a>>, Error> {
    let mut known = BTreeSet::new();
    let mut tags = Chunks::new();
    for field in local.iter().filter(|field| field.number == number) {
        known.insert(MapEntry::read(field).map_err(of(Server::Local))?.name);
        tags.push(Cow::Borrowed(field.raw));
    }
    let before = tags.len();
    for (server, message) in others {
        for field in message.iter().filter(|field| field.number == number) {
            if known.insert(MapEntry::read(field).map_err(of(*server))?.name) {
                tags.push(Cow::Borrowed(field.raw));
            }
        }
    }
    Ok((tags.len() > before).then_some(tags))
}

/// What there is at a path.
struct PathItem<'a> {
    /// Who had it first.
    of: Server,
    named: MapEntry<'a>,
    /// Methods of others.
    added: Vec<Field<'a>>,
}

impl<'a> PathItem<'a> {
    fn new(of: Server, named: MapEntry<'a>) -> Self {
        let added = Vec::new();
        Self { of, named, added }
    }

    /// Adds the methods that it lacks, and says whether there were any.
    fn add_methods(
        &mut self,
        spec: Spec,
        server: Server,
        other: &MapEntry<'a>,
    ) -> Result<bool, Error> {
        if self.named.raw == other.raw {
            return Ok(false);
        }
        let own = self.named.fields().map_err(of(self.of))?;
        let known: BTreeSet<u32> = own
            .iter()
            .chain(&self.added)
            .map(|field| field.number)
            .collect();
        let before = self.added.len();
        for field in other.fields().map_err(of(server))? {
            if spec.is_method_number(field.number) && !known.contains(&field.number) {
                field.content().map_err(of(server))?;
                self.added.push(field);
            }
        }
        Ok(self.added.len() > before)
    }

    fn chunks(self, number: u32) -> Result<Chunks<'a>, Error> {
        if self.added.is_empty() {
            return Ok(vec![Cow::Borrowed(self.named.raw)]);
        }
        let mut fields = self.named.fields().map_err(of(self.of))?;
        fields.extend(self.added);
        fields.sort_by_key(|field| field.number);
        let fields = fields.iter().map(|field| Cow::Borrowed(field.raw));
        let mut entry = length_delimited(NAME, vec![Cow::Borrowed(self.named.name.as_bytes())]);
        entry.extend(length_delimited(VALUE, fields.collect()));
        Ok(length_delimited(number, entry))
    }
}

/// An entry of a map, or a tag.
struct MapEntry<'a> {
    /// The field in which it came.
    raw: &'a [u8],
    name: &'a str,
    /// What is named; in chunks if it was written so.
    values: Vec<&'a [u8]>,
}

impl<'a> MapEntry<'a> {
    fn read(field: &Field<'a>) -> Result<Self, DecodeError> {
        let mut named = Self {
            raw: field.raw,
            name: "",
            values: Vec::new(),
        };
        for inner in wire_format::fields(field.content()?)? {
            match inner.number {
                NAME => {
                    named.name =
                        str::from_utf8(inner.content()?).map_err(|_| DecodeError::NameNotUtf8)?;
                }
                VALUE => named.values.push(inner.content()?),
                _ => {}
            }
        }
        Ok(named)
    }

    /// The fields of what is named.
    fn fields(&self) -> Result<Vec<Field<'a>>, DecodeError> {
        concat_fields(self.values.iter().copied())
    }
}

/// The entries of a map.
fn map_entries<'a>(number: u32, map: &[Field<'a>]) -> Result<Vec<MapEntry<'a>>, DecodeError> {
    let entries = map.iter().filter(|field| field.number == number);
    let all: Vec<_> = entries.map(MapEntry::read).collect::<Result<_, _>>()?;
    let names: BTreeSet<&str> = all.iter().map(|named| named.name).collect();
    if names.len() < all.len() {
        return Err(DecodeError::DuplicateName);
    }
    Ok(all)
}

/// The fields of the message that a field role. By the book, one that comes
/// several times is one in chunks.
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
        fields.extend(wire_format::fields(chunk)?);
    }
    Ok(fields)
}

/// A message with other fields in place of those of the same number, or behind
/// those of lower ones.
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

    fn named(number: u32, name: &str, value: &[u8]) -> Vec<u8> {
        let inner = [field(NAME, &[name.as_bytes()]), field(VALUE, &[value])];
        field(number, &[&inner.concat()])
    }

    /// A path of v2 with these methods, and parameters behind them.
    fn path(name: &str, methods: &[(u32, &[u8])]) -> Vec<u8> {
        let mut item: Vec<u8> = methods
            .iter()
            .flat_map(|(number, content)| field(*number, &[content]))
            .collect();
        item.extend(field(9, &[b"parameters"]));
        named(2, name, &item)
    }

    fn merged(documents: &[Vec<u8>]) -> Vec<u8> {
        let (local, others) = documents.split_first().unwrap();
        let others: Vec<_> = others.iter().map(Vec::as_slice).collect();
        let take = |path: &str| !path.starts_with("/apis/crd/");
        merge(Spec::V2, local, &others, take).unwrap().into_owned()
    }

    #[test]
    fn paths_are_added_in_order_and_gain_methods() {
        let extension = named(1, "x-a", b"1");
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
                &named(1, "x-b", b"2"),
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
    fn names_and_tags_that_are_missing_are_added() {
        let tag = |name: &str| field(14, &[&field(NAME, &[name.as_bytes()])]);
        let local = [
            field(1, &[b"2.0"]),
            field(9, &[&named(1, "b", b"1")]),
            field(12, &[b"security"]),
            tag("t"),
            field(16, &[b"extension"]),
        ];
        let other = [
            field(9, &[&named(1, "a", b"2"), &named(1, "b", b"2")]),
            field(10, &[&named(1, "p", b"2")]),
            field(13, &[&named(1, "s", b"2")]),
            tag("u"),
            tag("t"),
        ];
        let expected = [
            field(1, &[b"2.0"]),
            field(9, &[&named(1, "a", b"2"), &named(1, "b", b"1")]),
            field(10, &[&named(1, "p", b"2")]),
            field(12, &[b"security"]),
            field(13, &[&named(1, "s", b"2")]),
            tag("t"),
            tag("u"),
            field(16, &[b"extension"]),
        ];
        assert_eq!(merged(&[local.concat(), other.concat()]), expected.concat());
    }

    #[test]
    fn a_message_in_pieces_is_one() {
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
    fn who_sent_a_broken_document_is_told() {
        let good = field(8, &[&path("/a", &[(2, b"")])]);
        let name_not_text = field(2, &[&field(NAME, &[b"\xff"])]);
        let method_as_number = named(2, "/a", &[0x18, 1]);
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

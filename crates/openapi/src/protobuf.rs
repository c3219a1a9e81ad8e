//! Documents in the protobuf of gnostic. They are cut into paths, methods and
//! names, and these put together again as the bytes that they were.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

pub use crate::error::Fault;
use crate::error::{Error, Server};
use crate::spec::{self, Holds, Spec};
use crate::wire::{self, Field, Pieces, framed};

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
    let document = wire::fields(local).map_err(of(Server::Local))?;
    let mut further = Vec::with_capacity(others.len());
    for (number, other) in others.iter().enumerate() {
        let server = Server::Other(number);
        further.push((server, wire::fields(other).map_err(of(server))?));
    }
    let merge = Merge { spec, take: &take };
    let merged = merge.fields(spec.document(), &document, &further)?;
    Ok(match merged {
        None => Cow::Borrowed(local),
        Some(pieces) => Cow::Owned(pieces.concat()),
    })
}

/// Says whose document it was.
fn of(server: Server) -> impl Fn(Fault) -> Error {
    move |fault| Error::Protobuf { of: server, fault }
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
    ) -> Result<Option<Pieces<'a>>, Error> {
        let mut changed = BTreeMap::new();
        for field in known {
            let number = field.number;
            let merged = match field.holds {
                Holds::Local => None,
                Holds::Tags => tags(number, local, others)?,
                Holds::Paths | Holds::Names | Holds::Components => {
                    let own = inside(number, local).map_err(of(Server::Local))?;
                    let mut theirs = Vec::with_capacity(others.len());
                    for (server, message) in others {
                        theirs.push((*server, inside(number, message).map_err(of(*server))?));
                    }
                    let content = match field.holds {
                        Holds::Paths => self.paths(&own, &theirs)?,
                        Holds::Components => self.fields(self.spec.components(), &own, &theirs)?,
                        _ => names(&own, &theirs)?,
                    };
                    content.map(|content| framed(number, content))
                }
            };
            changed.extend(merged.map(|pieces| (number, pieces)));
        }
        Ok((!changed.is_empty()).then(|| replaced(local, changed)))
    }

    fn paths<'a>(
        &self,
        local: &[Field<'a>],
        others: &Others<'a>,
    ) -> Result<Option<Pieces<'a>>, Error> {
        let number = self.spec.path_number();
        let mut paths = BTreeMap::new();
        for named in all_named(number, local).map_err(of(Server::Local))? {
            paths.insert(named.name, PathItem::new(Server::Local, named));
        }
        let mut changed = false;
        for (server, message) in others {
            for named in all_named(number, message).map_err(of(*server))? {
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
        let mut entries = Pieces::new();
        for item in paths.into_values() {
            entries.extend(item.pieces(number)?);
        }
        let changed = BTreeMap::from([(number, entries)]);
        Ok(Some(replaced(local, changed)))
    }
}

/// Where a map has its entries, except that of v2's paths.
const ENTRY: u32 = 1;
/// Where an entry has its name, and a tag.
const NAME: u32 = 1;
/// Where an entry has what is named.
const VALUE: u32 = 2;

fn names<'a>(local: &[Field<'a>], others: &Others<'a>) -> Result<Option<Pieces<'a>>, Error> {
    let mut names = BTreeMap::new();
    for named in all_named(ENTRY, local).map_err(of(Server::Local))? {
        names.insert(named.name, named.raw);
    }
    let before = names.len();
    for (server, message) in others {
        for named in all_named(ENTRY, message).map_err(of(*server))? {
            names.entry(named.name).or_insert(named.raw);
        }
    }
    if names.len() == before {
        return Ok(None);
    }
    let entries = names.into_values().map(Cow::Borrowed).collect();
    let changed = BTreeMap::from([(ENTRY, entries)]);
    Ok(Some(replaced(local, changed)))
}

/// In the order in which they come: nobody sorts them.
fn tags<'a>(
    number: u32,
    local: &[Field<'a>],
    others: &Others<'a>,
) -> Result<Option<Pieces<'a>>, Error> {
    let mut known = BTreeSet::new();
    let mut tags = Pieces::new();
    for field in local.iter().filter(|field| field.number == number) {
        known.insert(Named::read(field).map_err(of(Server::Local))?.name);
        tags.push(Cow::Borrowed(field.raw));
    }
    let before = tags.len();
    for (server, message) in others {
        for field in message.iter().filter(|field| field.number == number) {
            if known.insert(Named::read(field).map_err(of(*server))?.name) {
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
    named: Named<'a>,
    /// Methods of others.
    added: Vec<Field<'a>>,
}

impl<'a> PathItem<'a> {
    fn new(of: Server, named: Named<'a>) -> Self {
        let added = Vec::new();
        Self { of, named, added }
    }

    /// Adds the methods that it lacks, and says whether there were any.
    fn add_methods(
        &mut self,
        spec: Spec,
        server: Server,
        other: &Named<'a>,
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

    fn pieces(self, number: u32) -> Result<Pieces<'a>, Error> {
        if self.added.is_empty() {
            return Ok(vec![Cow::Borrowed(self.named.raw)]);
        }
        let mut fields = self.named.fields().map_err(of(self.of))?;
        fields.extend(self.added);
        fields.sort_by_key(|field| field.number);
        let fields = fields.iter().map(|field| Cow::Borrowed(field.raw));
        let mut entry = framed(NAME, vec![Cow::Borrowed(self.named.name.as_bytes())]);
        entry.extend(framed(VALUE, fields.collect()));
        Ok(framed(number, entry))
    }
}

/// An entry of a map, or a tag.
struct Named<'a> {
    /// The field in which it came.
    raw: &'a [u8],
    name: &'a str,
    /// What is named; in pieces if it was written so.
    values: Vec<&'a [u8]>,
}

impl<'a> Named<'a> {
    fn read(field: &Field<'a>) -> Result<Self, Fault> {
        let mut named = Self {
            raw: field.raw,
            name: "",
            values: Vec::new(),
        };
        for inner in wire::fields(field.content()?)? {
            match inner.number {
                NAME => {
                    named.name =
                        str::from_utf8(inner.content()?).map_err(|_| Fault::NameNotText)?;
                }
                VALUE => named.values.push(inner.content()?),
                _ => {}
            }
        }
        Ok(named)
    }

    /// The fields of what is named.
    fn fields(&self) -> Result<Vec<Field<'a>>, Fault> {
        joined(self.values.iter().copied())
    }
}

/// The entries of a map.
fn all_named<'a>(number: u32, map: &[Field<'a>]) -> Result<Vec<Named<'a>>, Fault> {
    let entries = map.iter().filter(|field| field.number == number);
    let all: Vec<_> = entries.map(Named::read).collect::<Result<_, _>>()?;
    let names: BTreeSet<&str> = all.iter().map(|named| named.name).collect();
    if names.len() < all.len() {
        return Err(Fault::NameTwice);
    }
    Ok(all)
}

/// The fields of the message that a field holds. By the book, one that comes
/// several times is one in pieces.
fn inside<'a>(number: u32, message: &[Field<'a>]) -> Result<Vec<Field<'a>>, Fault> {
    let found = message.iter().filter(|field| field.number == number);
    let contents: Vec<_> = found.map(Field::content).collect::<Result<_, _>>()?;
    joined(contents.into_iter())
}

fn joined<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Field<'a>>, Fault> {
    let mut fields = Vec::new();
    for piece in pieces {
        fields.extend(wire::fields(piece)?);
    }
    Ok(fields)
}

/// A message with other fields in place of those of the same number, or behind
/// those of lower ones.
fn replaced<'a>(message: &[Field<'a>], mut changed: BTreeMap<u32, Pieces<'a>>) -> Pieces<'a> {
    let numbers: BTreeSet<u32> = message.iter().map(|field| field.number).collect();
    let replaced: BTreeSet<u32> = changed.keys().copied().collect();
    let mut pieces = Pieces::new();
    for field in message {
        let new: Vec<u32> = changed
            .keys()
            .copied()
            .filter(|number| {
                *number == field.number || *number < field.number && !numbers.contains(number)
            })
            .collect();
        for number in new {
            pieces.extend(changed.remove(&number).unwrap_or_default());
        }
        if !replaced.contains(&field.number) {
            pieces.push(Cow::Borrowed(field.raw));
        }
    }
    pieces.extend(changed.into_values().flatten());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u32, pieces: &[&[u8]]) -> Vec<u8> {
        framed(number, vec![pieces.concat().into()]).concat()
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
        let rows: [(Vec<u8>, Fault); 6] = [
            (vec![0x0a, 9], Fault::Malformed),
            (field(8, &[&[0x12, 9]]), Fault::Malformed),
            (vec![0x40, 1], Fault::WrongType),
            (field(8, &[&name_not_text]), Fault::NameNotText),
            (field(8, &[&method_as_number]), Fault::WrongType),
            (
                field(8, &[&path("/a", &[]), &path("/a", &[])]),
                Fault::NameTwice,
            ),
        ];
        for (broken, expected) in rows {
            let error = merge(Spec::V2, &good, &[&good, &broken], |_| true).unwrap_err();
            assert!(
                matches!(error, Error::Protobuf { of: Server::Other(1), fault } if fault == expected),
                "{error}, not {expected}"
            );
        }
        let error = merge(Spec::V2, &[0x0a, 9], &[&good], |_| true).unwrap_err();
        assert_eq!(error.server(), Some(Server::Local));
    }
}

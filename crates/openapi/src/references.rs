//! Which definitions of a document only belong to paths that are left out.
//!
//! Every server publishes the schemas of custom resources, and removes them some time after their
//! definition is deleted. Such paths are the local server's alone, so the schemas that only they
//! refer to are not taken from other servers: a deleted one would come back.

use std::collections::{BTreeMap, BTreeSet};

/// What a reference to a definition begins with.
const POINTER: &[u8] = b"#/definitions/";

/// The longest name that is read. Those of custom resources have at most 317 characters.
const MAX_NAME_BYTES: usize = 1_024;

/// How a document encodes the text of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// A string in quotation marks.
    Json,
    /// A string behind its length.
    Protobuf,
}

/// The paths of one server that the local server does not have, or has with fewer methods.
#[derive(Debug, Default)]
pub(crate) struct Paths<'a> {
    /// Not taken, and unknown to the local server.
    pub(crate) left_out: Vec<&'a [u8]>,
    pub(crate) taken: Vec<&'a [u8]>,
}

/// The definitions of one server that only paths which are left out refer to.
pub(crate) fn definitions_left_out(
    encoding: Encoding,
    paths: &Paths<'_>,
    definitions: &BTreeMap<&str, &[u8]>,
) -> BTreeSet<String> {
    let mut left_out = reachable(encoding, &paths.left_out, definitions);
    for name in reachable(encoding, &paths.taken, definitions) {
        left_out.remove(name);
    }
    // Others are taken, so that what they refer to has to be taken, too.
    let kept = definitions
        .iter()
        .filter(|(name, _)| !left_out.contains(*name));
    let kept: Vec<_> = kept.map(|(_, definition)| *definition).collect();
    let needed = reachable(encoding, &kept, definitions);
    let left_out = left_out.difference(&needed);
    left_out.map(|name| (*name).to_owned()).collect()
}

/// The definitions that these texts refer to, directly or by other definitions.
fn reachable<'n>(
    encoding: Encoding,
    roots: &[&[u8]],
    definitions: &BTreeMap<&'n str, &[u8]>,
) -> BTreeSet<&'n str> {
    let mut found = BTreeSet::new();
    let mut waiting = roots.to_vec();
    while let Some(text) = waiting.pop() {
        for name in references(encoding, text) {
            if let Some((name, definition)) = definitions.get_key_value(name)
                && found.insert(*name)
            {
                waiting.push(definition);
            }
        }
    }
    found
}

/// The names in all references of a text.
fn references(encoding: Encoding, text: &[u8]) -> impl Iterator<Item = &str> {
    let starts = (0..text.len()).filter(|at| text[*at..].starts_with(POINTER));
    starts.filter_map(move |start| {
        let name = start + POINTER.len();
        let end = match encoding {
            Encoding::Json => {
                let mut rest = text[name..].iter().take(MAX_NAME_BYTES);
                name + rest.position(|byte| *byte == b'"')?
            }
            Encoding::Protobuf => start + length_before(text, start)?,
        };
        str::from_utf8(text.get(name..end)?).ok()
    })
}

/// The length that is encoded before this position, of up to 16,383 bytes.
fn length_before(text: &[u8], at: usize) -> Option<usize> {
    const MORE: u8 = 0x80;
    let last = *text.get(at.checked_sub(1)?)?;
    let before = at.checked_sub(2).and_then(|at| text.get(at));
    let length = match before {
        // A field number before the length has no such bit below number 16.
        Some(first) if first & MORE != 0 => usize::from(first & !MORE) | usize::from(last) << 7,
        _ => usize::from(last),
    };
    (last & MORE == 0 && length >= POINTER.len()).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(reference: &str) -> Vec<u8> {
        let mut bytes = vec![0x0a];
        let length = reference.len();
        if length > 0x7f {
            bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            bytes.push(u8::try_from(length >> 7).unwrap());
        } else {
            bytes.push(u8::try_from(length).unwrap());
        }
        bytes.extend(reference.as_bytes());
        // The next field has a number that is a letter.
        bytes.extend(b"Bx");
        bytes
    }

    #[test]
    fn references_are_found_in_both_encodings() {
        let json = br##"{"$ref":"#/definitions/a.v1.B","x":{"$ref": "#/definitions/c"}}"##;
        let names: Vec<_> = references(Encoding::Json, json).collect();
        assert_eq!(names, ["a.v1.B", "c"]);
        let long = "l".repeat(300);
        let text = [
            schema("#/definitions/a.v1.B"),
            schema(&format!("#/definitions/{long}")),
            schema("#/parameters/p"),
        ];
        let text = text.concat();
        let names: Vec<_> = references(Encoding::Protobuf, &text).collect();
        assert_eq!(names, ["a.v1.B", &long]);
    }

    #[test]
    fn broken_references_are_ignored() {
        for text in [
            &b"#/definitions/"[..],
            b"#/definitions/a",
            b"\x02#/definitions/a",
            b"\x7f#/definitions/a",
            b"\xff#/definitions/a",
            b"\x1f#/definitions/\xff",
        ] {
            assert_eq!(references(Encoding::Protobuf, text).count(), 0, "{text:?}");
        }
        assert_eq!(references(Encoding::Json, b"#/definitions/a").count(), 0);
    }

    #[test]
    fn definitions_of_taken_paths_are_never_left_out() {
        let to = |name: &str| format!(r##"{{"$ref":"#/definitions/{name}"}}"##).into_bytes();
        let [thing, list, meta, pod] = ["Thing", "List", "Meta", "Pod"].map(to);
        let both = [thing.clone(), meta.clone()].concat();
        let definitions = BTreeMap::from([
            ("Thing", &*meta),
            ("List", &*both),
            ("Meta", b"{}"),
            ("Pod", &*meta),
            ("Unused", b"{}"),
        ]);
        let left_out = |left_out: &[&[u8]], taken: &[&[u8]]| {
            let (left_out, taken) = (left_out.to_vec(), taken.to_vec());
            let paths = Paths { left_out, taken };
            let left_out = definitions_left_out(Encoding::Json, &paths, &definitions);
            left_out.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(left_out(&[], &[&pod]), [""; 0]);
        assert_eq!(left_out(&[&list], &[&pod]), ["List", "Thing"]);
        // `Pod` is taken, although no path refers to it, and refers to `Meta`.
        assert_eq!(left_out(&[&list], &[]), ["List", "Thing"]);
        assert_eq!(left_out(&[&list], &[&thing]), ["List"]);
        assert_eq!(left_out(&[&list, &list], &[&list]), [""; 0]);
    }
}

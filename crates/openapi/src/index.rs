//! The index of `/openapi/v3`: the location of the document of each group version, and the
//! hash of its content.

use std::collections::BTreeMap;
use std::collections::btree_map::Iter;
use std::fmt::Write as _;

use aws_lc_rs::digest::{Context, SHA512};
use serde::de::Error as _;

use crate::error::Error;
use crate::group_version::GroupVersion;
use crate::object;

/// The index that a server serves at `/openapi/v3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    locations: BTreeMap<Box<str>, Location>,
}

/// The location of a document in the index: `/openapi/v3/api/v1?hash=0A1B`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location(Box<str>);

impl Index {
    /// Parses an index.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes).map_err(Error::Index)
    }

    fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let text = str::from_utf8(bytes).map_err(serde_json::Error::custom)?;
        let document = object::read(text)?;
        // A Status is an object as well: it has no paths, and must not count as an empty
        // index.
        let paths = object::get(&document, "paths")
            .ok_or_else(|| serde_json::Error::missing_field("paths"))?;
        let mut locations = BTreeMap::new();
        for (key, value) in object::read(paths)? {
            let entry = object::read(value)?;
            let url = object::get(&entry, "serverRelativeURL").unwrap_or("null");
            let url: Option<Box<str>> = serde_json::from_str(url)?;
            locations.insert(key.into(), Location(url.unwrap_or_default()));
        }
        Ok(Self { locations })
    }

    /// Serialises it like kube-apiserver: sorted, without spaces or a newline.
    pub fn to_json(&self) -> Vec<u8> {
        let entries = self.iter();
        write(entries.map(|(key, location)| (key, location.url())))
    }

    /// The location of the document of a key.
    pub fn get(&self, key: &str) -> Option<&Location> {
        self.locations.get(key)
    }

    /// All keys and locations, sorted.
    pub fn iter(&self) -> Locations<'_> {
        Locations(self.locations.iter())
    }
}

/// The entries of an [`Index`].
#[derive(Debug, Clone)]
pub struct Locations<'a>(Iter<'a, Box<str>, Location>);

impl<'a> Iterator for Locations<'a> {
    type Item = (&'a str, &'a Location);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, location)| (&**key, location))
    }
}

impl<'a> IntoIterator for &'a Index {
    type Item = (&'a str, &'a Location);
    type IntoIter = Locations<'a>;

    fn into_iter(self) -> Locations<'a> {
        self.iter()
    }
}

impl Location {
    /// The location on a kube-apiserver of the document of a group version with this hash.
    pub(crate) fn of(group_version: GroupVersion<'_>, hash: Option<&str>) -> Self {
        let mut url = format!("/openapi/v3/{group_version}");
        if let Some(hash) = hash {
            url.push_str("?hash=");
            url.push_str(hash);
        }
        Self(url.into())
    }

    /// Relative to the server: path and query.
    pub fn url(&self) -> &str {
        &self.0
    }

    /// The hash of the document, if it has one that is safe to copy.
    pub fn hash(&self) -> Option<&str> {
        let (_, query) = self.0.split_once('?')?;
        let mut pairs = query.split('&');
        let hash = pairs.find_map(|pair| pair.strip_prefix("hash="))?;
        // kube-apiserver's hashes are hexadecimal. Other hashes of a peer are copied into URLs
        // for clients, so they must not contain special characters.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
        (!hash.is_empty() && hash.bytes().all(plain)).then_some(hash)
    }
}

/// The hash of a merged document, from those of its sources: upper-case hexadecimal SHA-512,
/// as kube-apiserver writes hashes. For `/openapi/v2` the same can be done with the `ETag`s.
pub fn combined_hash<'a>(hashes: impl IntoIterator<Item = &'a str>) -> String {
    let mut context = Context::new(&SHA512);
    for hash in hashes {
        context.update(hash.as_bytes());
        // Otherwise `1`, `23` would be the same as `12`, `3`.
        context.update(b"\n");
    }
    let mut text = String::with_capacity(128);
    for byte in context.finish().as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02X}");
    }
    text
}

/// Serialises an index.
pub(crate) fn write<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut json = br#"{"paths":{"#.to_vec();
    for (number, (key, url)) in entries.enumerate() {
        if number > 0 {
            json.push(b',');
        }
        write_string(key, &mut json);
        json.extend_from_slice(br#":{"serverRelativeURL":"#);
        write_string(url, &mut json);
        json.push(b'}');
    }
    json.extend_from_slice(b"}}");
    json
}

/// Escapes a string like Go, which makes JSON safe inside HTML.
fn write_string(text: &str, to: &mut Vec<u8>) {
    const ESCAPED: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    let mut rest = text;
    to.push(b'"');
    while !rest.is_empty() {
        let end = rest.find(ESCAPED).unwrap_or(rest.len());
        let (plain, further) = rest.split_at(end);
        let mut quoted = Vec::new();
        object::write_string(plain, &mut quoted);
        to.extend_from_slice(&quoted[1..quoted.len() - 1]);
        let mut characters = further.chars();
        if let Some(escaped) = characters.next() {
            to.extend_from_slice(format!("\\u{:04x}", u32::from(escaped)).as_bytes());
        }
        rest = characters.as_str();
    }
    to.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kube-apiserver 1.36 writes it, with fewer entries and shorter hashes.
    const REAL: &str = concat!(
        r#"{"paths":{".well-known/openid-configuration":{"serverRelativeURL":"/openapi/v3/.well-known/openid-configuration?hash=2229F3F5"},"#,
        r#""api":{"serverRelativeURL":"/openapi/v3/api?hash=95FD"},"#,
        r#""api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=8C23"},"#,
        r#""apis/apps":{"serverRelativeURL":"/openapi/v3/apis/apps?hash=F3A1"},"#,
        r#""apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=E683"}}}"#,
    );

    #[test]
    fn an_index_serialises_to_the_same_bytes() {
        let index = Index::parse(REAL.as_bytes()).unwrap();
        assert_eq!(index.to_json(), REAL.as_bytes());
        assert_eq!(index.iter().count(), 5);
        let apps = index.get("apis/apps/v1").unwrap();
        assert_eq!(apps.url(), "/openapi/v3/apis/apps/v1?hash=E683");
        assert_eq!(apps.hash(), Some("E683"));
        assert_eq!(index.get("apis/apps/v2"), None);
    }

    #[test]
    fn strings_are_escaped_like_in_go() {
        let text =
            r#"{"paths":{"a\u003cb\"":{"serverRelativeURL":"/x?a=1\u0026hash=2\u2028\u003eé\\"}}}"#;
        let index = Index::parse(text.as_bytes()).unwrap();
        assert_eq!(str::from_utf8(&index.to_json()), Ok(text));
    }

    #[test]
    fn only_safe_hashes_are_used() {
        for (url, expected) in [
            ("/openapi/v3/api/v1?hash=0A", Some("0A")),
            ("/openapi/v3/api/v1?a=b&hash=%220A%22", Some("%220A%22")),
            ("/openapi/v3/api/v1", None),
            ("/openapi/v3/api/v1?hash=", None),
            ("/openapi/v3/api/v1?hash", None),
            ("/openapi/v3/api/v1?rehash=1", None),
            ("/openapi/v3/api/v1?hash=a b", None),
            ("/openapi/v3/api/v1?hash=a#b", None),
            ("/openapi/v3/api/v1?hash=a\r\nb", None),
            ("", None),
        ] {
            assert_eq!(Location(url.into()).hash(), expected, "{url}");
        }
    }

    #[test]
    fn unusual_indexes_are_parsed_like_in_go_or_rejected() {
        for (text, entries) in [
            (r#"{"paths":{}}"#, Some(0)),
            (r#"{"paths":null}"#, Some(0)),
            (r#"{"paths":{"a":null,"b":{}},"c":1}"#, Some(2)),
            (r#"{"paths":{"a":{"serverRelativeURL":null}}}"#, Some(1)),
            (r#"{"kind":"Status"}"#, None),
            (r#"{"paths":[]}"#, None),
            (r#"{"paths":{"a":"b"}}"#, None),
            (r#"{"paths":{"a":{"serverRelativeURL":1}}}"#, None),
            (r#"{"paths":{"a":{},"a":{}}}"#, None),
            ("404 page not found\n", None),
            ("", None),
        ] {
            let index = Index::parse(text.as_bytes());
            assert_eq!(index.ok().map(|it| it.iter().count()), entries, "{text}");
        }
        assert!(Index::parse(b"{\"paths\":{\"\xff\":{}}}").is_err());
    }

    #[test]
    fn a_combined_hash_depends_on_each_and_on_their_order() {
        let hashes = [
            combined_hash(["1", "23"]),
            combined_hash(["12", "3"]),
            combined_hash(["23", "1"]),
            combined_hash(["1", "23", ""]),
        ];
        for (number, hash) in hashes.iter().enumerate() {
            assert_eq!(hash.len(), 128);
            assert_eq!(*hash, hash.to_uppercase());
            assert!(!hashes[..number].contains(hash));
        }
    }
}

//! The merged index of several servers, with the sources of each document.

use std::collections::BTreeMap;

use crate::error::Server;
use crate::group_version::GroupVersion;
use crate::index::{Index, Location, combined_hash, write};

/// What all servers together list at `/openapi/v3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedIndex {
    entries: BTreeMap<Box<str>, Entry>,
}

/// A document of a [`MergedIndex`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The location for clients.
    pub location: Location,
    /// The source documents; at least one. A single one is served unchanged, several are
    /// merged in this order.
    pub sources: Vec<Source>,
}

/// A document of one server, or the same document of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The hash that its servers report. Without one it may change unnoticed.
    pub hash: Option<Box<str>>,
    /// The servers that have it; at least one. Each has it at the location in its own index.
    pub servers: Vec<Server>,
}

impl Index {
    /// Merges the index of a server with those of others. Entries of the local server are
    /// kept, and its documents come first. For each group version, the documents of those
    /// others are added for which `take` returns true: they serve something of it that the
    /// local server does not, and it is no API that all servers share. Keys other than group
    /// versions are taken from the local server only.
    ///
    /// The same order of the others gives the same hashes.
    pub fn merge(
        &self,
        others: &[&Index],
        take: impl Fn(GroupVersion<'_>, usize) -> bool,
    ) -> MergedIndex {
        let mut merged: BTreeMap<&str, Vec<Source>> = BTreeMap::new();
        for (key, location) in self {
            merged.insert(key, vec![Source::new(location, Server::Local)]);
        }
        for (number, other) in others.iter().enumerate() {
            for (key, location) in *other {
                let group_version = GroupVersion::from_key(key);
                if group_version.is_some_and(|it| take(it, number)) {
                    let sources = merged.entry(key).or_default();
                    add(sources, location, Server::Other(number));
                }
            }
        }
        let entries = merged.into_iter().filter_map(|(key, sources)| {
            let location = match (self.get(key), sources.as_slice()) {
                (Some(location), [_]) => location.clone(),
                (_, sources) => {
                    Location::of(GroupVersion::from_key(key)?, hash(sources).as_deref())
                }
            };
            Some((key.into(), Entry { location, sources }))
        });
        MergedIndex {
            entries: entries.collect(),
        }
    }
}

/// The same document is added once, with all servers that have it.
fn add(sources: &mut Vec<Source>, location: &Location, server: Server) {
    let hash = location.hash();
    let same = sources
        .iter_mut()
        .find(|source| hash.is_some() && source.hash.as_deref() == hash);
    match same {
        Some(source) => source.servers.push(server),
        None => sources.push(Source::new(location, server)),
    }
}

/// `None` if a source has none: then clients must not cache the document.
fn hash(sources: &[Source]) -> Option<String> {
    let hashes: Option<Vec<&str>> = sources
        .iter()
        .map(|source| source.hash.as_deref())
        .collect();
    match hashes?.as_slice() {
        [one] => Some((*one).to_owned()),
        several => Some(combined_hash(several.iter().copied())),
    }
}

impl MergedIndex {
    /// The document of a key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All keys and their documents, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(key, entry)| (&**key, entry))
    }

    /// Serialises it like kube-apiserver: sorted, without spaces or a newline.
    pub fn to_json(&self) -> Vec<u8> {
        write(self.iter().map(|(key, entry)| (key, entry.location.url())))
    }
}

impl Entry {
    /// Whether it is just the local server's document.
    pub fn is_local(&self) -> bool {
        matches!(self.sources.as_slice(), [source] if source.servers.contains(&Server::Local))
    }
}

impl Source {
    fn new(location: &Location, server: Server) -> Self {
        Self {
            hash: location.hash().map(Into::into),
            servers: vec![server],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(entries: &[(&str, &str)]) -> Index {
        let urls: Vec<_> = entries
            .iter()
            .map(|(key, hash)| match *hash {
                "" => (*key, format!("/openapi/v3/{key}")),
                hash => (*key, format!("/openapi/v3/{key}?hash={hash}")),
            })
            .collect();
        let json = write(urls.iter().map(|(key, url)| (*key, url.as_str())));
        Index::parse(&json).unwrap()
    }

    fn servers(entry: &Entry) -> Vec<&[Server]> {
        let sources = entry.sources.iter();
        sources.map(|source| source.servers.as_slice()).collect()
    }

    use Server::{Local, Other};

    #[test]
    fn each_entry_lists_its_sources() {
        let local = index(&[
            ("version", "A0"),
            ("apis/apps", "A1"),
            ("apis/apps/v1", "A2"),
            ("apis/batch/v1", "A3"),
            ("apis/same/v1", "A4"),
            ("apis/crd/v1", "A5"),
            ("apis/loose/v1", ""),
        ]);
        let one = index(&[
            ("version", "B0"),
            ("apis/apps", "B1"),
            ("apis/apps/v1", "B2"),
            ("apis/batch/v1", "B3"),
            ("apis/same/v1", "A4"),
            ("apis/crd/v1", "B5"),
            ("apis/loose/v1", "B6"),
            ("apis/new/v1", "B7"),
            ("apis/new", "B8"),
            ("apis/newcrd/v1", "B9"),
            ("apis/newer/v1", "BA"),
        ]);
        let two = index(&[
            ("apis/apps/v1", "C2"),
            ("apis/batch/v1", "B3"),
            ("apis/new/v1", "B7"),
            ("apis/newer/v1", "CA"),
        ]);
        let take = |it: GroupVersion<'_>, other| match it.group {
            "apps" => other == 1,
            group => !group.ends_with("crd"),
        };
        let merged = local.merge(&[&one, &two], take);

        let rows: &[(&str, &[&[Server]], &str)] = &[
            ("apis/apps", &[&[Local]], "A1"),
            (
                "apis/apps/v1",
                &[&[Local], &[Other(1)]],
                &combined_hash(["A2", "C2"]),
            ),
            (
                "apis/batch/v1",
                &[&[Local], &[Other(0), Other(1)]],
                &combined_hash(["A3", "B3"]),
            ),
            ("apis/crd/v1", &[&[Local]], "A5"),
            ("apis/loose/v1", &[&[Local], &[Other(0)]], ""),
            ("apis/new/v1", &[&[Other(0), Other(1)]], "B7"),
            (
                "apis/newer/v1",
                &[&[Other(0)], &[Other(1)]],
                &combined_hash(["BA", "CA"]),
            ),
            ("apis/same/v1", &[&[Local, Other(0)]], "A4"),
            ("version", &[&[Local]], "A0"),
        ];
        let found: Vec<_> = merged
            .iter()
            .map(|(key, entry)| (key, servers(entry)))
            .collect();
        let expected: Vec<_> = rows
            .iter()
            .map(|(key, sources, _)| (*key, sources.to_vec()))
            .collect();
        assert_eq!(found, expected);
        let urls: Vec<_> = rows.iter().map(|(key, _, hash)| (*key, *hash)).collect();
        assert_eq!(merged.to_json(), index(&urls).to_json());
        assert!(merged.get("apis/same/v1").is_some_and(Entry::is_local));
        assert!(!merged.get("apis/new/v1").is_some_and(Entry::is_local));
        assert!(!merged.get("apis/apps/v1").is_some_and(Entry::is_local));
    }

    #[test]
    fn locations_of_other_servers_are_not_used_for_clients() {
        let other =
            br#"{"paths":{"apis/new/v1":{"serverRelativeURL":"https://elsewhere/?hash=0A"}}}"#;
        let other = Index::parse(other).unwrap();
        let merged = Index::default().merge(&[&other], |_, _| true);
        assert_eq!(merged.to_json(), index(&[("apis/new/v1", "0A")]).to_json());
    }

    #[test]
    fn the_index_of_a_single_server_is_unchanged() {
        let json = br#"{"paths":{"":{"serverRelativeURL":""},"apis/a/v1":{"serverRelativeURL":"/elsewhere"}}}"#;
        let local = Index::parse(json).unwrap();
        assert_eq!(local.merge(&[], |_, _| true).to_json(), json);
        let with_itself = local.merge(&[&local], |_, _| false);
        assert_eq!(with_itself.to_json(), json);
    }
}

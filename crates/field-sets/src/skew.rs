//! How the fields that servers have differ.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use skewbridge_k8s_api::version::Version;

use crate::error::{Error, MAX_PATHS_PER_KIND};
use crate::path::{FieldPath, Step};
use crate::server_fields::ServerFields;
use crate::tree::{Forest, NodeId};

/// A server whose fields are compared.
#[derive(Debug, Clone, Copy)]
pub struct ComparedServer<'a> {
    /// A server of unknown version counts as the oldest.
    pub version: Option<Version>,
    /// Its fields.
    pub fields: &'a ServerFields,
}

/// The resources whose fields differ between servers. A server is an index into the list that was
/// compared; apart from these numbers, the result does not depend on the order of that list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSkew {
    differences: BTreeMap<(String, String), FieldDifference>,
}

/// How servers differ in the fields of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDifference {
    kind: String,
    /// The lacking fields of each server that serves the kind.
    lacking: BTreeMap<usize, Vec<FieldPath>>,
    unknown: Vec<FieldPath>,
    knows_most: Vec<usize>,
    is_ambiguous: bool,
}

impl FieldSkew {
    /// Compares servers. Resources for which `is_shared` returns true (by group and resource) are
    /// left out: custom resources and aggregated APIs are the same on every server.
    pub fn compare(
        servers: &[ComparedServer<'_>],
        is_shared: impl Fn(&str, &str) -> bool,
    ) -> Result<Self, Error> {
        let mut comparison = Comparison::default();
        // By resource: the kind, and its fields on each server.
        let mut resources = BTreeMap::<_, (&String, BTreeMap<usize, NodeId>)>::new();
        for (number, server) in servers.iter().enumerate() {
            let mut copied = HashMap::new();
            for (resource, kind) in server.fields.resources() {
                if is_shared(&resource.0, &resource.1) {
                    continue;
                }
                let Some(set) = server.fields.kind(&kind.0, &kind.1) else {
                    continue;
                };
                let root = comparison.forest.copy(set.forest, set.root, &mut copied)?;
                let (_, roots) = resources
                    .entry(resource.clone())
                    .or_insert_with(|| (&kind.1, BTreeMap::new()));
                roots.insert(number, root);
            }
        }
        let mut differences = BTreeMap::new();
        for (resource, (kind, roots)) in resources {
            if let Some(difference) = comparison.difference(servers, kind, &roots)? {
                differences.insert(resource, difference);
            }
        }
        Ok(Self { differences })
    }

    /// Whether all servers have the same fields of the resources that they have in common.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    /// How servers differ in the fields of a resource; `None` if they do not.
    pub fn difference(&self, group: &str, resource: &str) -> Option<&FieldDifference> {
        if self.differences.is_empty() {
            return None;
        }
        self.differences
            .get(&(group.to_owned(), resource.to_owned()))
    }

    /// All differences, sorted by group and resource.
    pub fn differences(&self) -> impl Iterator<Item = (&str, &str, &FieldDifference)> {
        let differences = self.differences.iter();
        differences.map(|((group, resource), it)| (&**group, &**resource, it))
    }
}

impl FieldDifference {
    /// The kind of the objects.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The servers that serve the kind in some version.
    pub fn servers(&self) -> impl Iterator<Item = usize> {
        self.lacking.keys().copied()
    }

    /// The fields that a server does not have and another one does, sorted. Of a field whose
    /// container is missing too, only the container is in the list.
    pub fn lacking(&self, server: usize) -> &[FieldPath] {
        self.lacking.get(&server).map_or(&[], Vec::as_slice)
    }

    /// The fields that not all servers have, sorted.
    pub fn unknown(&self) -> &[FieldPath] {
        &self.unknown
    }

    /// The servers that lack no field. Without such a server these are the newest servers, and among
    /// these those that lack the fewest fields.
    pub fn knows_most(&self) -> &[usize] {
        &self.knows_most
    }

    /// Whether every server lacks a field that another one has.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }
}

/// The fields of all servers in one forest, where equal fields are one node.
#[derive(Default)]
struct Comparison {
    forest: Forest,
    unions: HashMap<(NodeId, NodeId), NodeId>,
}

impl Comparison {
    fn difference(
        &mut self,
        servers: &[ComparedServer<'_>],
        kind: &str,
        roots: &BTreeMap<usize, NodeId>,
    ) -> Result<Option<FieldDifference>, Error> {
        let distinct: BTreeSet<NodeId> = roots.values().copied().collect();
        let mut all = match distinct.first() {
            Some(first) if distinct.len() > 1 => *first,
            _ => return Ok(None),
        };
        for root in &distinct {
            all = self.forest.union(all, *root, &mut self.unions)?;
        }
        let mut by_root = BTreeMap::new();
        for root in distinct {
            let mut found = Vec::new();
            self.lacking(all, root, &mut Vec::new(), &mut found)?;
            found.sort();
            by_root.insert(root, found);
        }
        let unknown: BTreeSet<FieldPath> = by_root.values().flatten().cloned().collect();
        let lacking: BTreeMap<usize, Vec<FieldPath>> = roots
            .iter()
            .filter_map(|(server, root)| Some((*server, by_root.get(root)?.clone())))
            .collect();
        let complete = lacking.iter().filter(|(_, paths)| paths.is_empty());
        let complete: Vec<usize> = complete.map(|(server, _)| *server).collect();
        let is_ambiguous = complete.is_empty();
        let knows_most = if is_ambiguous {
            newest(servers, &lacking)
        } else {
            complete
        };
        Ok(Some(FieldDifference {
            kind: kind.to_owned(),
            lacking,
            unknown: unknown.into_iter().collect(),
            knows_most,
            is_ambiguous,
        }))
    }

    /// The topmost paths below `all` that are not below `known`.
    fn lacking(
        &self,
        all: NodeId,
        known: NodeId,
        above: &mut Vec<Step>,
        found: &mut Vec<FieldPath>,
    ) -> Result<(), Error> {
        if all == known {
            return Ok(());
        }
        let steps = self.forest.get(known);
        for (step, below) in self.forest.get(all) {
            above.push(step.clone());
            match steps.iter().find(|(it, _)| it == step) {
                Some((_, known)) => self.lacking(*below, *known, above, found)?,
                None => found.push(FieldPath(above.clone())),
            }
            above.pop();
        }
        if u64::try_from(found.len()).is_ok_and(|count| count <= MAX_PATHS_PER_KIND) {
            Ok(())
        } else {
            Err(Error::Bound {
                bound: "MAX_PATHS_PER_KIND",
                limit: MAX_PATHS_PER_KIND,
            })
        }
    }
}

fn newest(servers: &[ComparedServer<'_>], lacking: &BTreeMap<usize, Vec<FieldPath>>) -> Vec<usize> {
    let rank = |server: usize, paths: &[FieldPath]| {
        let version = servers.get(server).and_then(|it| it.version);
        (version, std::cmp::Reverse(paths.len()))
    };
    let best = lacking
        .iter()
        .map(|(server, paths)| rank(*server, paths))
        .max();
    let servers = lacking
        .iter()
        .filter(|(server, paths)| Some(rank(**server, paths)) == best);
    servers.map(|(server, _)| *server).collect()
}

//! The fields that one server has of each built-in kind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};
use skewbridge_discovery::document::Group;

use crate::error::{Error, MAX_KINDS, MAX_NODES, MAX_PATHS_PER_KIND};
use crate::extract::{Document, Extraction};
use crate::path::{FieldPath, Step};
use crate::tree::{Forest, NodeId, Steps};

/// Changes when the meaning of a cached file changes. Files with another number are ignored.
const FORMAT_VERSION: u32 = 1;

/// A group and a kind, or a group and a resource.
type Name = (String, String);

/// The fields that a server has of each built-in kind, and the kinds of its resources.
///
/// The fields of a kind are those of all versions that the server serves: it decodes an object
/// into one internal type that has the fields of all of them. So the graduation of a version is no
/// difference.
#[derive(Clone, Default)]
pub struct ServerFields {
    forest: Forest,
    kinds: BTreeMap<Name, NodeId>,
    resources: BTreeMap<Name, Name>,
}

/// The fields of one kind.
#[derive(Clone, Copy)]
pub struct FieldSet<'a> {
    pub(crate) forest: &'a Forest,
    pub(crate) root: NodeId,
}

/// Collects the documents of one server.
#[derive(Debug)]
pub struct ServerFieldsBuilder {
    forest: Forest,
    kinds: BTreeMap<Name, NodeId>,
    resources: BTreeMap<Name, Name>,
    /// The kinds of resources.
    wanted: BTreeSet<Name>,
}

impl ServerFieldsBuilder {
    /// With the resources of a server's aggregated discovery. A subresource belongs to its
    /// resource: a write to `deployments/scale` rewrites the `Deployment`.
    pub fn new<'a>(groups: impl IntoIterator<Item = &'a Group>) -> Self {
        let mut resources = BTreeMap::new();
        for group in groups {
            let versions = group.versions.iter();
            for resource in versions.flat_map(|version| &version.resources) {
                let Some(kind) = &resource.response_kind else {
                    continue;
                };
                let kind_group = match kind.group.as_str() {
                    "" => group.name(),
                    kind_group => kind_group,
                };
                let name = (group.name().to_owned(), resource.resource.clone());
                let kind = (kind_group.to_owned(), kind.kind.clone());
                resources.entry(name).or_insert(kind);
            }
        }
        Self {
            forest: Forest::default(),
            kinds: BTreeMap::new(),
            wanted: resources.values().cloned().collect(),
            resources,
        }
    }

    /// Adds the document of a group-version: `/openapi/v3/apis/GROUP/VERSION`. After an error
    /// the kinds of this group are left out.
    pub fn add(&mut self, group: &str, version: &str, document: &[u8]) -> Result<(), Error> {
        let added = self.add_kinds(group, version, document);
        if added.is_err() {
            self.kinds.retain(|(kind_group, _), _| kind_group != group);
            self.wanted.retain(|(kind_group, _)| kind_group != group);
        }
        added
    }

    fn add_kinds(&mut self, group: &str, version: &str, document: &[u8]) -> Result<(), Error> {
        let document = Document::parse(document)?;
        // Only the trees of kinds are copied from this forest; its other nodes are dropped.
        let mut forest = Forest::default();
        let mut extracted = Vec::new();
        let mut extraction = Extraction::new(&document, &mut forest);
        for (kind, schema) in document.built_in_kinds(group, version) {
            let name = (group.to_owned(), kind.to_owned());
            if self.wanted.contains(&name) {
                extracted.push((name, extraction.named(schema, 0)?));
            }
        }
        let mut copied = HashMap::new();
        let mut unions = HashMap::new();
        let counts = forest.path_counts();
        for (name, id) in extracted {
            check_paths(&counts, id)?;
            let mut id = self.forest.copy(&forest, id, &mut copied)?;
            if let Some(known) = self.kinds.get(&name) {
                id = self.forest.union(*known, id, &mut unions)?;
            }
            self.kinds.insert(name, id);
            if self.kinds.len() > MAX_KINDS {
                return Err(Error::bound("MAX_KINDS", MAX_KINDS));
            }
        }
        Ok(())
    }

    /// The fields of all documents.
    pub fn build(self) -> Result<ServerFields, Error> {
        let mut built = ServerFields::default();
        let mut copied = HashMap::new();
        for (name, id) in self.kinds {
            let id = built.forest.copy(&self.forest, id, &mut copied)?;
            built.kinds.insert(name, id);
        }
        let counts = built.forest.path_counts();
        for id in built.kinds.values() {
            check_paths(&counts, *id)?;
        }
        // Resources without fields (custom resources, aggregated APIs) are left out.
        let resources = self.resources.into_iter();
        built.resources = resources
            .filter(|(_, kind)| built.kinds.contains_key(kind))
            .collect();
        Ok(built)
    }
}

fn check_paths(counts: &[u64], id: NodeId) -> Result<(), Error> {
    let index = usize::try_from(id).unwrap_or(usize::MAX);
    match counts.get(index) {
        Some(count) if *count > MAX_PATHS_PER_KIND => Err(Error::Bound {
            bound: "MAX_PATHS_PER_KIND",
            limit: MAX_PATHS_PER_KIND,
        }),
        _ => Ok(()),
    }
}

impl ServerFields {
    /// The fields of a kind.
    pub fn kind(&self, group: &str, kind: &str) -> Option<FieldSet<'_>> {
        let root = *self.kinds.get(&(group.to_owned(), kind.to_owned()))?;
        Some(FieldSet {
            forest: &self.forest,
            root,
        })
    }

    /// The group and kind of the objects of a resource.
    pub fn kind_of(&self, group: &str, resource: &str) -> Option<(&str, &str)> {
        let name = (group.to_owned(), resource.to_owned());
        let (group, kind) = self.resources.get(&name)?;
        Some((group, kind))
    }

    /// The group and kind of everything that is known.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.kinds.keys().map(|(group, kind)| (&**group, &**kind))
    }

    /// The group and resource of everything that is known.
    pub(crate) fn resources(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.resources.iter()
    }

    /// The memory that is used, without that of the allocator.
    pub fn heap_bytes(&self) -> usize {
        let names = |name: &Name| name.0.len() + name.1.len() + 2 * size_of::<String>();
        let kinds: usize = self.kinds.keys().map(names).sum();
        let resources = self.resources.iter();
        let resources: usize = resources
            .map(|(one, other)| names(one) + names(other))
            .sum();
        self.forest.heap_bytes() + kinds + resources
    }

    /// For a file in the state directory.
    pub fn to_json(&self) -> Vec<u8> {
        let nodes = self.forest.nodes().iter();
        let nodes = nodes.map(|node| {
            let steps = node.iter().map(|(step, below)| (step_name(step), *below));
            steps.collect()
        });
        let kinds = self.kinds.iter();
        let resources = self.resources.iter();
        let cached = Cached {
            format_version: FORMAT_VERSION,
            nodes: nodes.collect(),
            kinds: kinds
                .map(|(name, id)| (name.0.clone(), name.1.clone(), *id))
                .collect(),
            resources: resources
                .map(|(name, kind)| {
                    let [group, resource] = [&name.0, &name.1].map(Clone::clone);
                    (group, resource, kind.0.clone(), kind.1.clone())
                })
                .collect(),
        };
        // Serialising plain structures with string keys cannot fail.
        serde_json::to_vec(&cached).unwrap_or_default()
    }

    /// Parses a file. A file of another format is an error, after which the documents are
    /// requested from the server again.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Error> {
        let cached: Cached = serde_json::from_slice(bytes)?;
        if cached.format_version != FORMAT_VERSION {
            return Err(Error::Cache("another format version"));
        }
        if cached.nodes.len() > MAX_NODES {
            return Err(Error::bound("MAX_NODES", MAX_NODES));
        }
        if cached.kinds.len() > MAX_KINDS {
            return Err(Error::bound("MAX_KINDS", MAX_KINDS));
        }
        let mut forest = Forest::default();
        for (number, node) in cached.nodes.into_iter().enumerate() {
            let mut steps = Steps::new();
            for (name, below) in node {
                if usize::try_from(below).map_or(true, |below| below >= number) {
                    return Err(Error::Cache("a node refers to a later one"));
                }
                steps.insert(named_step(&name)?, below);
            }
            let id = forest.insert(steps)?;
            if usize::try_from(id) != Ok(number) {
                return Err(Error::Cache("two nodes are equal"));
            }
        }
        let counts = forest.path_counts();
        let mut kinds = BTreeMap::new();
        for (group, kind, id) in cached.kinds {
            if usize::try_from(id).map_or(true, |id| id >= counts.len()) {
                return Err(Error::Cache("a kind refers to no node"));
            }
            check_paths(&counts, id)?;
            kinds.insert((group, kind), id);
        }
        let mut resources = BTreeMap::new();
        for (group, resource, kind_group, kind) in cached.resources {
            let kind = (kind_group, kind);
            if !kinds.contains_key(&kind) {
                return Err(Error::Cache("a resource refers to no kind"));
            }
            resources.insert((group, resource), kind);
        }
        Ok(Self {
            forest,
            kinds,
            resources,
        })
    }
}

impl PartialEq for ServerFields {
    fn eq(&self, other: &Self) -> bool {
        self.forest.nodes() == other.forest.nodes()
            && self.kinds == other.kinds
            && self.resources == other.resources
    }
}

impl Eq for ServerFields {}

impl fmt::Debug for ServerFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerFields")
            .field("kinds", &self.kinds.len())
            .field("resources", &self.resources.len())
            .field("nodes", &self.forest.nodes().len())
            .finish()
    }
}

/// The content of a file. The nodes below a node precede it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    format_version: u32,
    nodes: Vec<BTreeMap<String, NodeId>>,
    kinds: Vec<(String, String, NodeId)>,
    resources: Vec<(String, String, String, String)>,
}

const ITEM: &str = "[]";
const VALUE: &str = "{}";

fn step_name(step: &Step) -> String {
    match step {
        Step::Field(name) => name.to_string(),
        Step::Item => ITEM.to_owned(),
        Step::Value => VALUE.to_owned(),
    }
}

fn named_step(name: &str) -> Result<Step, Error> {
    match name {
        ITEM => Ok(Step::Item),
        VALUE => Ok(Step::Value),
        name => Step::field(name),
    }
}

impl FieldSet<'_> {
    /// A hash of all paths that is the same in every process.
    pub fn fingerprint(&self) -> u64 {
        let index = usize::try_from(self.root).unwrap_or(usize::MAX);
        let fingerprints = self.forest.fingerprints();
        fingerprints.get(index).copied().unwrap_or_default()
    }

    /// Whether a field is known.
    pub fn contains(&self, path: &FieldPath) -> bool {
        let mut at = self.root;
        for step in path.steps() {
            let below = self.forest.get(at).iter().find(|(it, _)| it == step);
            match below {
                Some((_, below)) => at = *below,
                None => return false,
            }
        }
        true
    }

    /// All paths, sorted.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(self.root, &mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, at: NodeId, above: &mut Vec<Step>, paths: &mut Vec<FieldPath>) {
        for (step, below) in self.forest.get(at) {
            above.push(step.clone());
            paths.push(FieldPath(above.clone()));
            self.collect(*below, above, paths);
            above.pop();
        }
    }
}

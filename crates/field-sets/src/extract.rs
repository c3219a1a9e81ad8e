//! Fields of kinds in an OpenAPI v3 document of kube-apiserver.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Deserializer};

use crate::error::{Error, MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_SCHEMA_VISITS};
use crate::path::Step;
use crate::tree::{Forest, NodeId, Steps};

const REFERENCE_PREFIX: &str = "#/components/schemas/";

/// Schemas that kube-apiserver generates from Go types. Schemas of custom resources are named by
/// their group, and those of aggregated APIs by other Go packages.
const BUILT_IN_PREFIXES: [&str; 3] = [
    "io.k8s.api.",
    "io.k8s.apiextensions-apiserver.pkg.apis.",
    "io.k8s.kube-aggregator.pkg.apis.",
];

/// A parsed document.
#[derive(Debug)]
pub(crate) struct Document(BTreeMap<String, Schema>);

#[derive(Debug, Default, Deserialize)]
struct Schema {
    #[serde(rename = "$ref", default)]
    reference: Option<String>,
    #[serde(rename = "allOf", default, deserialize_with = "null_as_default")]
    all_of: Vec<Schema>,
    #[serde(default, deserialize_with = "null_as_default")]
    properties: BTreeMap<String, Schema>,
    #[serde(default)]
    items: Option<Box<Schema>>,
    #[serde(rename = "additionalProperties", default)]
    additional_properties: Option<MapValue>,
    #[serde(
        rename = "x-kubernetes-group-version-kind",
        default,
        deserialize_with = "null_as_default"
    )]
    kinds: Vec<SchemaKind>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum MapValue {
    Any(#[expect(dead_code, reason = "only its type is checked")] bool),
    Schema(Box<Schema>),
}

#[derive(Debug, Default, Deserialize)]
struct SchemaKind {
    #[serde(default, deserialize_with = "null_as_default")]
    group: String,
    #[serde(default, deserialize_with = "null_as_default")]
    version: String,
    #[serde(default, deserialize_with = "null_as_default")]
    kind: String,
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Document {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default, deserialize_with = "null_as_default")]
            components: Components,
        }
        #[derive(Default, Deserialize)]
        struct Components {
            #[serde(default, deserialize_with = "null_as_default")]
            schemas: BTreeMap<String, Schema>,
        }
        if bytes.len() > MAX_DOCUMENT_BYTES {
            return Err(Error::bound("MAX_DOCUMENT_BYTES", MAX_DOCUMENT_BYTES));
        }
        let body: Body = serde_json::from_slice(bytes)?;
        Ok(Self(body.components.schemas))
    }

    /// The built-in kinds of a group-version, with the names of their schemas. Others (custom
    /// resources, aggregated APIs, `DeleteOptions`) are left out.
    pub(crate) fn built_in_kinds(
        &self,
        group: &str,
        version: &str,
    ) -> impl Iterator<Item = (&str, &str)> {
        let schemas = self.0.iter();
        let schemas = schemas.filter(|(name, _)| {
            let mut prefixes = BUILT_IN_PREFIXES.iter();
            prefixes.any(|prefix| name.starts_with(prefix))
        });
        schemas.flat_map(move |(name, schema)| {
            let kinds = schema.kinds.iter();
            let kinds = kinds.filter(move |it| (&*it.group, &*it.version) == (group, version));
            kinds.map(move |it| (&*it.kind, &**name))
        })
    }
}

/// Makes trees of the schemas of one document.
pub(crate) struct Extraction<'a> {
    document: &'a Document,
    forest: &'a mut Forest,
    /// The trees of visited schemas that are not recursive, for reuse.
    known: HashMap<&'a str, NodeId>,
    /// The references from the kind to the schema that is being visited.
    references: Vec<&'a str>,
    visits: usize,
    /// How often recursion was cut.
    cuts: usize,
    unions: HashMap<(NodeId, NodeId), NodeId>,
}

impl<'a> Extraction<'a> {
    pub(crate) fn new(document: &'a Document, forest: &'a mut Forest) -> Self {
        Self {
            document,
            forest,
            known: HashMap::new(),
            references: Vec::new(),
            visits: 0,
            cuts: 0,
            unions: HashMap::new(),
        }
    }

    /// The fields of a schema with this name.
    pub(crate) fn named(&mut self, name: &'a str, depth: usize) -> Result<NodeId, Error> {
        if let Some(known) = self.known.get(name) {
            return Ok(*known);
        }
        let Some(schema) = self.document.0.get(name) else {
            return self.forest.insert(Steps::new());
        };
        // Recursion ends at the second visit: `JSONSchemaProps` contains schemas.
        if self.references.contains(&name) {
            self.cuts += 1;
            return self.forest.insert(Steps::new());
        }
        let cuts = self.cuts;
        self.references.push(name);
        let node = self.schema(schema, depth + 1);
        self.references.pop();
        let node = node?;
        // A recursive schema has another tree below other references, so its tree is not reused.
        if self.cuts == cuts {
            self.known.insert(name, node);
        }
        Ok(node)
    }

    fn schema(&mut self, schema: &'a Schema, depth: usize) -> Result<NodeId, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::bound("MAX_DEPTH", MAX_DEPTH));
        }
        self.visits += 1;
        if self.visits > MAX_SCHEMA_VISITS {
            return Err(Error::bound("MAX_SCHEMA_VISITS", MAX_SCHEMA_VISITS));
        }
        let mut steps = Steps::new();
        for (name, property) in &schema.properties {
            steps.insert(Step::field(name)?, self.schema(property, depth + 1)?);
        }
        if let Some(items) = &schema.items {
            steps.insert(Step::Item, self.schema(items, depth + 1)?);
        }
        if let Some(MapValue::Schema(value)) = &schema.additional_properties {
            steps.insert(Step::Value, self.schema(value, depth + 1)?);
        }
        let mut node = self.forest.insert(steps)?;
        if let Some(name) = schema
            .reference
            .as_deref()
            .and_then(|it| it.strip_prefix(REFERENCE_PREFIX))
        {
            let referenced = self.named(name, depth)?;
            node = self.forest.union(node, referenced, &mut self.unions)?;
        }
        for part in &schema.all_of {
            let part = self.schema(part, depth + 1)?;
            node = self.forest.union(node, part, &mut self.unions)?;
        }
        Ok(node)
    }
}

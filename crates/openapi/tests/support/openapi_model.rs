//! A simple model of documents: merged in the simplest way, and serialised in each format as
//! kube-apiserver would.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::btree_map;
use proptest::prelude::*;
use skewbridge_openapi::{Format, Spec};

/// Content that is irrelevant to the merge.
type Content = u8;

#[derive(Debug, Clone)]
pub(crate) struct Document {
    info: Content,
    paths: BTreeMap<String, PathItem>,
    schemas: BTreeMap<String, Content>,
    parameters: BTreeMap<String, Content>,
    security: BTreeMap<String, Content>,
}

#[derive(Debug, Clone)]
struct PathItem {
    /// By their index in `METHODS`.
    methods: BTreeMap<usize, Content>,
    parameters: Content,
}

const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

pub(crate) fn document() -> impl Strategy<Value = Document> {
    let methods = btree_map(0..METHODS.len(), any::<Content>(), 0..4);
    let item = (methods, any::<Content>()).prop_map(|(methods, parameters)| PathItem {
        methods,
        parameters,
    });
    let names = || btree_map("[a-e\"é]{1,2}", any::<Content>(), 0..4);
    (
        any::<Content>(),
        btree_map("/[a-e]{0,2}", item, 0..5),
        names(),
        names(),
        names(),
    )
        .prop_map(|(info, paths, schemas, parameters, security)| Document {
            info,
            paths,
            schemas,
            parameters,
            security,
        })
}

impl Document {
    pub(crate) fn with(mut self, other: &Self, take: impl Fn(&str) -> bool) -> Self {
        for (path, item) in &other.paths {
            if !take(path) {
                continue;
            }
            match self.paths.get_mut(path) {
                None => {
                    self.paths.insert(path.clone(), item.clone());
                }
                Some(own) => {
                    for (method, content) in &item.methods {
                        own.methods.entry(*method).or_insert(*content);
                    }
                }
            }
        }
        for (own, theirs) in [
            (&mut self.schemas, &other.schemas),
            (&mut self.parameters, &other.parameters),
            (&mut self.security, &other.security),
        ] {
            for (name, content) in theirs {
                own.entry(name.clone()).or_insert(*content);
            }
        }
        self
    }

    /// All names that can be merged.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let methods = self.paths.iter().flat_map(|(path, item)| {
            let methods = item.methods.keys();
            methods.map(move |method| format!("{} {path}", METHODS[*method]))
        });
        let paths = self.paths.keys().cloned();
        let schemas = self.schemas.keys().map(|name| format!("schema {name}"));
        methods.chain(paths).chain(schemas).collect()
    }

    pub(crate) fn write(&self, (spec, format): (Spec, Format)) -> Vec<u8> {
        match (spec, format) {
            (Spec::V2, Format::Json) => self.v2_json(),
            (Spec::V3, Format::Json) => self.v3_json(),
            (Spec::V2, Format::Protobuf) => self.v2_protobuf(),
            (Spec::V3, Format::Protobuf) => self.v3_protobuf(),
        }
    }
}

// JSON, in the order of kube-apiserver's Go code, which omits empty fields.

impl Document {
    fn v2_json(&self) -> Vec<u8> {
        let members = [
            ("swagger", Some("\"2.0\"".to_owned())),
            ("info", Some(self.info.to_string())),
            ("paths", self.paths_json()),
            ("definitions", names_json(&self.schemas)),
            ("parameters", names_json(&self.parameters)),
            ("securityDefinitions", names_json(&self.security)),
            ("security", Some("[]".to_owned())),
        ];
        object(members).unwrap_or_default().into_bytes()
    }

    fn v3_json(&self) -> Vec<u8> {
        let components = [
            ("schemas", names_json(&self.schemas)),
            ("securitySchemes", names_json(&self.security)),
            ("parameters", names_json(&self.parameters)),
        ];
        let members = [
            ("openapi", Some("\"3.0.0\"".to_owned())),
            ("info", Some(self.info.to_string())),
            ("paths", self.paths_json()),
            ("components", object(components)),
            ("security", Some("[]".to_owned())),
        ];
        object(members).unwrap_or_default().into_bytes()
    }

    fn paths_json(&self) -> Option<String> {
        object(self.paths.iter().map(|(path, item)| {
            let methods = item.methods.iter();
            let methods =
                methods.map(|(method, content)| (METHODS[*method], Some(content.to_string())));
            let parameters = ("parameters", Some(format!("[{}]", item.parameters)));
            (path.as_str(), object(methods.chain([parameters])))
        }))
    }
}

fn names_json(names: &BTreeMap<String, Content>) -> Option<String> {
    let names = names.iter();
    object(names.map(|(name, content)| (name.as_str(), Some(format!("{{\"x\":{content}}}")))))
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Option<String> {
    let members: Vec<_> = members
        .into_iter()
        .filter_map(|(name, value)| {
            let name = serde_json::to_string(name).unwrap();
            Some(format!("{name}:{}", value?))
        })
        .collect();
    (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
}

// Protobuf, with gnostic's field numbers.

impl Document {
    fn v2_protobuf(&self) -> Vec<u8> {
        [
            field(1, b"2.0"),
            field(2, &[self.info]),
            section(8, &self.paths_protobuf(2, 2, 9)),
            section(9, &names_protobuf(&self.schemas)),
            section(10, &names_protobuf(&self.parameters)),
            field(12, b""),
            section(13, &names_protobuf(&self.security)),
        ]
        .concat()
    }

    fn v3_protobuf(&self) -> Vec<u8> {
        let components = [
            section(1, &names_protobuf(&self.schemas)),
            section(3, &names_protobuf(&self.parameters)),
            section(7, &names_protobuf(&self.security)),
        ];
        [
            field(1, b"3.0.0"),
            field(2, &[self.info]),
            section(4, &self.paths_protobuf(1, 4, 13)),
            section(5, &components.concat()),
            field(6, b""),
        ]
        .concat()
    }

    fn paths_protobuf(&self, entry: u8, get: u8, parameters: u8) -> Vec<u8> {
        let paths = self.paths.iter().map(|(path, item)| {
            let mut fields: Vec<u8> = (get..)
                .zip(0..METHODS.len())
                .filter_map(|(number, method)| Some(field(number, &[*item.methods.get(&method)?])))
                .flatten()
                .collect();
            fields.extend(field(parameters, &[item.parameters]));
            named(entry, path, &fields)
        });
        paths.flatten().collect()
    }
}

fn names_protobuf(names: &BTreeMap<String, Content>) -> Vec<u8> {
    let names = names.iter();
    names
        .flat_map(|(name, content)| named(1, name, &[*content]))
        .collect()
}

fn named(number: u8, name: &str, value: &[u8]) -> Vec<u8> {
    field(
        number,
        &[field(1, name.as_bytes()), field(2, value)].concat(),
    )
}

/// A message that is omitted when it is empty.
fn section(number: u8, content: &[u8]) -> Vec<u8> {
    if content.is_empty() {
        return Vec::new();
    }
    field(number, content)
}

/// Numbers are below 16, and lengths below 2^14.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let [low, high, ..] = content.len().to_le_bytes();
    let mut bytes = vec![number << 3 | 2];
    if content.len() < 0x80 {
        bytes.push(low);
    } else {
        bytes.extend([low | 0x80, high << 1 | low >> 7]);
    }
    bytes.extend(content);
    bytes
}

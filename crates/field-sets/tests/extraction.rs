//! From OpenAPI documents to the fields of a server.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/documents.rs"]
mod documents;

use documents::{discovery, document, extract, paths, schema, server, widget};
use serde_json::{Value, json};
use skewbridge_field_sets::error::{
    MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_NAME_BYTES, MAX_NODES, MAX_PATHS_PER_KIND,
};
use skewbridge_field_sets::{Error, FieldPath, ServerFields, ServerFieldsBuilder};

#[test]
fn fields_are_found_in_every_form_of_schema() {
    let leaf = || json!({"type": "string"});
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let spec = json!({"type": "object", "properties": {"a": leaf(), "b": leaf()}});
    let rows: Vec<(&str, Value, &[&str])> = vec![
        ("no field", json!({"type": "object"}), &[]),
        ("a field", json!({"properties": {"a": leaf()}}), &["a"]),
        (
            "a reference",
            json!({"properties": {"spec": reference("Spec")}}),
            &["spec", "spec.a", "spec.b"],
        ),
        (
            "allOf, as kube-apiserver writes a reference with a default",
            json!({"properties": {"spec": {"default": {}, "allOf": [reference("Spec")]}}}),
            &["spec", "spec.a", "spec.b"],
        ),
        (
            "allOf with several parts",
            json!({"allOf": [reference("Spec"), {"properties": {"c": leaf()}}]}),
            &["a", "b", "c"],
        ),
        (
            "a list",
            json!({"properties": {"l": {"type": "array", "items": {"allOf": [reference("Spec")]}}}}),
            &["l", "l[]", "l[].a", "l[].b"],
        ),
        (
            "a map",
            json!({"properties": {"m": {"additionalProperties": reference("Spec")}}}),
            &["m", "m{}", "m{}.a", "m{}.b"],
        ),
        (
            "a map of anything",
            json!({"properties": {"m": {"additionalProperties": true}}}),
            &["m"],
        ),
        (
            "a missing schema",
            json!({"properties": {"x": reference("Nothing")}}),
            &["x"],
        ),
        (
            "a schema below itself",
            json!({"properties": {"s": reference("Tree")}}),
            &["s", "s.children", "s.children[]", "s.name"],
        ),
        (
            "a reference to itself only",
            json!({"properties": {"s": reference("Loop")}}),
            &["s"],
        ),
        (
            "null in place of objects",
            json!({"properties": null, "allOf": null}),
            &[],
        ),
        (
            "metadata like every other field",
            json!({"properties": {"metadata": reference("Spec")}}),
            &["metadata", "metadata.a", "metadata.b"],
        ),
    ];
    for (what, schema, expected) in rows {
        let others = [
            ("Spec", spec.clone()),
            (
                "Tree",
                json!({"properties": {"name": leaf(), "children": {"items": reference("Tree")}}}),
            ),
            ("Loop", reference("Loop")),
        ];
        let fields = extract(schema, &others).unwrap();
        assert_eq!(paths(&fields), expected, "{what}");
    }
}

#[test]
fn versions_of_a_group_are_united() {
    let mut builder = ServerFieldsBuilder::new(&discovery(&["v1", "v1beta1"]));
    for (version, fields) in [("v1", "spec.a"), ("v1beta1", "spec.b")] {
        let document = document(version, schema(&[fields]), &[]);
        builder.add("apps", version, &document).unwrap();
    }
    let fields = builder.build().unwrap();
    assert_eq!(paths(&fields), ["spec", "spec.a", "spec.b"]);
    // Without what only the extraction needed.
    let other = server(schema(&["spec.a", "spec.b"]));
    assert_eq!(fields.to_json(), other.to_json());
    let print = |fields: &ServerFields| fields.kind("apps", "Widget").unwrap().fingerprint();
    assert_eq!(print(&fields), print(&other));
    assert_ne!(print(&fields), print(&server(schema(&["spec.a"]))));
}

#[test]
fn only_kinds_of_built_in_resources_are_kept() {
    let kind = |group: &str, kind: &str| {
        json!({"properties": {"a": {}}, "x-kubernetes-group-version-kind":
            [{"group": group, "version": "v1", "kind": kind}]})
    };
    for (name, schema, is_kept) in [
        ("io.k8s.api.apps.v1.Widget", kind("apps", "Widget"), true),
        ("io.k8s.api.apps.v1.Widget", kind("", "Widget"), false),
        (
            "io.k8s.api.apps.v1.WidgetList",
            kind("apps", "WidgetList"),
            false,
        ),
        (
            "io.k8s.api.autoscaling.v1.Scale",
            kind("apps", "Scale"),
            false,
        ),
        // A custom resource, and an aggregated API.
        ("com.example.v1.Widget", kind("apps", "Widget"), false),
        (
            "io.k8s.networking.gateway.v1.Widget",
            kind("apps", "Widget"),
            false,
        ),
        (
            "io.k8s.metrics.pkg.apis.metrics.v1.Widget",
            kind("apps", "Widget"),
            false,
        ),
    ] {
        let mut builder = ServerFieldsBuilder::new(&discovery(&["v1"]));
        let document = json!({"components": {"schemas": {name: schema}}}).to_string();
        builder.add("apps", "v1", document.as_bytes()).unwrap();
        let fields = builder.build().unwrap();
        assert_eq!(fields.kinds().count(), usize::from(is_kept), "{name}");
        assert_eq!(
            fields.kind_of("apps", "widgets").is_some(),
            is_kept,
            "{name}"
        );
    }
}

#[test]
fn a_field_is_found_by_its_path() {
    let fields = server(schema(&["spec.containers[].resources.claims[].request"]));
    let set = fields.kind("apps", "Widget").unwrap();
    for (path, expected) in [
        ("spec", true),
        ("spec.containers[].resources", true),
        ("spec.containers[].resources.claims[].request", true),
        ("spec.containers.resources", false),
        ("spec.containers{}", false),
        ("status", false),
    ] {
        let path: FieldPath = path.parse().unwrap();
        assert_eq!(set.contains(&path), expected, "{path}");
    }
    assert_eq!(fields.kind_of("apps", "widgets"), Some(("apps", "Widget")));
    assert_eq!(fields.kind_of("apps", "gadgets"), None);
}

/// A chain of schemas, each of which refers `width` times to the next one.
fn chain(length: usize, width: usize) -> Vec<(String, Value)> {
    let schema = |number: usize| {
        let next = json!({"$ref": format!("#/components/schemas/S{}", number + 1)});
        let fields = (0..width).map(|field| (format!("f{field}"), next.clone()));
        let properties: serde_json::Map<_, _> = fields.collect();
        (format!("S{number}"), json!({"properties": properties}))
    };
    (0..length).map(schema).collect()
}

/// Schemas each of which refers to all.
fn mesh(size: usize) -> Vec<(String, Value)> {
    let fields = (0..size).map(|it| {
        let reference = json!({"$ref": format!("#/components/schemas/S{it}")});
        (format!("f{it}"), reference)
    });
    let properties: serde_json::Map<_, _> = fields.collect();
    let schema = json!({"properties": properties});
    (0..size)
        .map(|it| (format!("S{it}"), schema.clone()))
        .collect()
}

#[test]
fn hostile_documents_are_rejected_by_the_bound_that_they_exceed() {
    let start = json!({"properties": {"a": {"$ref": "#/components/schemas/S0"}}});
    let many = |count: usize| {
        let fields = (0..count).map(|it| (format!("f{it}"), json!({})));
        json!({"properties": fields.collect::<serde_json::Map<_, _>>()})
    };
    let rows = [
        ("MAX_DEPTH", start.clone(), chain(MAX_DEPTH, 1)),
        ("MAX_SCHEMA_VISITS", start.clone(), mesh(12)),
        ("MAX_PATHS_PER_KIND", start.clone(), chain(20, 2)),
        (
            "MAX_PATHS_PER_KIND",
            many(usize::try_from(MAX_PATHS_PER_KIND).unwrap() + 1),
            Vec::new(),
        ),
    ];
    for (expected, schema, others) in rows {
        let others: Vec<_> = others
            .iter()
            .map(|(name, schema)| (&**name, schema.clone()))
            .collect();
        match extract(schema, &others) {
            Err(Error::Bound { bound, .. }) => assert_eq!(bound, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    // Visited from its end, no schema of a chain is deep by itself.
    let mut chained = chain(MAX_DEPTH * 2, 1);
    chained.reverse();
    for (number, (_, schema)) in chained.iter_mut().enumerate() {
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": "apps", "version": "v1", "kind": format!("K{number}")}]);
    }
    let kinds: Vec<_> = (0..chained.len())
        .map(|it| json!({"resource": format!("r{it}"), "responseKind": {"kind": format!("K{it}")}}))
        .collect();
    let group = json!({"metadata": {"name": "apps"}, "versions": [
        {"version": "v1", "resources": kinds}]});
    let group = serde_json::from_value(group).unwrap();
    let renamed = |text: String| text.replace("/schemas/S", "/schemas/io.k8s.api.S");
    let named = chained.iter().map(|(name, schema)| {
        let schema = renamed(schema.to_string());
        // Names in the order of the depth.
        let number: usize = name[1..].parse().unwrap();
        (number, schema)
    });
    let sort = |number: usize| format!("io.k8s.api.S{:05}", 99_999 - number);
    let mut schemas = serde_json::Map::new();
    for (number, schema) in named {
        let next = format!("io.k8s.api.S{}\"", number + 1);
        let schema = schema.replace(&next, &format!("{}\"", sort(number + 1)));
        schemas.insert(sort(number), serde_json::from_str(&schema).unwrap());
    }
    let document = json!({"components": {"schemas": schemas}}).to_string();
    let mut builder = ServerFieldsBuilder::new([&group]);
    let error = builder.add("apps", "v1", document.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("MAX_DEPTH"), "{error}");
    // Then the kinds of the group are left out.
    assert_eq!(builder.build().unwrap().kinds().count(), 0);

    let long = vec![b' '; MAX_DOCUMENT_BYTES + 1];
    let mut builder = ServerFieldsBuilder::new(&discovery(&["v1"]));
    let error = builder.add("apps", "v1", &long).unwrap_err();
    assert!(error.to_string().contains("MAX_DOCUMENT_BYTES"), "{error}");
}

#[test]
fn documents_that_are_no_openapi_are_rejected() {
    let nested = format!("{{\"components\":{}", "{\"a\":".repeat(100_000));
    for text in [
        "",
        "1",
        r#"{"components":{"schemas":[]}}"#,
        r#"{"components":{"schemas":{"a":{"properties":{"b":1}}}}}"#,
        &nested,
    ] {
        let mut builder = ServerFieldsBuilder::new(&discovery(&["v1"]));
        let added = builder.add("apps", "v1", text.as_bytes());
        assert!(added.is_err(), "{text:.80}");
    }
    for name in [
        "",
        "a.b",
        "a[]",
        "{}",
        "a\nb",
        &"a".repeat(MAX_NAME_BYTES + 1),
    ] {
        let error = extract(json!({"properties": {name: {}}}), &[]).unwrap_err();
        assert!(matches!(error, Error::FieldName(_)), "{error}");
        assert!(error.to_string().len() < 200);
    }
}

#[test]
fn a_cached_file_is_read_as_it_was_written() {
    let fields = server(schema(&["spec.a[].b", "spec.m{}.b", "status.a"]));
    let file = fields.to_json();
    assert_eq!(
        String::from_utf8(file.clone()).unwrap(),
        concat!(
            r#"{"formatVersion":1,"nodes":[{},{"b":0},{"[]":1},{"{}":1},{"a":2,"m":3},{"a":0},"#,
            r#"{"spec":4,"status":5}],"kinds":[["apps","Widget",6]],"#,
            r#""resources":[["apps","widgets","apps","Widget"]]}"#
        )
    );
    assert_eq!(ServerFields::from_json(&file).unwrap(), fields);
}

#[test]
fn a_file_of_another_form_is_rejected() {
    let file = |nodes: &str, kinds: &str, resources: &str| {
        format!(r#"{{"formatVersion":1,"nodes":{nodes},"kinds":{kinds},"resources":{resources}}}"#)
    };
    let nodes = (0..=MAX_NODES).map(|it| format!(r#"{{"f{it}":0}}"#));
    let nodes = format!("[{{}},{}]", nodes.collect::<Vec<_>>().join(","));
    let doubled = (1..40).map(|it| format!(r#"{{"a":{0},"b":{0}}}"#, it - 1));
    let doubled = format!("[{{}},{}]", doubled.collect::<Vec<_>>().join(","));
    let deep = (1..100).map(|it| format!(r#"{{"a":{}}}"#, it - 1));
    let deep = format!("[{{}},{}]", deep.collect::<Vec<_>>().join(","));
    for (text, reason) in [
        (String::new(), "cannot be parsed"),
        ("{}".to_owned(), "cannot be parsed"),
        (
            file("[]", "[]", "[]").replace("\"formatVersion\":1", "\"formatVersion\":2"),
            "another format version",
        ),
        (
            file(r#"[{"a":0}]"#, "[]", "[]"),
            "a node refers to a later one",
        ),
        (file("[{},{}]", "[]", "[]"), "two nodes are equal"),
        (
            file("[{}]", r#"[["","K",1]]"#, "[]"),
            "a kind refers to no node",
        ),
        (
            file("[{}]", r#"[["","K",0]]"#, r#"[["","r","","L"]]"#),
            "a resource refers to no kind",
        ),
        (file(r#"[{},{"a.b":0}]"#, "[]", "[]"), "not a field name"),
        (file(&nodes, "[]", "[]"), "MAX_NODES"),
        (file(&deep, "[]", "[]"), "MAX_DEPTH"),
        (
            file(&doubled, r#"[["","K",39]]"#, "[]"),
            "MAX_PATHS_PER_KIND",
        ),
    ] {
        let error = ServerFields::from_json(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
    assert_eq!(widget("v1"), "io.k8s.api.apps.v1.Widget");
}

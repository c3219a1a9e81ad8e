//! Whether a bill of materials is `CycloneDX` 1.5, names each component once, and lists what the
//! program certainly has.

use std::collections::BTreeSet;

use serde_json::Value;

/// Components that every program contains: without one of them the list is not that of the program.
const EXPECTED: [&str; 4] = ["aws-lc-rs", "aws-lc-sys", "rustls", "skewbridge-gateway"];

/// The kinds of components that are used, of those in the specification.
const TYPES: [&str; 2] = ["application", "library"];

/// Everything that is wrong with a document.
pub(super) fn problems(document: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let mut expect = |holds: bool, problem: String| {
        if !holds {
            problems.push(problem);
        }
    };
    for (field, value) in [
        ("bomFormat", Value::from("CycloneDX")),
        ("specVersion", "1.5".into()),
        ("version", 1.into()),
    ] {
        let found = &document[field];
        expect(
            *found == value,
            format!("{field} is {found}, and not {value}"),
        );
    }
    let time = text(&document["metadata"], "timestamp");
    expect(
        is_time(time),
        format!("metadata.timestamp {time:?} is not a time in UTC"),
    );

    let program = &document["metadata"]["component"];
    expect(
        program["name"] == "skewbridge" && program["type"] == "application",
        format!("metadata.component is not the program: {program}"),
    );
    let mut references = BTreeSet::new();
    for component in std::iter::once(program).chain(array(&document["components"])) {
        let name = text(component, "name");
        for problem in component_problems(component) {
            expect(false, format!("the component {name:?} {problem}"));
        }
        let reference = text(component, "bom-ref");
        expect(
            references.insert(reference),
            format!("two components have the bom-ref {reference:?}"),
        );
    }
    for expected in EXPECTED {
        let is_listed = array(&document["components"]).any(|it| it["name"] == expected);
        expect(is_listed, format!("no component {expected}"));
    }

    let mut described = BTreeSet::new();
    for dependency in array(&document["dependencies"]) {
        let of = text(dependency, "ref");
        expect(
            described.insert(of),
            format!("two lists of dependencies of {of:?}"),
        );
        let on = array(&dependency["dependsOn"]).filter_map(Value::as_str);
        for reference in std::iter::once(of).chain(on) {
            expect(
                references.contains(reference),
                format!("the dependencies of {of:?} name {reference:?}, which is no component"),
            );
        }
    }
    for reference in references.difference(&described) {
        expect(false, format!("no list of dependencies of {reference:?}"));
    }
    problems
}

fn component_problems(component: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for field in ["bom-ref", "name", "version", "purl", "type"] {
        if text(component, field).is_empty() {
            problems.push(format!("has no {field}"));
        }
    }
    let kind = text(component, "type");
    if !TYPES.contains(&kind) {
        problems.push(format!("has the type {kind:?}"));
    }
    if !text(component, "purl").starts_with("pkg:") {
        problems.push("has a purl that is no package URL".to_owned());
    }
    for hash in array(&component["hashes"]) {
        let content = text(hash, "content");
        let is_sha256 = content.len() == 64 && content.bytes().all(|it| it.is_ascii_hexdigit());
        if hash["alg"] != "SHA-256" || !is_sha256 {
            problems.push(format!("has the hash {hash}"));
        }
    }
    for license in array(&component["licenses"]) {
        if text(license, "expression").is_empty() {
            problems.push(format!("has the licence {license}"));
        }
    }
    problems
}

/// `2026-11-19T12:00:00Z`.
fn is_time(text: &str) -> bool {
    let shape: String = text
        .chars()
        .map(|it| if it.is_ascii_digit() { '0' } else { it })
        .collect();
    shape == "0000-00-00T00:00:00Z"
}

/// Empty where there is none.
fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn component(name: &str, kind: &str) -> Value {
        let reference = format!("pkg:cargo/{name}@1.0.0");
        json!({
            "type": kind, "bom-ref": reference, "name": name, "version": "1.0.0", "purl": reference,
            "licenses": [{"expression": "MIT"}],
            "hashes": [{"alg": "SHA-256", "content": "a1".repeat(32)}],
        })
    }

    fn document() -> Value {
        let of = |name: &str, on: &[&str]| {
            let on = on.iter().map(|it| format!("pkg:cargo/{it}@1.0.0"));
            json!({"ref": format!("pkg:cargo/{name}@1.0.0"), "dependsOn": on.collect::<Vec<_>>()})
        };
        json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {
                "timestamp": "2026-11-19T12:00:00Z",
                "component": component("skewbridge", "application"),
            },
            "components": EXPECTED.map(|name| component(name, "library")),
            "dependencies": [
                of("skewbridge", &["skewbridge-gateway"]),
                of("skewbridge-gateway", &["rustls"]),
                of("rustls", &["aws-lc-rs"]),
                of("aws-lc-rs", &["aws-lc-sys"]),
                of("aws-lc-sys", &[]),
            ],
        })
    }

    #[test]
    fn a_complete_document_has_no_problem() {
        assert_eq!(problems(&document()), Vec::<String>::new());
    }

    #[test]
    fn every_mistake_is_found() {
        let rows: [(&str, Value, &str); 15] = [
            ("/bomFormat", json!("SPDX"), "bomFormat is \"SPDX\""),
            ("/specVersion", Value::Null, "specVersion is null"),
            ("/version", json!("1"), "version is \"1\""),
            (
                "/metadata/timestamp",
                json!("today"),
                "metadata.timestamp \"today\"",
            ),
            (
                "/metadata/component/name",
                json!("other"),
                "metadata.component is not the program",
            ),
            (
                "/components/0/version",
                Value::Null,
                "\"aws-lc-rs\" has no version",
            ),
            (
                "/components/0/type",
                json!("crate"),
                "\"aws-lc-rs\" has the type",
            ),
            (
                "/components/0/purl",
                json!("aws-lc-rs"),
                "is no package URL",
            ),
            (
                "/components/0/hashes/0/content",
                json!("a1"),
                "has the hash",
            ),
            ("/components/0/hashes/0/alg", json!("MD5"), "has the hash"),
            ("/components/0/licenses/0", json!({}), "has the licence"),
            (
                "/components/2",
                component("other", "library"),
                "no component rustls",
            ),
            (
                "/components/0/bom-ref",
                json!("pkg:cargo/rustls@1.0.0"),
                "two components have the bom-ref",
            ),
            (
                "/dependencies/0/dependsOn/0",
                json!("pkg:cargo/other@1.0.0"),
                "which is no component",
            ),
            (
                "/dependencies/1/ref",
                json!("pkg:cargo/skewbridge@1.0.0"),
                "no list of dependencies of \"pkg:cargo/skewbridge-gateway@1.0.0\"",
            ),
        ];
        for (place, value, expected) in rows {
            let mut document = document();
            *document.pointer_mut(place).unwrap() = value;
            let found = problems(&document);
            let names_it = found.iter().any(|problem| problem.contains(expected));
            assert!(names_it, "{place}: {found:?}");
        }
    }
}

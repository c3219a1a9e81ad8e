use serde_json::{Value, json};
use skewbridge_discovery::document::Group;
use skewbridge_field_sets::{ServerFields, ServerFieldsBuilder};

use super::*;
use crate::skew::fields::json;
use crate::skew::fields::report::FieldServer;

/// Fields of `spec` of `CSIDriver`, and of `Node`.
fn fields(driver: &[&str], node: &[&str]) -> ServerFields {
    let group = |name: &str, resource: &str, kind: &str| -> Group {
        let group = json!({"metadata": {"name": name}, "versions": [{"version": "v1",
            "resources": [{"resource": resource, "responseKind": {"kind": kind}}]}]});
        serde_json::from_value(group).unwrap()
    };
    let groups = [
        group("", "nodes", "Node"),
        group("storage.k8s.io", "csidrivers", "CSIDriver"),
    ];
    let mut builder = ServerFieldsBuilder::new(&groups);
    for (group, kind, fields) in [("", "Node", node), ("storage.k8s.io", "CSIDriver", driver)] {
        if fields.is_empty() {
            continue;
        }
        let properties: serde_json::Map<String, Value> = fields
            .iter()
            .map(|name| ((*name).to_owned(), json!({})))
            .collect();
        let schema = json!({
            "properties": {"spec": {"properties": properties}},
            "x-kubernetes-group-version-kind": [{"group": group, "version": "v1", "kind": kind}],
        });
        let document = json!({"components": {"schemas": {"io.k8s.api.It": schema}}});
        let document = document.to_string();
        builder.add(group, "v1", document.as_bytes()).unwrap();
    }
    builder.build().unwrap()
}

fn report(servers: Vec<(&str, &str, Result<ServerFields, String>)>) -> FieldReport {
    let servers = servers
        .into_iter()
        .map(|(name, version, fields)| FieldServer {
            name: name.to_owned(),
            version: Some(version.to_owned()),
            address: Some("https://10.0.0.1:6443".to_owned()),
            fields,
        });
    FieldReport::new(servers.collect()).unwrap()
}

#[test]
fn servers_then_fields_then_what_is_erased() {
    let report = report(vec![
        ("old", "v1.34.4", Ok(fields(&["a"], &["x", "y"]))),
        ("new", "v1.36.4", Ok(fields(&["a", "tokens"], &["x", "z"]))),
    ]);
    let expected = "\
SERVER   VERSION   KINDS
old      v1.34.4   2
new      v1.36.4   2

FIELD           KNOWN BY
nodes (Node)
  spec.y        only old
  spec.z        only new
csidrivers.storage.k8s.io (CSIDriver)
  spec.tokens   only new

A write through old can erase fields of 2 kinds: nodes,
    csidrivers.storage.k8s.io

A write through new can erase fields of 1 kind: nodes

No server has all fields of these. Keep to the newest, new: nodes
";
    assert_eq!(render(&report, Detail::Short), expected);
    let wide = render(&report, Detail::Long);
    assert!(wide.contains("ADDRESS") && wide.contains("https://10.0.0.1:6443"));
}

#[test]
fn servers_without_a_kind_are_not_counted_for_it() {
    let report = report(vec![
        ("a", "v1.34.4", Ok(fields(&["a"], &[]))),
        ("b", "v1.35.0", Ok(fields(&["a", "b"], &["x"]))),
        ("c", "v1.36.4", Ok(fields(&["a", "b"], &["x", "y"]))),
    ]);
    let text = render(&report, Detail::Short);
    for expected in ["spec.b   all but a\n", "spec.y   only c\n"] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(
        text.contains("A write through c erases no field.\n"),
        "{text}"
    );
    assert!(!text.contains("No server has all"), "{text}");
}

#[test]
fn unknown_servers_are_reported() {
    let failed = || Err("no\u{1b}[1m answer".to_owned());
    for (servers, expected) in [
        (
            vec![
                ("a", "v1.36.4", Ok(fields(&["a"], &["x"]))),
                ("b", "v1.36.4", Ok(fields(&["a"], &["x"]))),
            ],
            "No skew: all 2 servers know the same fields.\n",
        ),
        (
            vec![("a", "v1.36.4", Ok(fields(&["a"], &["x"])))],
            "No skew: there is one server.\n",
        ),
        (
            vec![
                ("a", "v1.36.4", Ok(fields(&["a"], &["x"]))),
                ("b", "v1.36.4", failed()),
            ],
            "Nothing to compare: 1 of 2 is known.\n",
        ),
        (
            vec![
                ("a", "v1.36.4", Ok(fields(&["a"], &["x"]))),
                (
                    "a-server-with-a-very-long-name",
                    "v1.36.4",
                    Ok(fields(&["a"], &["x"])),
                ),
                ("b", "v1.36.4", failed()),
            ],
            "No skew, as far as is known.\n",
        ),
    ] {
        let report = report(servers);
        let text = render(&report, Detail::Short);
        assert!(text.ends_with(expected), "{text}");
        let document: Value = serde_json::from_str(&json::render(&report)).unwrap();
        assert_eq!(document["complete"], report.problems().next().is_none());
        assert_eq!(document["skew"], false);
    }
}

#[test]
fn json_has_fields_with_the_servers_that_know_them() {
    let report = report(vec![
        ("old", "v1.34.4", Ok(fields(&["a"], &["x"]))),
        ("new", "v1.36.4", Ok(fields(&["a", "tokens"], &["x"]))),
        ("gone", "v1.36.4", Err("no answer".to_owned())),
    ]);
    let document: Value = serde_json::from_str(&json::render(&report)).unwrap();
    let server = |name: &str, version: &str| json!({"name": name, "version": version, "address": "https://10.0.0.1:6443", "kinds": 2});
    let gone = json!({"name": "gone", "version": "v1.36.4", "address": "https://10.0.0.1:6443",
        "problem": "no answer"});
    assert_eq!(
        document,
        json!({
            "kind": "FieldSkewReport",
            "apiVersion": "skewbridge.io/v1alpha1",
            "skew": true,
            "complete": false,
            "servers": [server("old", "v1.34.4"), server("new", "v1.36.4"), gone],
            "differences": [{
                "group": "storage.k8s.io",
                "resource": "csidrivers",
                "kind": "CSIDriver",
                "fields": [{"path": "spec.tokens", "knownBy": ["new"]}],
                "knowsMost": ["new"],
                "ambiguous": false,
            }],
        })
    );
}

#[test]
fn a_kind_of_which_no_server_has_all_fields_is_listed_with_the_newest_server() {
    let report = report(vec![
        ("newest", "v1.36.4", Ok(fields(&["a", "new"], &["x"]))),
        ("old", "v1.34.4", Ok(fields(&["a", "removed"], &["x"]))),
        ("middle", "v1.35.0", Ok(fields(&["a", "removed"], &["x"]))),
    ]);
    let text = render(&report, Detail::Short);
    let expected = "\nNo server has all fields of these. Keep to the newest, newest:\n\
                    \x20   csidrivers.storage.k8s.io\n";
    assert!(text.ends_with(expected), "{text}");
    let document: Value = serde_json::from_str(&json::render(&report)).unwrap();
    let difference = &document["differences"][0];
    assert_eq!(difference["ambiguous"], true, "{document}");
    assert_eq!(difference["knowsMost"], json!(["newest"]), "{document}");
}

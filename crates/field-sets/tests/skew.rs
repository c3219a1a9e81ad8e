//! How the fields of servers differ.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/documents.rs"]
mod documents;

use documents::{schema, server};
use skewbridge_field_sets::{ComparedServer, FieldSkew, ServerFields};

fn compare(servers: &[(&str, ServerFields)]) -> FieldSkew {
    let servers: Vec<_> = servers
        .iter()
        .map(|(version, fields)| ComparedServer {
            version: version.parse().ok(),
            fields,
        })
        .collect();
    FieldSkew::compare(&servers, |_, _| false).unwrap()
}

#[test]
fn the_server_without_missing_fields_is_the_most_complete() {
    type Row = (
        &'static [(&'static str, &'static [&'static str])],
        &'static [&'static str],
        &'static [usize],
        bool,
    );
    // Versions with their fields; what each lacks; the most complete ones; whether that is ambiguous.
    let rows: [Row; 7] = [
        (
            &[("1.34.4", &["spec.a"]), ("1.36.4", &["spec.a", "spec.b"])],
            &["spec.b", ""],
            &[1],
            false,
        ),
        // An older server may have more fields.
        (
            &[("1.34.4", &["spec.a", "spec.b"]), ("1.36.4", &["spec.a"])],
            &["", "spec.b"],
            &[0],
            false,
        ),
        // Only the container is reported.
        (
            &[
                ("1.34.4", &["spec.a"]),
                ("1.36.4", &["spec.a", "spec.b.c.d"]),
            ],
            &["spec.b", ""],
            &[1],
            false,
        ),
        (
            &[
                ("1.34.4", &["spec.a"]),
                ("1.35.0", &["spec.a", "spec.b.c"]),
                ("1.36.4", &["spec.a", "spec.b.c", "spec.b.d"]),
                ("1.36.4", &["spec.a", "spec.b.c", "spec.b.d"]),
            ],
            &["spec.b", "spec.b.d", "", ""],
            &[2, 3],
            false,
        ),
        (
            &[("1.36.4", &["spec.b"]), ("1.34.4", &["spec.a"])],
            &["spec.a", "spec.b"],
            &[0],
            true,
        ),
        // Of several newest servers, those that lack least.
        (
            &[
                ("1.36.4", &["spec.b"]),
                ("1.36.4", &["spec.b", "spec.c"]),
                ("unknown", &["spec.a"]),
            ],
            &["spec.a spec.c", "spec.a", "spec.b spec.c"],
            &[1],
            true,
        ),
        // A list in place of a plain value.
        (
            &[("1.34.4", &["spec.a"]), ("1.36.4", &["spec.a[].b"])],
            &["spec.a[]", ""],
            &[1],
            false,
        ),
    ];
    for (servers, lacking, knows_most, is_ambiguous) in rows {
        let servers: Vec<_> = servers
            .iter()
            .map(|(version, fields)| (*version, server(schema(fields))))
            .collect();
        let skew = compare(&servers);
        let difference = skew.difference("apps", "widgets").unwrap();
        let found: Vec<_> = (0..servers.len())
            .map(|it| {
                let paths = difference.lacking(it).iter().map(ToString::to_string);
                paths.collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(found, lacking);
        assert_eq!(difference.knows_most(), knows_most, "{lacking:?}");
        assert_eq!(difference.is_ambiguous(), is_ambiguous, "{lacking:?}");
        assert_eq!(difference.kind(), "Widget");
        assert!(skew.difference("apps", "gadgets").is_none());
        assert!(skew.difference("batch", "widgets").is_none());
    }
}

#[test]
fn servers_without_the_kind_and_shared_resources_are_left_out() {
    let full = server(schema(&["spec.a"]));
    let skew = compare(&[
        ("1.34.4", ServerFields::default()),
        ("1.36.4", full.clone()),
    ]);
    assert!(skew.is_empty());
    let less = server(schema(&["spec"]));
    let skew = compare(&[
        ("1.34.4", ServerFields::default()),
        ("1.35.0", less.clone()),
        ("1.36.4", full.clone()),
    ]);
    let difference = skew.difference("apps", "widgets").unwrap();
    assert_eq!(difference.servers().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(difference.knows_most(), [2]);

    let servers = [&less, &full].map(|fields| ComparedServer {
        version: None,
        fields,
    });
    let skew = FieldSkew::compare(&servers, |group, resource| {
        (group, resource) == ("apps", "widgets")
    });
    assert!(skew.unwrap().is_empty());
}

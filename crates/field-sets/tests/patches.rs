//! Which fields a patch would erase without naming them.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use serde_json::{Value, json};
use skewbridge_field_sets::json_patch::{MAX_OPERATIONS, NotApplicable};
use skewbridge_field_sets::{
    Alternatives, FieldPath, Written, erasable_by_json_patch, erasable_by_merge, restore,
    restore_after_json_patch, without_removed,
};

fn patterns(texts: &[&str]) -> Vec<FieldPath> {
    texts.iter().map(|it| it.parse().unwrap()).collect()
}

fn stored() -> Value {
    json!({
        "metadata": {"name": "d", "resourceVersion": "7"},
        "spec": {
            "x": 1, "old": 1,
            "sub": {"x": 2, "old": 1},
            "only": {"x": 3},
            "l": [{"name": "a", "x": 4, "old": 1}, {"name": "b", "x": 5}],
            "atomic": [{"old": 1, "x": 6}, {"old": 2}],
            "m": {"k/1": {"x": 7}},
        },
    })
}

const PATTERNS: &[&str] = &[
    "spec.x",
    "spec.sub.x",
    "spec.only.x",
    "spec.l[].x",
    "spec.atomic[].x",
    "spec.m{}.x",
];

#[allow(clippy::too_many_lines)] // a table
#[test]
fn a_json_patch_is_completed_by_what_it_erases() {
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let replace = |path: &str, value: Value| json!({"op": "replace", "path": path, "value": value});
    let remove = |path: &str| json!({"op": "remove", "path": path});
    // The operations, and those that are appended.
    let rows = [
        // A whole object: containers that are gone were removed, unless they had nothing else.
        (
            vec![replace("/spec", json!({"old": 2}))],
            vec![add("/spec/x", json!(1)), add("/spec/only", json!({"x": 3}))],
        ),
        (
            vec![replace(
                "/spec",
                json!({"old": 2, "x": 9, "only": {}, "m": {"k/1": {}}}),
            )],
            vec![
                add("/spec/only/x", json!(3)),
                add("/spec/m/k~11/x", json!(7)),
            ],
        ),
        (
            vec![replace("", json!({"spec": {"old": 2, "only": {"x": 0}}}))],
            vec![add("/spec/x", json!(1))],
        ),
        (
            vec![replace("/spec/sub", json!({"old": 2}))],
            vec![add("/spec/sub/x", json!(2))],
        ),
        // `add` replaces a member that exists.
        (
            vec![add("/spec/sub", json!({"old": 2}))],
            vec![add("/spec/sub/x", json!(2))],
        ),
        (
            vec![remove("/spec/sub"), add("/spec/sub", json!({"old": 2}))],
            vec![add("/spec/sub/x", json!(2))],
        ),
        // A whole list, in another order and with another item.
        (
            vec![replace(
                "/spec/l",
                json!([{"name": "c"}, {"name": "b"}, {"name": "a"}]),
            )],
            vec![add("/spec/l/2/x", json!(4)), add("/spec/l/1/x", json!(5))],
        ),
        (
            vec![replace("/spec/atomic", json!([{"old": 3}, {"old": 2}]))],
            vec![add("/spec/atomic/0/x", json!(6))],
        ),
        // One item, also by an index from the end; and as it moves.
        (
            vec![replace("/spec/l/0", json!({"name": "a"}))],
            vec![add("/spec/l/0/x", json!(4))],
        ),
        (
            vec![replace("/spec/l/-1", json!({"name": "b"}))],
            vec![add("/spec/l/1/x", json!(5))],
        ),
        (
            vec![remove("/spec/l/0"), add("/spec/l/-", json!({"name": "a"}))],
            vec![add("/spec/l/1/x", json!(4))],
        ),
        (
            vec![
                add("/spec/l/0", json!({"name": "c"})),
                replace("/spec/l/1", json!({"name": "a"})),
            ],
            vec![add("/spec/l/1/x", json!(4))],
        ),
        // A copy over an object that had the field.
        (
            vec![
                add("/spec/other", json!({"old": 1})),
                json!({"op": "copy", "from": "/spec/other", "path": "/spec/sub"}),
            ],
            vec![add("/spec/sub/x", json!(2))],
        ),
        (
            vec![
                add("/spec/other", json!({"old": 1})),
                json!({"op": "move", "from": "/spec/other", "path": "/spec/sub"}),
            ],
            vec![add("/spec/sub/x", json!(2))],
        ),
        // What the patch removes by name stays removed.
        (vec![remove("/spec/x")], vec![]),
        (vec![replace("/spec/x", json!(null))], vec![]),
        (vec![remove("/spec/only")], vec![]),
        (vec![remove("/spec/l/0")], vec![]),
        (vec![replace("/spec/l", json!([]))], vec![]),
        (
            vec![
                remove("/spec/l/0/x"),
                replace("/spec/l/1", json!({"name": "b"})),
            ],
            vec![add("/spec/l/1/x", json!(5))],
        ),
        (
            vec![
                replace("/spec/sub", json!({"old": 2})),
                add("/spec/sub/x", json!(9)),
            ],
            vec![],
        ),
        (
            vec![
                replace("/spec/sub", json!({"old": 2, "x": 9})),
                remove("/spec/sub/x"),
            ],
            vec![],
        ),
        (
            vec![json!({"op": "move", "from": "/spec/x", "path": "/spec/y"})],
            vec![],
        ),
        // Neither of these writes a value above the field.
        (vec![add("/metadata/labels", json!({"a": "b"}))], vec![]),
        (vec![add("/spec/l/-", json!({"name": "c"}))], vec![]),
        (
            vec![json!({"op": "test", "path": "/spec/old", "value": 8})],
            vec![],
        ),
    ];
    for (operations, expected) in rows {
        let mut patch = Value::Array(operations.clone());
        let patterns = patterns(PATTERNS);
        let erasable = erasable_by_json_patch(&patch, &patterns);
        let restore = |patch: &mut Value, patterns: &[FieldPath]| {
            restore_after_json_patch(&stored(), patch, patterns, Alternatives::Keep).unwrap()
        };
        let found = restore(&mut patch, &patterns);
        let appended = &patch.as_array().unwrap()[operations.len()..];
        assert_eq!(appended, expected, "{operations:?}");
        assert_eq!(found.len(), expected.len(), "{operations:?} {found:?}");
        // With only the fields that it may erase, the result is the same.
        let mut again = Value::Array(operations);
        assert_eq!(restore(&mut again, &erasable), found);
        assert_eq!(again, patch);
        // A completed patch erases nothing.
        assert!(restore(&mut patch, &patterns).is_empty());
    }
}

#[test]
fn a_json_patch_that_does_not_apply_is_not_completed() {
    let operation =
        |op: &str, path: &str| json!([{"op": op, "path": path, "value": 1, "from": "/no"}]);
    for patch in [
        json!({}),
        json!([1]),
        json!([{"op": "add"}]),
        operation("increase", "/spec/x"),
        operation("add", "/no/such"),
        operation("add", "/spec/l/3"),
        operation("add", "/spec/l/a"),
        operation("add", "/spec/x/y"),
        operation("remove", "/no"),
        operation("remove", ""),
        operation("remove", "/spec/l/-3"),
        operation("replace", "/spec/l/2"),
        operation("move", "/spec/y"),
        operation("copy", "/spec/y"),
        json!([{"op": "remove", "path": "/spec/x"}, {"op": "remove", "path": "/spec/x"}]),
        json!(vec![
            json!({"op": "test", "path": "/spec"});
            MAX_OPERATIONS + 1
        ]),
    ] {
        let restored = restore_after_json_patch(
            &stored(),
            &mut patch.clone(),
            &patterns(PATTERNS),
            Alternatives::Keep,
        );
        assert_eq!(restored, Err(NotApplicable), "{patch}");
    }
    // Copies may not grow without a bound.
    let mut large = stored();
    large["spec"]["big"] = json!("z".repeat(1024 * 1024));
    let copy = json!({"op": "copy", "from": "/spec", "path": "/spec/copy"});
    let mut patch = json!([copy, copy, copy]);
    let restored =
        restore_after_json_patch(&large, &mut patch, &patterns(PATTERNS), Alternatives::Keep);
    assert_eq!(restored, Err(NotApplicable));
}

#[test]
fn a_json_patch_that_replaces_a_member_of_a_union_is_sent_as_it_is_on_request() {
    let patch = json!([{"op": "replace", "path": "/spec/sub", "value": {"old": 1, "other": 1}}]);
    for (alternatives, expected) in [(Alternatives::Keep, 1), (Alternatives::LeaveOut, 0)] {
        let mut patch = patch.clone();
        let patterns = patterns(PATTERNS);
        let found = restore_after_json_patch(&stored(), &mut patch, &patterns, alternatives);
        assert_eq!(found.unwrap().len(), expected, "{alternatives:?}");
    }
}

#[allow(clippy::too_many_lines)] // a table
#[test]
fn a_strategic_merge_patch_is_completed_where_it_replaces() {
    // The patch, and the completed one.
    let rows = [
        // What is missing in a merged object stays.
        (json!({"spec": {"old": 2}}), json!({"spec": {"old": 2}})),
        (json!({"spec": {"x": null}}), json!({"spec": {"x": null}})),
        (
            json!({"spec": {"sub": {"$patch": "replace", "old": 2}}}),
            json!({"spec": {"sub": {"$patch": "replace", "old": 2, "x": 2}}}),
        ),
        (
            json!({"spec": {"$patch": "replace", "sub": {}}}),
            json!({"spec": {"$patch": "replace", "sub": {"x": 2}, "x": 1, "only": {"x": 3}}}),
        ),
        (
            json!({"$patch": "replace", "spec": {"only": {}}}),
            json!({"$patch": "replace", "spec": {"only": {"x": 3}, "x": 1}}),
        ),
        // A patch names what it removes.
        (
            json!({"spec": {"sub": {"$patch": "replace", "x": null}}}),
            json!({"spec": {"sub": {"$patch": "replace", "x": null}}}),
        ),
        (
            json!({"spec": {"sub": {"$patch": "delete"}}}),
            json!({"spec": {"sub": {"$patch": "delete"}}}),
        ),
        (
            json!({"spec": {"only": null}}),
            json!({"spec": {"only": null}}),
        ),
        (
            json!({"spec": {"l": [{"$patch": "delete", "name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"l": [{"$patch": "delete", "name": "a"}, {"name": "b", "x": 5}]}}),
        ),
        (
            json!({"spec": {"l": [{"name": "a", "x": null}]}}),
            json!({"spec": {"l": [{"name": "a", "x": null}]}}),
        ),
        // A list may be replaced. If it is merged, the field has the value that it has anyway.
        (
            json!({"spec": {"l": [{"name": "b", "old": 2}]}}),
            json!({"spec": {"l": [{"name": "b", "old": 2, "x": 5}]}}),
        ),
        (
            json!({"spec": {"atomic": [{"old": 1}, {"old": 3}]}}),
            json!({"spec": {"atomic": [{"old": 1, "x": 6}, {"old": 3}]}}),
        ),
        (
            json!({"spec": {"l": [{"$patch": "replace"}, {"name": "b"}, {"name": "a"}]}}),
            json!({"spec": {"l": [{"$patch": "replace"}, {"name": "b", "x": 5}, {"name": "a", "x": 4}]}}),
        ),
        (
            json!({"spec": {"atomic": [{"$patch": "replace"}, {"old": 3}, {"old": 2}]}}),
            json!({"spec": {"atomic": [{"$patch": "replace"}, {"old": 3, "x": 6}, {"old": 2}]}}),
        ),
        // The list of the keys that stay is completed; it has to have the keys of the patch.
        (
            json!({"spec": {"sub": {"$retainKeys": ["old"], "old": 2}}}),
            json!({"spec": {"sub": {"$retainKeys": ["old", "x"], "old": 2}}}),
        ),
        (
            json!({"spec": {"sub": {"$retainKeys": ["x"]}}}),
            json!({"spec": {"sub": {"$retainKeys": ["x"]}}}),
        ),
        (
            json!({"spec": {"$retainKeys": ["old"], "old": 2}}),
            json!({"spec": {"$retainKeys": ["old", "x", "only"], "old": 2}}),
        ),
        (
            json!({"spec": {"l": [{"name": "a", "$retainKeys": ["name"]}]}}),
            json!({"spec": {"l": [{"name": "a", "$retainKeys": ["name", "x"]}]}}),
        ),
        (
            json!({"spec": {"m": {"k/1": {"$patch": "replace"}}}}),
            json!({"spec": {"m": {"k/1": {"$patch": "replace", "x": 7}}}}),
        ),
    ];
    let complete = |patch: &Value, patterns: &[FieldPath]| {
        let mut completed = patch.clone();
        let written = Written::StrategicMergePatch;
        restore(
            &stored(),
            &mut completed,
            patterns,
            written,
            Alternatives::Keep,
        );
        completed
    };
    for (patch, expected) in rows {
        let patterns = patterns(PATTERNS);
        assert_eq!(complete(&patch, &patterns), expected, "{patch}");
        let erasable = erasable_by_merge(&patch, &patterns, Written::StrategicMergePatch);
        assert_eq!(complete(&patch, &erasable), expected, "{patch}");
        assert_eq!(complete(&expected, &patterns), expected, "{patch}");
    }
}

#[test]
fn an_alternative_in_a_strategic_merge_patch_is_left_out_on_request() {
    let patterns = patterns(&["spec.volumes[].new"]);
    let before = json!({"spec": {"volumes": [{"name": "v", "new": {"a": 1}}]}});
    let volume = |volume: Value| json!({"spec": {"volumes": [volume]}});
    let rows = [
        (
            json!({"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}),
            0,
        ),
        (json!({"name": "v", "emptyDir": {}}), 0),
        // A directive is no field.
        (json!({"name": "v", "$retainKeys": ["name"]}), 1),
        (json!({"name": "v", "$patch": "merge"}), 1),
    ];
    for (patch, expected) in rows {
        for (alternatives, expected) in
            [(Alternatives::Keep, 1), (Alternatives::LeaveOut, expected)]
        {
            let mut patch = volume(patch.clone());
            let written = Written::StrategicMergePatch;
            let found = restore(&before, &mut patch, &patterns, written, alternatives);
            assert_eq!(found.len(), expected, "{patch} {alternatives:?}");
        }
    }
}

#[test]
fn only_patches_that_replace_a_container_of_a_field_can_erase_it() {
    let rows = [
        (
            json!({"metadata": {"labels": {"a": "b"}}}),
            &[][..],
            &[][..],
        ),
        (json!({"spec": {"x": null, "sub": {"old": 1}}}), &[], &[]),
        (json!({"spec": {"l": []}}), &["spec.l[].x"], &["spec.l[].x"]),
        (json!({"spec": {"l": null, "atomic": {}}}), &[], &[]),
        (
            json!({"spec": {"sub": {"$patch": "replace"}, "only": {"$retainKeys": []}}}),
            &[],
            &["spec.sub.x", "spec.only.x"],
        ),
        (
            json!({"spec": {"m": {"k": {"$patch": "replace"}}}}),
            &[],
            &["spec.m{}.x"],
        ),
        (json!({"spec": {"sub": {"$patch": "delete"}}}), &[], &[]),
        (json!([]), &[], &[]),
    ];
    for (patch, merge, strategic) in rows {
        for (written, expected) in [
            (Written::MergePatch, merge),
            (Written::StrategicMergePatch, strategic),
        ] {
            let erasable = erasable_by_merge(&patch, &patterns(PATTERNS), written);
            assert_eq!(erasable, patterns(expected), "{patch} {written:?}");
        }
    }
    let whole = json!({"$patch": "replace"});
    let erasable = erasable_by_merge(&whole, &patterns(PATTERNS), Written::StrategicMergePatch);
    assert_eq!(erasable.len(), PATTERNS.len());
    for (path, expected) in [
        ("", PATTERNS),
        ("/spec", PATTERNS),
        ("/spec/x", &[]),
        ("/spec/sub", &["spec.sub.x"]),
        ("/spec/sub/old", &[]),
        ("/spec/l", &["spec.l[].x"]),
        ("/spec/l/0", &["spec.l[].x"]),
        ("/spec/l/0/x", &[]),
        ("/spec/m/a~1b", &["spec.m{}.x"]),
        ("/metadata", &[]),
        // What precedes the first slash does not count at kube-apiserver.
        ("any/spec/sub", &["spec.sub.x"]),
    ] {
        for (op, expected) in [("replace", expected), ("copy", expected), ("test", &[])] {
            let patch = json!([{"op": op, "path": path}]);
            let erasable = erasable_by_json_patch(&patch, &patterns(PATTERNS));
            assert_eq!(erasable, patterns(expected), "{op} {path}");
        }
    }
}

#[test]
fn what_a_strategic_merge_patch_removes_by_name_is_not_compared() {
    let patch = json!({"spec": {
        "x": null,
        "sub": {"$patch": "delete"},
        "l": [{"name": "a", "x": null}, {"name": "b"}],
        "m": {"k/1": null},
    }});
    let mut expected = stored();
    let spec = expected["spec"].as_object_mut().unwrap();
    spec.remove("x");
    spec.remove("sub");
    spec["l"][0].as_object_mut().unwrap().remove("x");
    spec["m"] = json!({});
    let left = without_removed(&stored(), &patch, &patterns(PATTERNS));
    assert_eq!(left, expected);
}

//! Which fields a write would erase, and which `managedFields` names.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use serde_json::{Value, json};
use skewbridge_field_sets::restore::MAX_REPORTED_PATHS;
use skewbridge_field_sets::{Alternatives, FieldPath, Mention, Written, mentions, restore};

fn patterns(texts: &[&str]) -> Vec<FieldPath> {
    texts.iter().map(|it| it.parse().unwrap()).collect()
}

/// The fields that an update to `after` would erase. Restored, none is erased any more.
fn erased(before: &Value, after: &Value, patterns: &[FieldPath]) -> Vec<String> {
    let mut restored = after.clone();
    let found = restore(
        before,
        &mut restored,
        patterns,
        Written::Object,
        Alternatives::Keep,
    );
    let again = restore(
        before,
        &mut restored.clone(),
        patterns,
        Written::Object,
        Alternatives::Keep,
    );
    assert!(again.is_empty(), "{again:?}");
    assert_eq!(found.is_empty(), *after == restored, "{restored}");
    found
}

/// What it is about, patterns, the object before and after, and what is erased.
type Row = (
    &'static str,
    &'static [&'static str],
    Value,
    Value,
    &'static [&'static str],
);

#[allow(clippy::too_many_lines)] // a table
#[test]
fn a_field_is_erased_if_its_container_is_still_there() {
    let rows: Vec<Row> = vec![
        (
            "kept",
            &["spec.x"],
            json!({"spec": {"x": 1}}),
            json!({"spec": {"x": 1}}),
            &[],
        ),
        (
            "changed",
            &["spec.x"],
            json!({"spec": {"x": 1}}),
            json!({"spec": {"x": 2}}),
            &[],
        ),
        (
            "never there",
            &["spec.x"],
            json!({"spec": {}}),
            json!({"spec": {}}),
            &[],
        ),
        (
            "added",
            &["spec.x"],
            json!({"spec": {}}),
            json!({"spec": {"x": 1}}),
            &[],
        ),
        (
            "gone",
            &["spec.x"],
            json!({"spec": {"x": 1}}),
            json!({"spec": {}}),
            &["spec.x"],
        ),
        (
            "false is a value",
            &["spec.x"],
            json!({"spec": {"x": false}}),
            json!({"spec": {}}),
            &["spec.x"],
        ),
        (
            "an empty object is a value",
            &["spec.x"],
            json!({"spec": {"x": {}}}),
            json!({"spec": {}}),
            &["spec.x"],
        ),
        (
            "null was no value",
            &["spec.x"],
            json!({"spec": {"x": null}}),
            json!({"spec": {}}),
            &[],
        ),
        (
            "null is no value",
            &["spec.x"],
            json!({"spec": {"x": 1}}),
            json!({"spec": {"x": null}}),
            &["spec.x"],
        ),
        (
            "its container is gone",
            &["spec.x"],
            json!({"spec": {"x": 1, "y": 1}}),
            json!({}),
            &[],
        ),
        (
            "its container is gone because it was empty without the field",
            &["spec.x.y"],
            json!({"spec": {"x": {"y": 1}}}),
            json!({"spec": {}}),
            &["spec.x.y"],
        ),
        (
            "its container is null",
            &["spec.x"],
            json!({"spec": {"x": 1, "y": 1}}),
            json!({"spec": null}),
            &[],
        ),
        (
            "its container has another type",
            &["spec.x"],
            json!({"spec": {"x": 1}}),
            json!({"spec": []}),
            &[],
        ),
        (
            "an unknown container is reported once",
            &["spec.x", "spec.x.y"],
            json!({"spec": {"x": {"y": 1}}}),
            json!({"spec": {}}),
            &["spec.x"],
        ),
        (
            "a field of a container that some servers have",
            &["spec.x", "spec.x.y"],
            json!({"spec": {"x": {"y": 1, "z": 1}}}),
            json!({"spec": {"x": {"z": 1}}}),
            &["spec.x.y"],
        ),
        (
            "of a field that is removed in part",
            &["spec.x"],
            json!({"spec": {"x": {"y": 1, "z": 1}}}),
            json!({"spec": {"x": {"z": 1}}}),
            &[],
        ),
        (
            "at the top",
            &["status"],
            json!({"status": {}}),
            json!({}),
            &["status"],
        ),
        (
            "by name, in another order",
            &["l[].x"],
            json!({"l": [{"name": "a", "x": 1}, {"name": "b", "x": 1}]}),
            json!({"l": [{"name": "b"}, {"name": "a", "x": 1}]}),
            &["l[name=b].x"],
        ),
        (
            "an item that is gone",
            &["l[].x"],
            json!({"l": [{"name": "a", "x": 1}, {"name": "b", "x": 1}]}),
            json!({"l": [{"name": "b", "x": 1}]}),
            &[],
        ),
        (
            "by key",
            &["l[].x"],
            json!({"l": [{"key": "a", "x": 1}]}),
            json!({"l": [{"key": "b"}, {"key": "a"}]}),
            &["l[key=a].x"],
        ),
        (
            "by number",
            &["l[].x"],
            json!({"l": [{"containerPort": 80, "x": 1}]}),
            json!({"l": [{"containerPort": 81}, {"containerPort": 80}]}),
            &["l[containerPort=80].x"],
        ),
        (
            "by place, as names are not unique",
            &["l[].x"],
            json!({"l": [{"name": "a", "x": 1}, {"name": "a"}]}),
            json!({"l": [{"name": "a"}, {"name": "a"}]}),
            &["l[0].x"],
        ),
        (
            "by place, as there is no name",
            &["l[].x"],
            json!({"l": [{"y": 1}, {"x": 1}]}),
            json!({"l": [{"y": 1}, {}]}),
            &["l[1].x"],
        ),
        (
            "by place, and the item is gone",
            &["l[].x"],
            json!({"l": [{"y": 1}, {"x": 1}]}),
            json!({"l": [{"y": 1}]}),
            &[],
        ),
        (
            "below two lists",
            &["c[].claims[].request"],
            json!({"c": [{"name": "web", "claims": [{"name": "gpu", "request": "r"}]}]}),
            json!({"c": [{"name": "web", "claims": [{"name": "gpu"}]}]}),
            &["c[name=web].claims[name=gpu].request"],
        ),
        (
            "below a map",
            &["m{}.x"],
            json!({"m": {"a.b/c": {"x": 1}, "gone": {"x": 1}}}),
            json!({"m": {"a.b/c": {}}}),
            &["m{a.b/c}.x"],
        ),
        (
            "items of another type",
            &["l[].x"],
            json!({"l": [1, "a", null]}),
            json!({"l": [1]}),
            &[],
        ),
        ("no object", &["spec.x"], json!(1), json!(null), &[]),
    ];
    for (what, texts, before, after, expected) in rows {
        assert_eq!(
            erased(&before, &after, &patterns(texts)),
            expected,
            "{what}"
        );
    }
}

#[test]
fn the_number_of_reported_paths_is_limited() {
    let before: Vec<_> = (0..1_000).map(|_| json!({"x": 1})).collect();
    let after: Vec<_> = (0..1_000).map(|_| json!({})).collect();
    let found = erased(
        &json!({"l": before}),
        &json!({"l": after}),
        &patterns(&["l[].x"]),
    );
    assert_eq!(found.len(), MAX_REPORTED_PATHS);
}

#[test]
fn managed_fields_name_fields_that_a_server_does_not_show() {
    use Mention::{Absent, Named, Possible};
    let rows = [
        ("spec.x", json!({"f:spec": {"f:x": {}}}), Named),
        ("spec.x", json!({"f:spec": {"f:y": {}}}), Absent),
        ("spec.x", json!({"f:spec": {"f:x": {"f:y": {}}}}), Named),
        (
            "spec.x",
            json!({"f:spec": {".": {}, "f:x": {".": {}}}}),
            Named,
        ),
        ("spec.x", json!({"f:spec": {".": {}}}), Absent),
        // An atomic object.
        ("spec.x", json!({"f:spec": {}}), Possible),
        ("spec.x.y", json!({"f:spec": {"f:x": {}}}), Possible),
        ("spec.x", json!({"f:status": {"f:x": {}}}), Absent),
        ("spec.x", json!({"f:x": {}}), Absent),
        (
            "l[].x",
            json!({"f:l": {"k:{\"name\":\"a\"}": {".": {}, "f:x": {}}}}),
            Named,
        ),
        (
            "l[].x",
            json!({"f:l": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}}),
            Absent,
        ),
        ("l[].x", json!({"f:l": {"i:0": {"f:x": {}}}}), Named),
        // An atomic list.
        ("l[].x", json!({"f:l": {}}), Possible),
        ("l[]", json!({"f:l": {"v:\"a\"": {}}}), Named),
        ("m{}.x", json!({"f:m": {"f:any": {"f:x": {}}}}), Named),
        ("m{}.x", json!({"f:m": {"f:any": {"f:y": {}}}}), Absent),
        ("m{}", json!({"f:m": {"f:any": {}}}), Named),
        ("spec.x", json!(null), Absent),
        ("spec.x", json!({"f:spec": null}), Possible),
        ("spec.x", json!({"f:spec": 1}), Possible),
    ];
    for (pattern, fields, expected) in rows {
        let managed = json!([
            {"manager": "kubelet", "fieldsV1": {"f:other": {}}},
            {"manager": "kubectl", "operation": "Update", "fieldsV1": fields},
        ]);
        let patterns = patterns(&["never", pattern]);
        assert_eq!(
            mentions(&managed, &patterns),
            expected,
            "{pattern} {fields}"
        );
    }
    for managed in [json!(null), json!({}), json!([]), json!([{}]), json!([1])] {
        // An object whose list was cleared may have any field.
        assert_eq!(mentions(&managed, &patterns(&["spec.x"])), Possible);
    }
    assert_eq!(mentions(&json!([{"fieldsV1": {"f:a": {}}}]), &[]), Absent);
}

#[test]
fn a_merge_patch_replaces_lists_and_keeps_what_is_missing_in_objects() {
    let before = json!({"spec": {"x": 1, "l": [{"name": "a", "x": 1, "y": 1}], "m": [{"x": 1}]}});
    let patterns = patterns(&["spec.x", "spec.l[].x", "spec.m[].x"]);
    let rows = [
        (
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
        ),
        (json!({"spec": {"z": 1}}), json!({"spec": {"z": 1}})),
        (json!({"spec": {"x": null}}), json!({"spec": {"x": null}})),
        (
            json!({"spec": {"l": [{"name": "a", "y": 2}]}}),
            json!({"spec": {"l": [{"name": "a", "x": 1, "y": 2}]}}),
        ),
        (
            json!({"spec": {"l": [{"name": "b"}]}}),
            json!({"spec": {"l": [{"name": "b"}]}}),
        ),
        (json!({"spec": {"l": null}}), json!({"spec": {"l": null}})),
    ];
    for (patch, expected) in rows {
        let mut restored = patch.clone();
        restore(
            &before,
            &mut restored,
            &patterns,
            Written::MergePatch,
            Alternatives::Keep,
        );
        assert_eq!(restored, expected, "{patch}");
    }
}

#[test]
fn an_item_without_a_key_is_found_by_its_other_fields() {
    let before = json!({"l": [{"y": 1, "x": 1}, {"y": 2}]});
    let mut after = json!({"l": [{"y": 3}, {"y": 2}, {"y": 1}]});
    let found = restore(
        &before,
        &mut after,
        &patterns(&["l[].x"]),
        Written::Object,
        Alternatives::Keep,
    );
    assert_eq!(found, ["l[0].x"]);
    assert_eq!(after, json!({"l": [{"y": 3}, {"y": 2}, {"y": 1, "x": 1}]}));
}

#[test]
fn a_member_of_a_union_that_another_one_replaces_is_left_out_on_request() {
    let patterns = patterns(&["spec.x", "spec.volumes[].new", "spec.deep.x"]);
    // Before, after, what is restored, and what without replaced alternatives.
    let volumes = |volume: Value| json!({"spec": {"volumes": [volume]}});
    let rows: [(Value, Value, &[&str], &[&str]); 6] = [
        (
            volumes(json!({"name": "v", "new": {"a": 1}})),
            volumes(json!({"name": "v", "emptyDir": {}})),
            &["spec.volumes[name=v].new"],
            &[],
        ),
        (
            volumes(json!({"name": "v", "new": {"a": 1}})),
            volumes(json!({"name": "v"})),
            &["spec.volumes[name=v].new"],
            &["spec.volumes[name=v].new"],
        ),
        // A value that changes is no other field.
        (
            volumes(json!({"name": "v", "new": {}, "mode": 1})),
            volumes(json!({"name": "v", "mode": 2})),
            &["spec.volumes[name=v].new"],
            &["spec.volumes[name=v].new"],
        ),
        (
            json!({"spec": {"x": 1}}),
            json!({"spec": {"y": 1}}),
            &["spec.x"],
            &[],
        ),
        (
            json!({"spec": {"x": 1}}),
            json!({"spec": {"y": null}}),
            &["spec.x"],
            &["spec.x"],
        ),
        // Only the container of the field counts.
        (
            json!({"spec": {"deep": {"x": 1, "a": 1}}}),
            json!({"spec": {"deep": {"a": 1}, "y": 1}, "z": 1}),
            &["spec.deep.x"],
            &["spec.deep.x"],
        ),
    ];
    for (before, after, all, kept) in rows {
        for (alternatives, expected) in [(Alternatives::Keep, all), (Alternatives::LeaveOut, kept)]
        {
            let mut restored = after.clone();
            let found = restore(
                &before,
                &mut restored,
                &patterns,
                Written::Object,
                alternatives,
            );
            assert_eq!(found, expected, "{before} {after} {alternatives:?}");
        }
    }
}

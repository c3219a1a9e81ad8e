use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::test_fixtures::NOW;

fn writer(manager: &str) -> FieldManager<'_> {
    FieldManager {
        manager,
        api_version: "v1",
        subresource: "",
        now: Time::from_unix(NOW),
    }
}

fn object(fields: Value) -> Object {
    let mut object = Object::new(fields).unwrap();
    object.set(&["apiVersion"], "v1");
    object.set(&["metadata", "name"], "web");
    object
}

fn applied(live: Option<&Object>, manager: &str, fields: Value) -> Result<Object, Status> {
    apply(live, &object(fields), &writer(manager), Conflicts::Refuse)
}

fn forced(live: &Object, manager: &str, fields: Value) -> Object {
    apply(
        Some(live),
        &object(fields),
        &writer(manager),
        Conflicts::Force,
    )
    .unwrap()
}

/// The fields of each manager.
fn owned(object: &Object) -> Vec<(String, Value)> {
    let entries = object.managed_fields().iter();
    entries
        .map(|it| {
            (
                it["manager"].as_str().unwrap().to_owned(),
                it["fieldsV1"].clone(),
            )
        })
        .collect()
}

#[test]
fn a_manager_owns_the_fields_that_it_applies() {
    let made = applied(None, "a", json!({"data": {"x": "1"}})).unwrap();
    assert_eq!(
        made.managed_fields(),
        [json!({
            "manager": "a",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": "2026-11-15T20:59:59Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:x": {}}},
        })]
    );
    // Another manager applies the same value: both own it.
    let made = applied(Some(&made), "b", json!({"data": {"x": "1", "y": "2"}})).unwrap();
    assert_eq!(made.value()["data"], json!({"x": "1", "y": "2"}));
    assert_eq!(
        owned(&made),
        [
            ("a".to_owned(), json!({"f:data": {"f:x": {}}})),
            ("b".to_owned(), json!({"f:data": {"f:x": {}, "f:y": {}}})),
        ]
    );
}

#[test]
fn fields_no_longer_applied_are_removed_unless_another_manager_owns_them() {
    let made = applied(None, "a", json!({"data": {"x": "1", "y": "1", "z": "1"}})).unwrap();
    let made = applied(Some(&made), "b", json!({"data": {"y": "1"}})).unwrap();
    let made = applied(Some(&made), "a", json!({"data": {"x": "1"}})).unwrap();
    assert_eq!(made.value()["data"], json!({"x": "1", "y": "1"}));
    // A field without an owner is removed.
    let made = applied(Some(&made), "b", json!({})).unwrap();
    assert_eq!(made.value()["data"], json!({"x": "1"}));
    let made = applied(Some(&made), "a", json!({})).unwrap();
    assert_eq!(made.at(&["data"]), None);
    assert_eq!(owned(&made), []);
}

#[test]
fn conflicts_have_kube_apiservers_message() {
    let made = applied(None, "a", json!({"data": {"x": "1", "y": "1"}})).unwrap();
    let refusal = applied(Some(&made), "b", json!({"data": {"x": "2"}})).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (409, "Conflict"));
    assert_eq!(
        refusal.message,
        "Apply failed with 1 conflict: conflict with \"a\": .data.x"
    );
    let cause = &refusal.details.as_ref().unwrap().causes[0];
    assert_eq!(
        (&*cause.reason, &*cause.message, &*cause.field),
        ("FieldManagerConflict", "conflict with \"a\"", ".data.x")
    );
    let refusal = applied(Some(&made), "b", json!({"data": {"x": "2", "y": "2"}})).unwrap_err();
    assert_eq!(
        refusal.message,
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .data.x\n- .data.y"
    );
    // Managers that update own fields too.
    let mut updated = made.clone();
    updated.set(&["data", "x"], "3");
    note_update(Some(&made), &mut updated, &writer("kubectl-edit"));
    let refusal = applied(Some(&updated), "a", json!({"data": {"x": "1", "y": "1"}})).unwrap_err();
    assert_eq!(
        refusal.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1 at \
         2026-11-15T20:59:59Z: .data.x"
    );
}

#[test]
fn force_takes_over_fields() {
    let made = applied(None, "a", json!({"data": {"x": "1", "y": "1"}})).unwrap();
    let made = forced(&made, "b", json!({"data": {"x": "2"}}));
    assert_eq!(made.value()["data"], json!({"x": "2", "y": "1"}));
    assert_eq!(
        owned(&made),
        [
            ("a".to_owned(), json!({"f:data": {"f:y": {}}})),
            ("b".to_owned(), json!({"f:data": {"f:x": {}}})),
        ]
    );
    assert!(applied(Some(&made), "a", json!({"data": {"x": "1"}})).is_err());
}

#[test]
fn items_of_lists_are_owned_by_their_keys() {
    let pod = |containers: Value| json!({"spec": {"containers": containers}});
    let made = applied(
        None,
        "a",
        pod(json!([{"name": "c", "image": "1"}, {"name": "d"}])),
    )
    .unwrap();
    let made = applied(
        Some(&made),
        "b",
        pod(json!([{"name": "c", "env": [{"name": "x", "value": "1"}]}, {"name": "e"}])),
    )
    .unwrap();
    assert_eq!(
        made.value()["spec"]["containers"],
        json!([
            {"name": "c", "image": "1", "env": [{"name": "x", "value": "1"}]},
            {"name": "d"},
            {"name": "e"},
        ])
    );
    // An item stays while any manager owns a field of it.
    let made = applied(Some(&made), "a", pod(json!([]))).unwrap();
    assert_eq!(
        made.value()["spec"]["containers"],
        json!([{"name": "c", "env": [{"name": "x", "value": "1"}]}, {"name": "e"}])
    );
    let refusal = applied(
        Some(&made),
        "a",
        pod(json!([{"name": "c", "env": [{"name": "x", "value": "2"}]}])),
    );
    assert_eq!(
        refusal.unwrap_err().message,
        "Apply failed with 1 conflict: conflict with \"b\": \
         .spec.containers[name=\"c\"].env[name=\"x\"].value"
    );
}

/// Results are those of Kubernetes' own field manager (1.36).
#[test]
fn items_are_in_the_applied_order() {
    let rows = [
        ("ac", "bc", "abc"),
        ("ab", "ba", "ba"),
        ("abc", "ca", "bca"),
        ("a", "ba", "ba"),
        ("ab", "c", "abc"),
    ];
    let pod = |names: &str| {
        let items: Vec<_> = names
            .chars()
            .map(|it| json!({"name": it.to_string()}))
            .collect();
        json!({"spec": {"containers": items}})
    };
    for (there, wanted, expected) in rows {
        let live = applied(None, "a", pod(there)).unwrap();
        let next = applied(Some(&live), "b", pod(wanted)).unwrap();
        assert_eq!(
            next.value()["spec"],
            pod(expected)["spec"],
            "{there} {wanted}"
        );
    }
}

#[test]
fn an_update_makes_its_writer_the_owner_of_what_it_changes() {
    let mut made = object(json!({"data": {"x": "1"}, "metadata": {"labels": {"app": "web"}}}));
    note_update(None, &mut made, &writer("create"));
    assert_eq!(
        owned(&made),
        [(
            "create".to_owned(),
            json!({
                "f:data": {".": {}, "f:x": {}},
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            })
        )]
    );
    let mut next = made.clone();
    next.set(&["data", "x"], "2");
    next.remove(&["metadata", "labels"]);
    note_update(Some(&made), &mut next, &writer("edit"));
    assert_eq!(
        owned(&next),
        [
            ("create".to_owned(), json!({"f:data": {}})),
            ("edit".to_owned(), json!({"f:data": {"f:x": {}}})),
        ]
    );
    // Without changes there is no new owner; an empty list resets ownership.
    let mut same = next.clone();
    note_update(Some(&next), &mut same, &writer("other"));
    assert_eq!(same, next);
    let mut reset = next.clone();
    reset.set(&["metadata", "managedFields"], json!([{}]));
    note_update(Some(&next), &mut reset, &writer("other"));
    assert_eq!(owned(&reset), []);
}

#[test]
fn invalid_applies_are_refused() {
    let refusal = applied(None, "", json!({})).unwrap_err();
    assert_eq!(
        (refusal.code, &*refusal.message),
        (
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required \
             for apply patch"
        )
    );
    let refusal = applied(None, "a", json!({"metadata": {"managedFields": [{}]}})).unwrap_err();
    assert_eq!(refusal.message, "metadata.managedFields must be nil");
    let twice = json!({"kind": "Pod", "spec": {"containers": [{"name": "c"}, {"name": "c"}]}});
    let refusal = applied(None, "a", twice).unwrap_err();
    assert_eq!(
        (refusal.code, &*refusal.message),
        (
            500,
            "failed to create typed patch object (/web; /v1, Kind=Pod): .spec.containers: \
             duplicate entries for key [name=\"c\"]"
        )
    );
}

proptest! {
    /// With force, all applied fields are present, and fields that only this manager had applied
    /// before and does not apply any more are removed.
    #[test]
    fn applied_fields_are_present_and_dropped_ones_are_removed(
        rounds in proptest::collection::vec(
            ("[ab]", proptest::collection::btree_map("[w-z]", "[12]", 0..4)), 1..12,
        ),
    ) {
        let mut live: Option<Object> = None;
        let mut wanted = std::collections::BTreeMap::new();
        for (manager, data) in rounds {
            let fields = if data.is_empty() { json!({}) } else { json!({"data": data}) };
            let applied = object(fields);
            let next = apply(live.as_ref(), &applied, &writer(&manager), Conflicts::Force);
            let next = next.unwrap();
            wanted.insert(manager.clone(), data.clone());
            // Other managers lose the fields whose value was overwritten.
            for (other, theirs) in &mut wanted {
                if *other != manager {
                    theirs.retain(|key, value| data.get(key).is_none_or(|it| it == value));
                }
            }
            let mut expected = std::collections::BTreeMap::new();
            for theirs in wanted.values() {
                expected.extend(theirs.clone());
            }
            let found = next.at(&["data"]).cloned().unwrap_or_else(|| json!({}));
            prop_assert_eq!(found, json!(expected));
            // Applying the same again changes nothing.
            let again = apply(Some(&next), &applied, &writer(&manager), Conflicts::Refuse);
            prop_assert_eq!(again.unwrap(), next.clone());
            live = Some(next);
        }
    }
}

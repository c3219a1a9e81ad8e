use proptest::prelude::*;
use serde_json::json;

use super::*;

fn pod(containers: Value) -> Value {
    let mut pod = json!({"spec": {}});
    pod["spec"]["containers"] = containers;
    pod
}

/// Each row: description, target, patch, result. Results are those of Kubernetes' own
/// `strategicpatch` (1.36), except for nulls, which it leaves to the decoder.
#[test]
#[allow(clippy::too_many_lines)] // a table
fn lists_are_merged_by_their_type_in_the_api() {
    let rows = [
        (
            "a container by its name",
            pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}])),
            pod(json!([{"name": "b", "image": "2"}])),
            pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}])),
        ),
        (
            "a new container, before one that only the server has",
            pod(json!([{"name": "a"}])),
            pod(json!([{"name": "b", "image": null, "env": [{"name": "x", "value": "1"}]}])),
            pod(json!([{"name": "b", "env": [{"name": "x", "value": "1"}]}, {"name": "a"}])),
        ),
        (
            "lists in items of lists",
            pod(
                json!([{"name": "a", "ports": [{"containerPort": 80}], "env": [{"name": "x", "value": "1"}], "volumeMounts": [{"mountPath": "/a", "name": "v"}]}]),
            ),
            pod(
                json!([{"name": "a", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 81}], "env": [{"name": "x", "value": "2"}], "volumeMounts": [{"mountPath": "/a", "readOnly": true}]}]),
            ),
            pod(
                json!([{"name": "a", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 81}], "env": [{"name": "x", "value": "2"}], "volumeMounts": [{"mountPath": "/a", "name": "v", "readOnly": true}]}]),
            ),
        ),
        (
            "arguments as a whole",
            pod(json!([{"name": "a", "args": ["1", "2"]}])),
            pod(json!([{"name": "a", "args": ["3"]}])),
            pod(json!([{"name": "a", "args": ["3"]}])),
        ),
        (
            "tolerations as a whole",
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
        ),
        (
            "an item is deleted",
            pod(json!([{"name": "a"}, {"name": "b"}])),
            pod(json!([{"$patch": "delete", "name": "a"}, {"$patch": "delete", "name": "c"}])),
            pod(json!([{"name": "b"}])),
        ),
        (
            "a list is replaced",
            pod(json!([{"name": "a"}, {"name": "b"}])),
            pod(json!([{"$patch": "replace"}, {"name": "c"}])),
            pod(json!([{"name": "c"}])),
        ),
        (
            "a list is replaced, although an item has a merge directive",
            pod(json!([{"name": "a", "image": "1", "args": ["x"]}])),
            pod(json!([{"name": "a", "image": "2", "$patch": "replace"}])),
            pod(json!([])),
        ),
        (
            "an object is replaced",
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
            json!({"metadata": {"labels": {"c": "3"}}}),
        ),
        (
            "an object is emptied",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            "finalizers are a set",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["b", "c"]}}),
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
        ),
        (
            "finalizers are removed",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}}),
            json!({"metadata": {"finalizers": ["b"]}}),
        ),
        (
            "owners by their uid",
            json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}]}}),
            json!({"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}, {"uid": "2", "name": "b"}]}}),
            json!({"metadata": {"ownerReferences": [{"uid": "2", "name": "b"}]}}),
        ),
        (
            "conditions by their type",
            json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}]}}),
            json!({"status": {"$setElementOrder/conditions": [{"type": "Ready"}], "conditions": [{"type": "Ready", "status": "True", "reason": null}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        ),
        (
            "a volume keeps only the fields of the patch",
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}),
        ),
        (
            "a strategy keeps only the fields of the patch",
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
        ),
        (
            "the client's order; items that only the server has keep their place",
            pod(json!([{"name": "a"}, {"name": "s"}, {"name": "b"}])),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}], "containers": [{"name": "n"}]}}),
            pod(json!([{"name": "s"}, {"name": "b"}, {"name": "n"}, {"name": "a"}])),
        ),
        (
            "an order alone",
            pod(json!([{"name": "a"}, {"name": "b"}])),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            pod(json!([{"name": "b"}, {"name": "a"}])),
        ),
        (
            "the ports of a service",
            json!({"spec": {"ports": [{"port": 80, "targetPort": 1}]}}),
            json!({"spec": {"ports": [{"port": 80, "targetPort": 2}, {"port": 81}]}}),
            json!({"spec": {"ports": [{"port": 80, "targetPort": 2}, {"port": 81}]}}),
        ),
        (
            "secrets to pull images with",
            json!({"spec": {"imagePullSecrets": [{"name": "a"}]}}),
            json!({"spec": {"imagePullSecrets": [{"name": "b"}]}}),
            json!({"spec": {"imagePullSecrets": [{"name": "b"}, {"name": "a"}]}}),
        ),
        (
            "null removes a field",
            json!({"spec": {"nodeName": "n", "nodeSelector": {"c": "1"}}}),
            json!({"spec": {"nodeName": null, "nodeSelector": {"c": null}, "affinity": {"nodeAffinity": null, "podAffinity": {}}}}),
            json!({"spec": {"nodeSelector": {}, "affinity": {"podAffinity": {}}}}),
        ),
    ];
    for (what, target, patch, expected) in rows {
        assert_eq!(apply(&target, &patch), Ok(expected), "{what}");
    }
}

#[test]
fn invalid_patches_are_refused() {
    let error = |patch: Value| apply(&pod(json!([{"name": "a"}])), &patch).unwrap_err();
    assert_eq!(
        error(pod(json!([{"image": "x"}]))),
        "map: map[image:x] does not contain declared merge key: name"
    );
    assert_eq!(
        error(json!({"spec": {"$patch": "other"}})),
        "unknown patch type: other in map: map[$patch:other]"
    );
    let target = pod(json!([{"name": "a"}]));
    for patch in [
        pod(json!([{"image": "x"}])),
        pod(json!(["a"])),
        json!({"spec": {"$patch": "other"}}),
        json!({"spec": {"$patch": 7}}),
        json!({"spec": {"$retainKeys": "x"}}),
        json!({"spec": {"$setElementOrder/containers": "x", "containers": []}}),
        json!({"spec": {"$deleteFromPrimitiveList/x": "x"}}),
    ] {
        assert!(apply(&target, &patch).is_err(), "{patch}");
    }
}

proptest! {
    /// kubectl repeats the same patch after a conflict.
    #[test]
    fn applying_a_patch_twice_changes_nothing(
        there in proptest::collection::btree_set("[a-d]", 0..4),
        changed in proptest::collection::btree_map("[a-f]", "[12]", 0..4),
        gone in proptest::collection::btree_set("[a-d]", 0..2),
    ) {
        let items: Vec<_> = there.iter().map(|it| json!({"name": it, "image": "0"})).collect();
        let mut patch: Vec<_> =
            changed.iter().map(|(name, image)| json!({"name": name, "image": image})).collect();
        let gone: Vec<_> = gone.iter().filter(|it| !changed.contains_key(*it)).collect();
        patch.extend(gone.iter().map(|it| json!({"name": it, "$patch": "delete"})));
        let (target, patch) = (pod(json!(items)), pod(json!(patch)));
        let once = apply(&target, &patch).unwrap();
        prop_assert_eq!(apply(&once, &patch).unwrap(), once.clone());
        let names: Vec<_> = once["spec"]["containers"].as_array().unwrap().iter()
            .map(|it| it["name"].as_str().unwrap().to_owned()).collect();
        let expected = there.iter().filter(|it| !gone.contains(it)).count()
            + changed.keys().filter(|it| !there.contains(*it)).count();
        prop_assert_eq!(names.len(), expected);
    }

    #[test]
    fn without_lists_the_result_is_that_of_a_merge_patch(
        before in proptest::collection::btree_map("[a-d]", 0..3_i32, 0..4),
        change in proptest::collection::btree_map("[a-d]", proptest::option::of(0..3_i32), 0..4),
    ) {
        let (target, patch) = (json!({"data": before}), json!({"data": change}));
        prop_assert_eq!(
            apply(&target, &patch).unwrap(), crate::patch::merge::apply(&target, &patch),
        );
    }
}

/// Kubernetes merges in place; its results count.
#[test]
fn a_new_item_takes_the_place_of_one_that_is_deleted() {
    let target = pod(json!([{"name": "c"}, {"name": "e"}, {"name": "b"}]));
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "d"}],
        "containers": [{"name": "b", "$patch": "delete"}, {"name": "d"}],
    }});
    let expected = pod(json!([{"name": "c"}, {"name": "e"}, {"name": "d"}]));
    assert_eq!(apply(&target, &patch), Ok(expected));
}

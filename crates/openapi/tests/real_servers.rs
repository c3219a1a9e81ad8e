//! Documents of kube-apiserver 1.34.4 and 1.36.4, trimmed by hand to a few paths; their
//! protobuf, and the expected one, was written by gnostic.

use skewbridge_openapi::{Spec, json, protobuf};

macro_rules! documents {
    ($name:literal, $extension:literal) => {
        [
            include_bytes!(concat!("data/", $name, "-local.", $extension)).as_slice(),
            include_bytes!(concat!("data/", $name, "-other.", $extension)).as_slice(),
            include_bytes!(concat!("data/", $name, "-merged.", $extension)).as_slice(),
        ]
    };
}

#[test]
fn merged_json_equals_that_of_a_server() {
    for (spec, [local, other, expected]) in [
        (Spec::V2, documents!("v2", "json")),
        (Spec::V3, documents!("v3", "json")),
    ] {
        let merged = json::merge(spec, local, &[other], |_| true).unwrap();
        assert_eq!(str::from_utf8(&merged), str::from_utf8(expected));
    }
}

#[test]
fn merged_protobuf_equals_that_of_a_server() {
    for (spec, [local, other, expected]) in [
        (Spec::V2, documents!("v2", "pb")),
        (Spec::V3, documents!("v3", "pb")),
    ] {
        let merged = protobuf::merge(spec, local, &[other], |_| true).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&merged),
            String::from_utf8_lossy(expected)
        );
        assert!(merged == expected);
    }
}

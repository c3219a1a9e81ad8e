//! Any bytes as an OpenAPI document and as a cached file: no panic, and fields that were read can
//! be written and read again, and do not differ from themselves.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skewbridge_discovery::document::{Group, GroupVersionKind, Metadata, Resource, Version};
use skewbridge_field_sets::{
    ComparedServer, FieldPath, FieldSkew, ServerFields, ServerFieldsBuilder,
};

/// The core group with two resources.
fn discovery() -> Group {
    let resource = |kind: &str| Resource {
        resource: kind.to_lowercase(),
        response_kind: Some(GroupVersionKind {
            kind: kind.to_owned(),
            ..GroupVersionKind::default()
        }),
        ..Resource::default()
    };
    Group {
        metadata: Metadata::default(),
        versions: vec![Version {
            version: "v1".to_owned(),
            resources: ["Pod", "Node"].map(resource).to_vec(),
            ..Version::default()
        }],
    }
}

fn check(fields: &ServerFields) {
    let file = fields.to_json();
    assert_eq!(ServerFields::from_json(&file).ok().as_ref(), Some(fields));
    let servers = [fields, fields].map(|fields| ComparedServer {
        version: None,
        fields,
    });
    let skew = FieldSkew::compare(&servers, |_, _| false);
    assert!(skew.is_ok_and(|skew| skew.is_empty()));
    for (group, kind) in fields.kinds() {
        let Some(set) = fields.kind(group, kind) else {
            continue;
        };
        for path in set.paths().iter().take(100) {
            assert!(set.contains(path));
            assert_eq!(path.to_string().parse::<FieldPath>().ok().as_ref(), Some(path));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let group = discovery();
    let mut builder = ServerFieldsBuilder::new([&group]);
    let _ = builder.add("", "v1", bytes);
    if let Ok(fields) = builder.build() {
        check(&fields);
    }
    if let Ok(fields) = ServerFields::from_json(bytes) {
        let servers = [&fields, &fields].map(|fields| ComparedServer {
            version: None,
            fields,
        });
        let _ = FieldSkew::compare(&servers, |_, _| false);
    }
});

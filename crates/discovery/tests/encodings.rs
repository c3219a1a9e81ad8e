//! Every format of discovery, byte for byte as kube-apiserver 1.36.4 writes it.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use skewbridge_discovery::document::Version;
use skewbridge_discovery::lists::{ApiGroup, ApiGroupList, ApiResourceList};
use skewbridge_discovery::{Document, Layout, Object};
use skewbridge_k8s_api::content_negotiation::Format;

macro_rules! form {
    ($name:literal) => {
        include_bytes!(concat!("data/1.36.4-forms/", $name)).as_slice()
    };
}

#[track_caller]
fn assert_serialises_to(object: &impl Object, format: Format, expected: &[u8]) {
    let written = object.write(format, Layout::Compact);
    if format == Format::Json {
        assert_eq!(
            String::from_utf8_lossy(&written),
            String::from_utf8_lossy(expected)
        );
    }
    if format == Format::Cbor {
        // The server writes fields in the order of its structures, which is not required.
        let sorted = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.sort_unstable();
            bytes
        };
        assert_eq!(sorted(&written), sorted(expected));
        return;
    }
    assert!(written == expected, "{format:?}: other bytes");
}

fn aggregated() -> Document {
    Document::parse(form!("aggregated.json")).unwrap()
}

fn version(group: &str, version: &str) -> Version {
    let document = aggregated();
    let group = document.items.iter().find(|it| it.name() == group).unwrap();
    let mut versions = group.versions.iter();
    versions.find(|it| it.version == version).unwrap().clone()
}

#[test]
fn aggregated_discovery_serialises_like_the_server() {
    assert_serialises_to(&aggregated(), Format::Json, form!("aggregated.json"));
    assert_serialises_to(&aggregated(), Format::Protobuf, form!("aggregated.pb"));
}

#[test]
fn lists_serialise_like_the_server() {
    let groups = ApiGroupList::parse(form!("groups.json")).unwrap();
    assert_serialises_to(&groups, Format::Json, form!("groups.json"));
    assert_serialises_to(&groups, Format::Protobuf, form!("groups.pb"));
    let resources = ApiResourceList::parse(form!("resources.json")).unwrap();
    assert_serialises_to(&resources, Format::Json, form!("resources.json"));
    assert_serialises_to(&resources, Format::Protobuf, form!("resources.pb"));
    assert_serialises_to(&resources, Format::Cbor, form!("resources.cbor"));
    let core = ApiResourceList::parse(form!("core.json")).unwrap();
    assert_serialises_to(&core, Format::Json, form!("core.json"));
    assert_serialises_to(&core, Format::Protobuf, form!("core.pb"));
}

#[test]
fn a_document_converts_to_the_lists_of_the_server() {
    let groups = ApiGroupList::from_document(&aggregated());
    assert_serialises_to(&groups, Format::Json, form!("groups.json"));
    let document = aggregated();
    let apps = document
        .items
        .iter()
        .find(|it| it.name() == "apps")
        .unwrap();
    let apps = ApiGroup::from_group(apps);
    assert_serialises_to(&apps, Format::Json, form!("group.json"));
    assert_serialises_to(&apps, Format::Protobuf, form!("group.pb"));
    let pretty = apps.write(Format::Json, Layout::Pretty);
    assert_eq!(
        String::from_utf8_lossy(&pretty),
        String::from_utf8_lossy(form!("group.pretty.json"))
    );

    // Everything but the storage version hash, which a document does not have.
    let mut listed = ApiResourceList::parse(form!("resources.json")).unwrap();
    for resource in &mut listed.resources {
        resource.storage_version_hash.clear();
    }
    assert_eq!(
        ApiResourceList::from_version("apps", &version("apps", "v1")),
        listed
    );
}

#[test]
fn merging_into_a_list_keeps_its_entries() {
    let whole = ApiResourceList::parse(form!("resources.json")).unwrap();
    let mut list = whole.clone();
    list.merge_version(&version("apps", "v1"));
    assert_eq!(list, whole);

    let mut old = whole.clone();
    old.resources.retain(|it| it.name != "deployments/scale");
    for resource in &mut old.resources {
        resource.verbs.retain(|verb| verb != "watch");
        resource.short_names.clear();
    }
    old.merge_version(&version("apps", "v1"));
    assert_eq!(old.resources.len(), whole.resources.len());
    for resource in &whole.resources {
        let completed = old.resources.iter().find(|it| it.name == resource.name);
        assert_eq!(
            completed.unwrap().verbs,
            resource.verbs,
            "{}",
            resource.name
        );
        assert_eq!(completed.unwrap().short_names, resource.short_names);
    }
    assert_eq!(old.resources.last().unwrap().name, "deployments/scale");
    let kept = |list: &ApiResourceList| list.resources[0].storage_version_hash.clone();
    assert_eq!(kept(&old), kept(&whole));
}

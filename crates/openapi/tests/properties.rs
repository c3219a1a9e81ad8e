//! Properties of all documents, in every version and format.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/openapi_model.rs"]
mod openapi_model;

use std::borrow::Cow;
use std::collections::BTreeSet;

use openapi_model::document;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index as Place;
use skewbridge_openapi::{Error, Format, GroupVersion, Index, Spec, json, protobuf};

const ALL: [(Spec, Format); 4] = [
    (Spec::V2, Format::Json),
    (Spec::V2, Format::Protobuf),
    (Spec::V3, Format::Json),
    (Spec::V3, Format::Protobuf),
];

fn merge<'a>(
    (spec, format): (Spec, Format),
    local: &'a [u8],
    others: &[&'a [u8]],
    take: impl Fn(&str) -> bool,
) -> Result<Cow<'a, [u8]>, Error> {
    match format {
        Format::Json => json::merge(spec, local, others, take),
        Format::Protobuf => protobuf::merge(spec, local, others, take),
    }
}

fn index() -> impl Strategy<Value = Index> {
    let key = proptest::sample::select(&["version", "apis/a", "apis/a/v1", "apis/b/v1", "api/v1"]);
    let entry = (key, "[0-9A-F]{0,2}").prop_map(|(key, hash)| {
        let url = format!("/openapi/v3/{key}?hash={hash}");
        (key, format!(r#""{key}":{{"serverRelativeURL":"{url}"}}"#))
    });
    vec(entry, 0..6).prop_map(|entries| {
        let entries: std::collections::BTreeMap<_, _> = entries.into_iter().collect();
        let entries: Vec<_> = entries.into_values().collect();
        Index::parse(format!(r#"{{"paths":{{{}}}}}"#, entries.join(",")).as_bytes()).unwrap()
    })
}

fn keys<'a>(entries: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    entries.map(str::to_owned).collect()
}

proptest! {
    #[test]
    fn a_merge_is_the_union_with_precedence_of_the_local_server(
        local in document(), one in document(), two in document(), letter in "[a-e]",
    ) {
        let take = |path: &str| !path.contains(&letter);
        let expected = local.clone().with(&one, take).with(&two, take);
        for way in ALL {
            let [local, one, two] = [&local, &one, &two].map(|it| it.write(way));
            let merged = merge(way, &local, &[&one, &two], take).unwrap();
            let expected = expected.write(way);
            prop_assert_eq!(String::from_utf8_lossy(&merged), String::from_utf8_lossy(&expected));
        }
    }

    #[test]
    fn a_document_merged_with_itself_is_unchanged(document in document(), other in document()) {
        for way in ALL {
            let bytes = document.write(way);
            let merged = merge(way, &bytes, &[&bytes, &bytes], |_| true).unwrap();
            prop_assert!(matches!(merged, Cow::Borrowed(_)));
            prop_assert_eq!(&*merged, &*bytes);
            // Merging again adds nothing.
            let other = other.write(way);
            let merged = merge(way, &bytes, &[&other], |_| true).unwrap();
            let again = merge(way, &merged, &[&other, &bytes], |_| true).unwrap();
            prop_assert_eq!(&*again, &*merged);
        }
    }

    #[test]
    fn the_order_of_others_does_not_change_the_set_of_names(
        local in document(), one in document(), two in document(),
    ) {
        let forth = local.clone().with(&one, |_| true).with(&two, |_| true);
        let back = local.clone().with(&two, |_| true).with(&one, |_| true);
        prop_assert_eq!(forth.names(), back.names());
        for way in ALL {
            let [local, one, two] = [&local, &one, &two].map(|it| it.write(way));
            let merged = merge(way, &local, &[&two, &one], |_| true).unwrap();
            prop_assert_eq!(&*merged, &*back.write(way));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), document in document()) {
        let _ = Index::parse(&bytes);
        for way in ALL {
            let good = document.write(way);
            let _ = merge(way, &bytes, &[&good], |_| true);
            let _ = merge(way, &good, &[&bytes], |_| true);
        }
    }

    #[test]
    fn corrupted_documents_never_panic(
        document in document(), other in document(), place: Place, byte: u8, cut: bool,
    ) {
        for way in ALL {
            let good = other.write(way);
            let mut damaged = document.write(way);
            let at = place.index(damaged.len());
            if cut {
                damaged.truncate(at);
            } else {
                damaged[at] = byte;
            }
            let _ = merge(way, &damaged, &[&good], |_| true);
            if let Ok(merged) = merge(way, &good, &[&damaged], |_| true) {
                // The result can be parsed again.
                prop_assert!(merge(way, &merged, &[&good], |_| true).is_ok());
            }
        }
    }

    #[test]
    fn a_merged_index_lists_all_entries_and_their_servers(
        local in index(), one in index(), two in index(), group in "[ab]?",
    ) {
        let take = |it: GroupVersion<'_>, _: usize| it.group == group;
        let forth = local.merge(&[&one, &two], take);
        let back = local.merge(&[&two, &one], take);
        let is_taken = |key: &&str| GroupVersion::from_key(key).is_some_and(|it| take(it, 0));
        let theirs = one.iter().chain(&two).map(|(key, _)| key).filter(is_taken);
        let expected = keys(local.iter().map(|(key, _)| key).chain(theirs));
        prop_assert_eq!(&keys(forth.iter().map(|(key, _)| key)), &expected);
        prop_assert_eq!(&keys(back.iter().map(|(key, _)| key)), &expected);
        for (key, entry) in forth.iter() {
            let has = |index: &Index| usize::from(index.get(key).is_some());
            let others = if is_taken(&key) { has(&one) + has(&two) } else { 0 };
            let servers = entry.sources.iter().map(|source| source.servers.len()).sum::<usize>();
            prop_assert_eq!(servers, has(&local) + others);
            if entry.is_local() {
                prop_assert_eq!(Some(&entry.location), local.get(key));
            }
        }
        let read = Index::parse(&forth.to_json()).unwrap();
        prop_assert_eq!(read.to_json(), forth.to_json());
    }
}

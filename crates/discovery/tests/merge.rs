//! Merged documents of servers of different versions.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use std::collections::BTreeSet;

use proptest::prelude::*;
use skewbridge_discovery::{Document, Index, merge};

const REAL: [&[u8]; 5] = [
    include_bytes!("data/1.28.15-all-apis.json"),
    include_bytes!("data/1.29.15-all-apis.json"),
    include_bytes!("data/1.34.4-all-apis.json"),
    include_bytes!("data/1.36.4-all-apis.json"),
    include_bytes!("data/1.36.4-default-apis.json"),
];

fn real() -> Vec<Document> {
    REAL.map(|bytes| Document::parse(bytes).unwrap()).to_vec()
}

/// Everything that is served, with its verbs.
fn content(documents: &[&Document]) -> BTreeSet<String> {
    let index = Index::new(documents);
    let entries = index.entries().flat_map(|entry| {
        let names: Vec<_> = entry.verbs.names().collect();
        names
            .into_iter()
            .map(move |verb| format!("{entry} {verb}"))
            .collect::<Vec<_>>()
    });
    entries.collect()
}

fn names(document: &Document) -> Vec<&str> {
    document
        .items
        .iter()
        .map(skewbridge_discovery::document::Group::name)
        .collect()
}

#[test]
fn a_document_is_completed_with_the_chosen_group_versions_that_it_lacks() {
    let all = real();
    let (old, new) = (&all[2], &all[3]);
    let is_chosen = |group: &str, _: &str| group == "resource.k8s.io";
    let completed = old.completed_with(new, is_chosen);
    let expected = merge(&[
        old,
        &new.without(|group, version| !is_chosen(group, version)),
    ]);
    let versions = |document: &Document| -> BTreeSet<_> {
        let versions = document.versions();
        let versions = versions.map(|(group, it)| (group.to_owned(), it.version.clone()));
        versions.collect()
    };
    assert_eq!(versions(&completed), versions(&expected));
    // What it has stays as it is.
    for (group, version) in old.versions() {
        assert_eq!(completed.version(group, &version.version), Some(version));
    }
    assert_eq!(&old.completed_with(new, |_, _| false), old);
    let nothing = Document::default();
    let whole = nothing.completed_with(new, |_, _| true);
    assert_eq!(whole.items, new.items);
}

#[test]
fn merged_is_the_union_and_keeps_the_order_of_each() {
    let all = real();
    for first in &all {
        for second in &all {
            let merged = merge(&[first, second]);
            assert_eq!(content(&[&merged]), content(&[first, second]));
        }
    }
    // Adjacent versions, whose orders do not contradict each other.
    for (first, second) in [(&all[0], &all[1]), (&all[2], &all[3])] {
        let merged = merge(&[first, second]);
        for document in [first, second] {
            let order = names(&merged);
            let places: Vec<_> = names(document)
                .iter()
                .map(|name| order.iter().position(|it| it == name).unwrap())
                .collect();
            assert!(places.is_sorted(), "{order:?}");
        }
    }
}

#[test]
fn a_single_document_or_equal_ones_merge_to_themselves() {
    for document in real() {
        assert_eq!(merge(&[&document]).items, document.items);
        assert_eq!(merge(&[&document, &document]).items, document.items);
    }
    assert_eq!(merge(&[]), Document::default());
}

#[test]
fn merging_is_idempotent() {
    let all = real();
    for first in &all {
        for second in &all {
            let merged = merge(&[first, second]);
            for again in [first, second, &merged] {
                assert_eq!(merge(&[&merged, again]).items, merged.items);
            }
        }
    }
}

#[test]
fn the_merge_includes_apis_of_a_newer_server() {
    let all = real();
    let merged = merge(&[&all[2], &all[3]]);
    let content = content(&[&merged]);
    for line in [
        "storage.k8s.io/v1alpha1 volumeattributesclasses list",
        "admissionregistration.k8s.io/v1 mutatingadmissionpolicies list",
        "resource.k8s.io/v1alpha3 devicetaintrules/status get",
    ] {
        assert!(content.contains(line), "{line}");
    }
}

#[test]
fn shared_apis_can_be_left_out() {
    let document = &real()[3];
    let without = document.without(|group, version| group == "apps" && version == "v1");
    assert_eq!(without.items.len(), document.items.len() - 1);
    assert!(!names(&without).contains(&"apps"));
    assert_eq!(&document.without(|_, _| false), document);
}

proptest! {
    /// Any groups of any servers.
    #[test]
    fn any_documents_merge_to_their_union(
        picks in proptest::collection::vec(
            (0..5_usize, proptest::collection::vec(any::<prop::sample::Index>(), 0..8)), 1..4),
    ) {
        let all = real();
        let documents: Vec<Document> = picks
            .iter()
            .map(|(server, groups)| {
                let mut document = all[*server].clone();
                let mut kept: Vec<_> = groups.iter().map(|it| it.index(document.items.len())).collect();
                kept.sort_unstable();
                kept.dedup();
                document.items = kept.iter().map(|at| document.items[*at].clone()).collect();
                document
            })
            .collect();
        let references: Vec<_> = documents.iter().collect();
        let merged = merge(&references);
        prop_assert_eq!(content(&[&merged]), content(&references));
        prop_assert_eq!(merge(&[&merged, &merged]), merged);
    }
}

//! Merges the documents of several servers: peer-aggregated discovery (KEP-4020, Discovery
//! Merging).

use std::collections::BTreeMap;

use crate::document::{Document, Group, Resource, Schema, Subresource, Version};
use crate::merge_order::merge_orders;

/// Merges documents, given in the order of the server identities, so that every server gets
/// the same result. The content is the union; the order of each server is kept. A single
/// document is returned unchanged.
pub fn merge(documents: &[&Document]) -> Document {
    let [first, rest @ ..] = documents else {
        return Document::default();
    };
    if rest.iter().all(|document| document.items == first.items) {
        return Document {
            schema: Schema::V2,
            items: first.items.clone(),
        };
    }
    let lists = documents.iter().map(|document| &document.items);
    Document {
        schema: Schema::V2,
        items: merge_named(lists, Group::name, merge_groups),
    }
}

/// Merges lists of named items: those with the same name into one, in an order that agrees
/// with all lists.
fn merge_named<'a, T: Clone + 'a>(
    lists: impl Iterator<Item = &'a Vec<T>> + Clone,
    name: impl Fn(&T) -> &str,
    merge: impl Fn(&T, &T) -> T,
) -> Vec<T> {
    let mut merged = BTreeMap::<&str, T>::new();
    for item in lists.clone().flatten() {
        match merged.get_mut(name(item)) {
            None => {
                merged.insert(name(item), item.clone());
            }
            Some(before) => *before = merge(before, item),
        }
    }
    let orders: Vec<Vec<&str>> = lists.map(|list| list.iter().map(&name).collect()).collect();
    let order = merge_orders(&orders);
    order
        .into_iter()
        .filter_map(|name| merged.remove(name))
        .collect()
}

fn merge_groups(first: &Group, second: &Group) -> Group {
    if first == second {
        return first.clone();
    }
    Group {
        versions: merge_named(
            [&first.versions, &second.versions].into_iter(),
            |version| &version.version,
            merge_versions,
        ),
        metadata: first.metadata.clone(),
    }
}

fn merge_versions(first: &Version, second: &Version) -> Version {
    if first == second {
        return first.clone();
    }
    Version {
        resources: merge_named(
            [&first.resources, &second.resources].into_iter(),
            |resource| &resource.resource,
            merge_resources,
        ),
        ..first.clone()
    }
}

/// Equal fields are kept; where they differ, lists are sorted, as in kube-apiserver. In
/// addition, short names, categories and the verbs of subresources are merged.
fn merge_resources(first: &Resource, second: &Resource) -> Resource {
    if first == second {
        return first.clone();
    }
    let mut subresources = BTreeMap::<&str, Subresource>::new();
    for subresource in first.subresources.iter().chain(&second.subresources) {
        match subresources.get_mut(&*subresource.subresource) {
            None => {
                subresources.insert(&subresource.subresource, subresource.clone());
            }
            Some(before) => *before = merge_subresources(before, subresource),
        }
    }
    Resource {
        verbs: sorted_union(&first.verbs, &second.verbs),
        short_names: union(&first.short_names, &second.short_names),
        categories: union(&first.categories, &second.categories),
        subresources: subresources.into_values().collect(),
        ..first.clone()
    }
}

/// The kinds of the later one count, as in kube-apiserver.
fn merge_subresources(first: &Subresource, second: &Subresource) -> Subresource {
    if first == second {
        return first.clone();
    }
    let mut merged = second.clone();
    if first.verbs != second.verbs {
        merged.verbs = sorted_union(&first.verbs, &second.verbs);
    }
    merged.accepted_types = union(&first.accepted_types, &second.accepted_types);
    merged
}

pub(crate) fn sorted_union(first: &[String], second: &[String]) -> Vec<String> {
    let mut all = [first, second].concat();
    all.sort();
    all.dedup();
    all
}

pub(crate) fn union<T: Clone + PartialEq>(first: &[T], second: &[T]) -> Vec<T> {
    let mut all = first.to_vec();
    for item in second {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
    all
}

impl Document {
    /// The document without some group versions: those of APIs that all servers share.
    #[must_use]
    pub fn without(&self, leave_out: impl Fn(&str, &str) -> bool) -> Self {
        let mut kept = self.clone();
        for group in &mut kept.items {
            let name = group.metadata.name.clone();
            group
                .versions
                .retain(|version| !leave_out(&name, &version.version));
        }
        kept.items.retain(|group| !group.versions.is_empty());
        kept
    }

    /// The document, completed with group-versions of another document that it lacks: `take`
    /// selects them.
    #[must_use]
    pub fn completed_with(&self, other: &Self, take: impl Fn(&str, &str) -> bool) -> Self {
        let mut completed = self.clone();
        let missing = other.without(|group, version| {
            !take(group, version) || self.version(group, version).is_some()
        });
        for group in missing.items {
            let mut known = completed.items.iter_mut();
            match known.find(|it| it.metadata.name == group.metadata.name) {
                Some(known) => known.versions.extend(group.versions),
                None => completed.items.push(group),
            }
        }
        completed
    }
}

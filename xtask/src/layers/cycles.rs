//! Cycles and layers of a graph of modules.

use std::collections::{BTreeMap, BTreeSet};

use super::scan::SourceLine;
use super::{Edges, modules};

/// Modules that depend on each other, directly or through others of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    pub(crate) modules: BTreeSet<String>,
}

impl Cycle {
    /// The dependencies within it.
    pub(crate) fn edges<'a>(
        &'a self,
        edges: &'a Edges,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a SourceLine)> {
        self.modules.iter().flat_map(move |from| {
            edges
                .get(from)
                .into_iter()
                .flatten()
                .filter(|(to, _)| self.modules.contains(*to))
                .map(move |(to, place)| (from.as_str(), to.as_str(), place))
        })
    }
}

/// The strongly connected components of more than one module.
pub(crate) fn find(edges: &Edges) -> Vec<Cycle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = modules(edges)
        .into_iter()
        .map(|module| (module, reachable(edges, module)))
        .collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (module, to) in &reach {
        let back = |other: &&str| reach.get(other).is_some_and(|it| it.contains(module));
        let members: BTreeSet<&str> = to.iter().copied().filter(back).collect();
        if members.len() > 1 && seen.insert(members.clone()) {
            let modules = members.into_iter().map(str::to_owned).collect();
            found.push(Cycle { modules });
        }
    }
    found
}

/// What a module depends on, itself included only if it is in a cycle.
fn reachable<'a>(edges: &'a Edges, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(module) = open.pop() {
        for to in edges.get(module).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    found
}

/// The modules from top to bottom: each depends only on modules of later layers. The modules of
/// a cycle are one entry.
pub(crate) fn layers(edges: &Edges, cycles: &[Cycle]) -> Vec<Vec<String>> {
    let entry = |module: &str| {
        cycles
            .iter()
            .find(|cycle| cycle.modules.contains(module))
            .map_or_else(
                || module.to_owned(),
                |cycle| {
                    let names: Vec<_> = cycle.modules.iter().map(String::as_str).collect();
                    format!("[{}]", names.join(" "))
                },
            )
    };
    let mut below: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for module in modules(edges) {
        let from = entry(module);
        let to = edges.get(module).into_iter().flat_map(BTreeMap::keys);
        let to: Vec<_> = to.map(|to| entry(to)).filter(|to| *to != from).collect();
        below.entry(from).or_default().extend(to);
    }
    let mut layers = Vec::new();
    while !below.is_empty() {
        let used: BTreeSet<String> = below.values().flatten().cloned().collect();
        let top: Vec<String> = below
            .keys()
            .filter(|entry| !used.contains(*entry))
            .cloned()
            .collect();
        if top.is_empty() {
            // Cycles are entries, so this does not happen; the loop ends all the same.
            break;
        }
        for entry in &top {
            below.remove(entry);
        }
        layers.push(top);
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(lines: &[(&str, &[&str])]) -> Edges {
        lines
            .iter()
            .map(|(from, to)| {
                let to = to
                    .iter()
                    .map(|to| ((*to).to_owned(), SourceLine::default()));
                ((*from).to_owned(), to.collect())
            })
            .collect()
    }

    #[test]
    fn a_graph_without_a_cycle_has_layers() {
        let edges = graph(&[
            ("server", &["proxy", "tls"]),
            ("proxy", &["tls"]),
            ("tls", &[]),
        ]);
        assert!(find(&edges).is_empty());
        let layers = layers(&edges, &[]);
        assert_eq!(layers, [vec!["server"], vec!["proxy"], vec!["tls"]]);
    }

    #[test]
    fn modules_that_depend_on_each_other_are_one_cycle() {
        let edges = graph(&[
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["a", "d"]),
            ("d", &[]),
            ("e", &["a"]),
        ]);
        let found = find(&edges);
        assert_eq!(found.len(), 1);
        let members: Vec<_> = found[0].modules.iter().map(String::as_str).collect();
        assert_eq!(members, ["a", "b", "c"]);
        let inside: Vec<_> = found[0]
            .edges(&edges)
            .map(|(from, to, _)| (from, to))
            .collect();
        assert_eq!(inside, [("a", "b"), ("b", "c"), ("c", "a")]);
        assert_eq!(
            layers(&edges, &found),
            [vec!["e"], vec!["[a b c]"], vec!["d"]]
        );
    }

    #[test]
    fn two_cycles_are_distinguished() {
        let edges = graph(&[
            ("a", &["b"]),
            ("b", &["a"]),
            ("c", &["d", "a"]),
            ("d", &["c"]),
        ]);
        assert_eq!(find(&edges).len(), 2);
    }
}

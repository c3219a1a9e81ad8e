//! `cargo xtask layers`: the modules of each crate depend on each other in one direction only, as
//! do the modules of each folder.
//!
//! The edges are read from the source: a path that begins with `crate::` or `super::` names the
//! module that a file depends on. Tests are left out: a test may
//! use what is above the code that it tests.

mod cycles;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::step::StepError;
use cycles::Cycle;
use scan::SourceLine;

/// The dependencies between the modules of a crate or of a folder, each with the first place that
/// has it.
pub(crate) type Edges = BTreeMap<String, BTreeMap<String, SourceLine>>;

/// Prints the layers of every crate, and fails on a cycle in it or in one of its folders.
pub(crate) fn run() -> Result<(), StepError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or_else(|| StepError("xtask has no parent directory".to_owned()))?;
    let mut wrong = Vec::new();
    for directory in crates(root)? {
        let name = directory
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        for (folder, edges) in scan::edges(&directory.join("src"))? {
            let is_root = folder.is_empty();
            let name = [std::slice::from_ref(&name), &folder].concat().join("::");
            let cycles = cycles::find(&edges);
            if is_root || !cycles.is_empty() {
                println!("{name}: {}", describe(&edges, &cycles));
            }
            let found: usize = cycles.iter().map(|cycle| cycle.modules.len()).sum();
            if found > 0 {
                wrong.push(format!("{name}: {found} modules are in cycles"));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(StepError(wrong.join("; ")))
}

/// The packages of the workspace that have modules.
fn crates(root: &Path) -> Result<Vec<PathBuf>, StepError> {
    let unreadable = |error| StepError(format!("{}: {error}", root.join("crates").display()));
    let mut found: Vec<_> = std::fs::read_dir(root.join("crates"))
        .map_err(unreadable)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    found.extend(["bench", "e2e", "xtask"].map(|name| root.join(name)));
    found.retain(|directory| directory.join("src").is_dir());
    found.sort();
    Ok(found)
}

/// The layers from top to bottom, then each cycle with the places that make it.
fn describe(edges: &Edges, cycles: &[Cycle]) -> String {
    let layers = cycles::layers(edges, cycles);
    let mut text = layers
        .iter()
        .map(|layer| layer.join(" "))
        .collect::<Vec<_>>()
        .join(" → ");
    for cycle in cycles {
        let _ = write!(text, "\n  cycle of {}:", cycle.modules.len());
        for (from, to, place) in cycle.edges(edges) {
            let _ = write!(text, "\n    {from} → {to} ({place})");
        }
    }
    text
}

/// The modules of a graph, in order.
fn modules(edges: &Edges) -> BTreeSet<&str> {
    let targets = edges.values().flat_map(BTreeMap::keys);
    edges.keys().chain(targets).map(String::as_str).collect()
}

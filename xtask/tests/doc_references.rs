//! Files and tests that documents name exist, and the picture of the gateway has all its modules.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The documents, from the root of the repository.
const DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "crates/exec-proxy/KEP-2718.md",
];

/// Directories with sources.
const SOURCES: &[&str] = &[
    "crates",
    "e2e",
    "bench",
    "instruction-counts",
    "xtask",
    "fuzz",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// All files below a directory, but not build output.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The names in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let lines = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    lines.map(str::trim)
}

/// Whether this is a path of a Rust file.
fn is_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|it| it == "rs") && !name.contains([' ', '*', '{', '<'])
}

/// Whether this can only be the name of a test: other functions have shorter names.
fn is_test(name: &str) -> bool {
    let is_letter =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    name.matches('_').count() >= 4
        && name.chars().all(is_letter)
        && !name.starts_with("skewbridge_")
}

#[test]
fn files_and_tests_that_documents_name_exist() {
    let root = root();
    let mut sources = Vec::new();
    for directory in SOURCES {
        files(&root.join(directory), &mut sources);
    }
    let paths: Vec<String> = sources
        .iter()
        .map(|path| format!("/{}", path.strip_prefix(&root).unwrap().display()))
        .collect();
    let functions: HashSet<String> = sources
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| {
                let name = rest.split(['(', '<']).next()?;
                Some(name.to_owned())
            });
            names.collect::<Vec<_>>()
        })
        .collect();
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        for name in quoted(&text) {
            let is_missing = if is_file(name) {
                !paths.iter().any(|path| path.ends_with(&format!("/{name}")))
            } else {
                is_test(name) && !functions.contains(name)
            };
            if is_missing {
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The names of the modules that a file declares, without those of tests.
fn declared_modules(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            lines.next();
            continue;
        }
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let name = line
            .strip_prefix("mod ")
            .and_then(|it| it.strip_suffix(';'));
        found.extend(name.map(str::to_owned));
    }
    found
}

#[test]
fn the_picture_of_the_request_path_has_every_module_of_the_gateway() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## Request path\n").nth(1).unwrap();
    let picture = section.split("```").nth(1).unwrap();
    let is_sign = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    let words: HashSet<&str> = picture.split(is_sign).collect();
    let modules = declared_modules(&root().join("crates/gateway/src/lib.rs"));
    assert!(modules.len() > 30, "{modules:?}");
    let missing: Vec<_> = modules
        .iter()
        .filter(|it| !words.contains(it.as_str()))
        .collect();
    assert!(missing.is_empty(), "not in the picture: {missing:?}");
}

//! The messages in `docs/troubleshooting.md` exist in the code.
#![allow(clippy::unwrap_used)] // a test ends where it cannot go on

use std::fs;
use std::path::Path;

/// The tables with messages of Skewbridge only.
const TABLES: [&str; 5] = [
    "The bridge does not start",
    "The bridge is not ready",
    "503, 502 and 504",
    "Peers",
    "Client commands",
];

/// Messages of the system, of clap and of rustls, which are not in this code.
const FOREIGN: [&str; 6] = [
    "Address already in use",
    "Permission denied",
    "unexpected argument",
    "Connection refused",
    "certificate ",
    "kubernetes.default.svc",
];

/// The message that is quoted in a row, in parts between the ellipses.
fn parts(row: &str) -> Vec<String> {
    let first = row.trim_start_matches('|').split('|').next().unwrap();
    let quoted = first.split('`').skip(1).step_by(2);
    let parts = quoted.flat_map(|it| it.split('…'));
    let parts = parts.map(|it| it.trim_matches([' ', ',', ':', ';']).to_owned());
    parts.filter(|it| it.len() > 3).collect()
}

/// All sources as one text, in which literals over several lines are joined.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let mut source = fs::read_to_string(&path).unwrap();
            while let Some((before, after)) = source.split_once("\\\n") {
                source = format!("{before}{}", after.trim_start());
            }
            *text += &source;
        }
    }
}

#[test]
fn messages_in_the_troubleshooting_guide_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let guide = fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let mut code = String::new();
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let directory = entry.unwrap().path().join("src");
        if directory.exists() {
            sources(&directory, &mut code);
        }
    }
    let (mut missing, mut found) = (Vec::new(), 0);
    for section in guide.split("\n## ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap();
        let all_are_ours = TABLES.contains(&title);
        for row in body.lines().filter(|it| it.starts_with("| ")) {
            // Elsewhere a message of the log is marked.
            let first = row.split('|').nth(1).unwrap();
            if !all_are_ours && !first.trim_end().ends_with("(log)") {
                continue;
            }
            for part in parts(row) {
                if FOREIGN.iter().any(|it| part.contains(it.trim())) {
                    continue;
                }
                found += 1;
                if !code.contains(&part) {
                    missing.push(format!("{title}: {part}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "not in the code: {missing:#?}");
    assert!(found >= 50, "{found}");
}

//! The test programs that cargo has built, and which of them go first.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::shelf::failed;
use crate::step::{Failed, cargo};

/// Those that take longest, from the longest: one of them that begins late would
/// end alone. A wrong order costs time, no more.
const LONGEST: [&str; 9] = [
    "peer_rounds",
    "peer_upgrade",
    "peer_etcd",
    "translate",
    "streams",
    "replay",
    "stories",
    "rolling",
    "etcd",
];

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// As the file of the tests is called.
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Program {
    /// Whether one of its tests is meant by these arguments.
    pub(super) fn has_tests(&self, arguments: &[&str]) -> Result<bool, Failed> {
        let mut list = Command::new(&self.path);
        list.args(["--list", "--format=terse"]).args(arguments);
        match list.stdin(Stdio::null()).stderr(Stdio::inherit()).output() {
            Ok(list) if list.status.success() => Ok(!list.stdout.is_empty()),
            Ok(list) => Err(Failed(format!("{} --list: {}", self.name, list.status))),
            Err(error) => Err(Failed(format!("{} --list: {error}", self.name))),
        }
    }
}

/// Builds the bridge and the tests in the folder of this source.
///
/// As parts of the workspace: cargo takes of every dependency what the chosen packages
/// need of it together, and would build half of them once more for other packages than
/// those of the other tests.
pub(super) fn build(sources: &Path) -> Result<Vec<Program>, Failed> {
    let mut build = cargo("test --locked --workspace --features skewbridge-e2e/kubernetes");
    build.args(["--no-run", "--message-format=json-render-diagnostics"]);
    // A test of the bridge itself: for such a one cargo builds the bridge.
    build.args(["--test", "serve"]);
    let tests = sources.join("tests");
    for file in fs::read_dir(&tests).map_err(failed("e2e/tests"))? {
        let file = file.map_err(failed("e2e/tests"))?.path();
        if let (true, Some(name)) = (file.is_file(), file.file_stem()) {
            build.arg("--test").arg(name);
        }
    }
    match build.stderr(Stdio::inherit()).output() {
        Ok(ended) if ended.status.success() => {
            let messages = String::from_utf8_lossy(&ended.stdout);
            let messages = messages.lines();
            Ok(messages.filter_map(|it| announced(it, &tests)).collect())
        }
        Ok(ended) => Err(Failed(format!("cargo test --no-run: {}", ended.status))),
        Err(error) => Err(Failed(format!("cargo did not start: {error}"))),
    }
}

/// The program of tests in this folder that a message of cargo is about. Other packages
/// have tests of the same names.
fn announced(message: &str, tests: &Path) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    let target = &message["target"];
    if Path::new(target["src_path"].as_str()?).parent() != Some(tests) {
        return None;
    }
    Some(Program {
        name: target["name"].as_str()?.to_owned(),
        path: message["executable"].as_str()?.into(),
    })
}

/// In the order in which to begin.
pub(super) fn in_order(programs: Vec<Program>) -> VecDeque<Program> {
    sorted(programs, &LONGEST)
}

fn sorted(mut programs: Vec<Program>, longest: &[&str]) -> VecDeque<Program> {
    let place = |name: &str| longest.iter().position(|it| *it == name);
    programs.sort_by_key(|it| (place(&it.name).unwrap_or(longest.len()), it.name.clone()));
    programs.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> Program {
        Program {
            name: name.to_owned(),
            path: format!("/target/{name}-0a1b").into(),
        }
    }

    #[test]
    fn programs_of_tests_are_told_from_all_else_that_cargo_says() {
        let rows = [
            (
                r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"peers",
                "src_path":"/e2e/tests/peers.rs"},"executable":"/target/peers-0a1b"}"#,
                Some(program("peers")),
            ),
            (
                r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"peers",
                "src_path":"/gateway/tests/peers.rs"},"executable":"/target/peers-2c3d"}"#,
                None,
            ),
            (
                r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"e2e",
                "src_path":"/e2e/src/lib.rs"},"executable":null}"#,
                None,
            ),
            (r#"{"reason":"build-finished","success":true}"#, None),
            ("not JSON", None),
        ];
        for (message, expected) in rows {
            let announced = announced(message, Path::new("/e2e/tests"));
            assert_eq!(announced, expected, "{message}");
        }
    }

    #[test]
    fn the_longest_begin() {
        let programs = ["etcd", "watched", "plane", "replay"].map(program);
        let longest = ["replay", "gone", "plane"];
        let expected = ["replay", "plane", "etcd", "watched"].map(program);
        assert_eq!(sorted(programs.to_vec(), &longest), expected);
    }
}

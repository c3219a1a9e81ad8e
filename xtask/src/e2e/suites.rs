//! The suites of the test program, and the order in which they start.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::step::{self, StepError, cargo};

/// The suites that take longest, longest first. One that starts late would run alone at the
/// end. A wrong order only costs time.
const LONGEST: [&str; 17] = [
    "install_kubeadm",
    "upgrade_day",
    "playground_parity_newer_servers",
    "playground_parity_oldest_server",
    "client_commands",
    "client_copies",
    "run",
    "playground_every_kubectl",
    "peer_concurrent_startup",
    "peer_upgrade",
    "peer_etcd",
    "stream_translation",
    "streams",
    "response_parity",
    "controller_manager",
    "rolling_upgrade",
    "etcd",
];

/// Suites that wait for timers nearly all of their time. They run beside the others.
const IDLE: [&str; 4] = [
    "peer_rollback",
    "informers_during_upgrades",
    "peer_served_records",
    "peer_unresponsive",
];

/// The example of the client library that a test runs.
const EXAMPLE: &str = "run_a_command";

/// The test program. All suites are one program, since each program links everything.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program(PathBuf);

/// The tests of one module of it. They run in a process of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suite {
    /// The name of the module.
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// The full names of the tests.
    pub(super) tests: Vec<String>,
}

impl Suite {
    /// Whether it uses hardly any CPU time.
    pub(super) fn is_idle(&self) -> bool {
        IDLE.contains(&self.name.as_str())
    }
}

impl Program {
    /// Builds the bridge and the test program.
    ///
    /// They are built as part of the workspace: cargo unifies the features of dependencies over
    /// the chosen packages, and would build half of them again for another choice.
    pub(super) fn build(sources: &Path) -> Result<Self, StepError> {
        let mut build = cargo("test --locked --workspace --features skewbridge-e2e/kubernetes");
        build.args(["--no-run", "--message-format=json-render-diagnostics"]);
        // `serve` is an integration test of the bridge, for which cargo builds its binary.
        build.args(["--test", "serve", "--test", "kubernetes"]);
        let ended = match build.stderr(Stdio::inherit()).output() {
            Ok(ended) if ended.status.success() => ended,
            Ok(ended) => return Err(StepError(format!("cargo test --no-run: {}", ended.status))),
            Err(error) => return Err(StepError(format!("cargo did not start: {error}"))),
        };
        // `cargo test` would build the example as a test program.
        step::run(&mut cargo(&format!(
            "build --locked --workspace --features skewbridge-e2e/kubernetes --example {EXAMPLE}"
        )))?;
        let messages = String::from_utf8_lossy(&ended.stdout);
        let tests = sources.join("tests");
        let program = messages.lines().find_map(|it| test_program(it, &tests));
        program.ok_or_else(|| StepError("cargo built no test program of e2e".to_owned()))
    }

    /// The suites that match these arguments, in the order in which they start.
    pub(super) fn suites(&self, arguments: &[&str]) -> Result<VecDeque<Suite>, StepError> {
        let mut list = Command::new(&self.0);
        list.args(["--list", "--format=terse"]).args(arguments);
        let list = match list.stdin(Stdio::null()).stderr(Stdio::inherit()).output() {
            Ok(list) if list.status.success() => list.stdout,
            Ok(list) => return Err(StepError(format!("the tests' --list: {}", list.status))),
            Err(error) => return Err(StepError(format!("the tests' --list: {error}"))),
        };
        let suites = self.by_module(&String::from_utf8_lossy(&list));
        if suites.is_empty() {
            let arguments = arguments.join(" ");
            return Err(StepError(format!("no test matches `{arguments}`")));
        }
        Ok(sorted(suites, &LONGEST))
    }

    fn by_module(&self, list: &str) -> Vec<Suite> {
        let mut modules = BTreeMap::<_, Vec<_>>::new();
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            let module = test.split("::").next().unwrap_or(test);
            modules.entry(module).or_default().push(test.to_owned());
        }
        let suite = |(name, tests): (&str, _)| Suite {
            name: name.to_owned(),
            program: self.0.clone(),
            tests,
        };
        modules.into_iter().map(suite).collect()
    }
}

/// The test program below this folder, if a message of cargo names it. Other packages have
/// tests too.
fn test_program(message: &str, tests: &Path) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if !Path::new(message["target"]["src_path"].as_str()?).starts_with(tests) {
        return None;
    }
    Some(Program(message["executable"].as_str()?.into()))
}

fn sorted(mut suites: Vec<Suite>, longest: &[&str]) -> VecDeque<Suite> {
    let place = |name: &str| longest.iter().position(|it| *it == name);
    suites.sort_by_key(|it| (place(&it.name).unwrap_or(longest.len()), it.name.clone()));
    suites.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program("/target/kubernetes-0a1b".into())
    }

    #[test]
    fn the_test_program_is_recognised_among_the_messages_of_cargo() {
        let rows = [
            (
                r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"kubernetes",
                "src_path":"/e2e/tests/kubernetes/main.rs"},
                "executable":"/target/kubernetes-0a1b"}"#,
                Some(program()),
            ),
            (
                r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"serve",
                "src_path":"/skewbridge/tests/serve.rs"},"executable":"/target/serve-2c3d"}"#,
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
            let program = test_program(message, Path::new("/e2e/tests"));
            assert_eq!(program, expected, "{message}");
        }
    }

    #[test]
    fn a_suite_is_the_tests_of_a_module() {
        let list = "peers::all: test\nplane::ready: test\npeers::deep::one: test\n\n3 tests";
        let suites = program().by_module(list);
        let named = |suite: &Suite| (suite.name.clone(), suite.tests.clone());
        let owned = |tests: &[&str]| tests.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            suites.iter().map(named).collect::<Vec<_>>(),
            [
                (
                    "peers".to_owned(),
                    owned(&["peers::all", "peers::deep::one"])
                ),
                ("plane".to_owned(), owned(&["plane::ready"])),
            ]
        );
    }

    #[test]
    fn the_longest_suites_start_first() {
        let suites =
            program().by_module("etcd::a: test\nwatched::a: test\nplane::a: test\nreplay::a: test");
        let order = sorted(suites, &["replay", "gone", "plane"]);
        let order: Vec<_> = order.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(order, ["replay", "plane", "etcd", "watched"]);
    }
}

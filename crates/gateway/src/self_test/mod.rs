//! The self-test: whether upstream accepts users that the bridge asserts, and whether both trust
//! the same CAs. `control::self_test` runs it.
//!
//! If upstream does not accept the front-proxy certificate of a bridge, every user with a
//! certificate gets 401 although all other checks of the bridge pass.

pub mod evaluate;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub(crate) use self::evaluate::TestResult;

/// One of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// Upstream accepts users that the bridge asserts.
    FrontProxy,
    /// `--client-ca-file` is upstream's.
    ClientCa,
    /// `--requestheader-client-ca-file` is upstream's.
    RequestHeaderCa,
}

impl Test {
    /// The value of the metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::FrontProxy => "front_proxy",
            Self::ClientCa => "client_ca",
            Self::RequestHeaderCa => "requestheader_ca",
        }
    }
}

/// The results of the last run.
#[derive(Debug, Default)]
pub struct SelfTest {
    /// `None` before the first run has ended.
    results: ArcSwap<Option<Vec<(Test, TestResult)>>>,
}

impl SelfTest {
    /// The results of the last run.
    pub(crate) fn results(&self) -> Vec<(Test, TestResult)> {
        Option::clone(&self.results.load()).unwrap_or_default()
    }

    /// Why the bridge is not ready: a test has failed, or none has run yet.
    pub(crate) fn problem(&self) -> Option<String> {
        match &**self.results.load() {
            None => Some("the self-test has not run yet".to_owned()),
            Some(results) => joined(results, |result| match result {
                TestResult::Failed(why) => Some(why.clone()),
                _ => None,
            }),
        }
    }

    /// Warnings, and tests without a result.
    pub(crate) fn note(&self) -> Option<String> {
        joined(self.results.load().as_deref()?, |result| match result {
            TestResult::Warned(why) => Some(format!("warning: {why}")),
            TestResult::Unknown(why) => Some(format!("not tested: {why}")),
            TestResult::Passed | TestResult::Failed(_) => None,
        })
    }

    pub(crate) fn store(&self, results: Vec<(Test, TestResult)>) {
        let before = self.results();
        for (test, result) in &results {
            let known = before.iter().find(|(it, _)| it == test);
            if known.map(|(_, result)| result) != Some(result) {
                log(*test, result);
            }
        }
        self.results.store(Arc::new(Some(results)));
    }
}

fn joined(
    results: &[(Test, TestResult)],
    text: impl Fn(&TestResult) -> Option<String>,
) -> Option<String> {
    let texts: Vec<_> = results
        .iter()
        .filter_map(|(test, result)| Some(format!("{}: {}", test.as_str(), text(result)?)))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn log(test: Test, result: &TestResult) {
    let test = test.as_str();
    match result {
        TestResult::Passed => tracing::info!(test, "self-test passed"),
        TestResult::Warned(problem) => {
            tracing::warn!(test, %problem, "self-test found a difference");
        }
        TestResult::Failed(problem) => tracing::error!(test, %problem, "self-test failed"),
        TestResult::Unknown(problem) => tracing::info!(test, %problem, "self-test has no result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_or_a_missing_run_keeps_the_bridge_from_being_ready() {
        let why = || "why".to_owned();
        let rows = [
            (TestResult::Passed, None, None),
            (
                TestResult::Warned(why()),
                None,
                Some("client_ca: warning: why"),
            ),
            (
                TestResult::Unknown(why()),
                None,
                Some("client_ca: not tested: why"),
            ),
            (TestResult::Failed(why()), Some("client_ca: why"), None),
        ];
        for (result, problem, note) in rows {
            let test = SelfTest::default();
            assert_eq!(
                test.problem().as_deref(),
                Some("the self-test has not run yet")
            );
            test.store(vec![
                (Test::FrontProxy, TestResult::Passed),
                (Test::ClientCa, result),
            ]);
            assert_eq!(test.problem().as_deref(), problem);
            assert_eq!(test.note().as_deref(), note);
        }
        let nothing_to_test = SelfTest::default();
        nothing_to_test.store(Vec::new());
        assert_eq!(nothing_to_test.problem(), None);
    }
}

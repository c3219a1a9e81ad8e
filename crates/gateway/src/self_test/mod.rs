//! The self-test: whether upstream believes what the bridge asserts, and whether both believe the
//! same users. `control::self_test` runs it.
//!
//! A bridge whose front-proxy certificate is not believed answers 401 to every
//! user with a certificate, while all of its own checks pass.

pub(crate) mod judge;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub(crate) use self::judge::Verdict;

/// One of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// Upstream believes users that the bridge asserts.
    FrontProxy,
    /// `--client-ca-file` is upstream's.
    ClientCa,
    /// `--requestheader-client-ca-file` is upstream's.
    RequestHeaderCa,
}

impl Test {
    /// The value of the metric's label.
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
    results: ArcSwap<Option<Vec<(Test, Verdict)>>>,
}

impl SelfTest {
    /// The results of the last run.
    pub(crate) fn results(&self) -> Vec<(Test, Verdict)> {
        Option::clone(&self.results.load()).unwrap_or_default()
    }

    /// Why the bridge is not ready: a test has failed, or none has run yet.
    pub(crate) fn problem(&self) -> Option<String> {
        match &**self.results.load() {
            None => Some("it has not run yet".to_owned()),
            Some(results) => joined(results, |verdict| match verdict {
                Verdict::Failed(why) => Some(why.clone()),
                _ => None,
            }),
        }
    }

    /// What is good to know although no test has failed.
    pub(crate) fn note(&self) -> Option<String> {
        joined(self.results.load().as_deref()?, |verdict| match verdict {
            Verdict::Warned(why) => Some(format!("warning: {why}")),
            Verdict::Unknown(why) => Some(format!("not tested: {why}")),
            Verdict::Passed | Verdict::Failed(_) => None,
        })
    }

    pub(crate) fn store(&self, results: Vec<(Test, Verdict)>) {
        let before = self.results();
        for (test, verdict) in &results {
            let known = before.iter().find(|(it, _)| it == test);
            if known.map(|(_, verdict)| verdict) != Some(verdict) {
                log(*test, verdict);
            }
        }
        self.results.store(Arc::new(Some(results)));
    }
}

fn joined(
    results: &[(Test, Verdict)],
    text: impl Fn(&Verdict) -> Option<String>,
) -> Option<String> {
    let texts: Vec<_> = results
        .iter()
        .filter_map(|(test, verdict)| Some(format!("{}: {}", test.as_str(), text(verdict)?)))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn log(test: Test, verdict: &Verdict) {
    let test = test.as_str();
    match verdict {
        Verdict::Passed => tracing::info!(test, "self-test passed"),
        Verdict::Warned(problem) => tracing::warn!(test, %problem, "self-test found a difference"),
        Verdict::Failed(problem) => tracing::error!(test, %problem, "self-test failed"),
        Verdict::Unknown(problem) => tracing::info!(test, %problem, "self-test has no result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_or_a_missing_run_keeps_the_bridge_from_being_ready() {
        let told = || "why".to_owned();
        let rows = [
            (Verdict::Passed, None, None),
            (
                Verdict::Warned(told()),
                None,
                Some("client_ca: warning: why"),
            ),
            (
                Verdict::Unknown(told()),
                None,
                Some("client_ca: not tested: why"),
            ),
            (Verdict::Failed(told()), Some("client_ca: why"), None),
        ];
        for (verdict, problem, note) in rows {
            let test = SelfTest::default();
            assert_eq!(test.problem().as_deref(), Some("it has not run yet"));
            test.store(vec![
                (Test::FrontProxy, Verdict::Passed),
                (Test::ClientCa, verdict),
            ]);
            assert_eq!(test.problem().as_deref(), problem);
            assert_eq!(test.note().as_deref(), note);
        }
        let nothing_to_test = SelfTest::default();
        nothing_to_test.store(Vec::new());
        assert_eq!(nothing_to_test.problem(), None);
    }
}

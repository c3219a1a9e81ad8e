//! Asks upstream at the start and every few minutes whether it believes what the
//! bridge asserts, and whether both believe the same users.
//!
//! A bridge whose front-proxy certificate is not believed answers 401 to every
//! user with a certificate, while all of its own checks pass.

mod judge;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use skewbridge_k8s_api::identity::User;
use tokio::time::{sleep, timeout};

pub(crate) use self::judge::Verdict;
use self::judge::{GROUP, Published, SeenAs, USER};
use crate::handler::GatewayState;
use crate::health::UpstreamHealth;
use crate::internal_client::{Answer, InternalClient, InternalRequest, InternalTarget};
use crate::tls::own_certificates::OwnCertificates;
use crate::tls::reload::judge_published;

/// How often the tests run while they pass. Files of the bridge that change, and an
/// upstream that becomes ready, start them at once.
const INTERVAL: Duration = Duration::from_mins(5);

/// Between two runs while a test fails or says nothing: doubled each time, up to the
/// second, so that a correction is seen soon.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// How often it is looked whether a run is due.
const TICK: Duration = Duration::from_millis(200);

/// How long an answer of upstream may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A review, or a `ConfigMap` with the CA bundles of a large company.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Since 1.28.
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Of servers that have no such API: no user without rights may read it, and the
/// refusal names the user.
const FORBIDDEN_PATH: &str = "/skewbridge-self-test";

/// Where kube-apiserver publishes which CAs it believes.
const AUTHENTICATION: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

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

    fn store(&self, results: Vec<(Test, Verdict)>) {
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

/// When to run again after a run, given how many in a row were without a result or
/// failed.
fn pause(unsuccessful: u32) -> Duration {
    match unsuccessful.checked_sub(1) {
        None => INTERVAL,
        Some(earlier) => FIRST_BACKOFF
            .saturating_mul(1 << earlier.min(16))
            .min(MAX_BACKOFF),
    }
}

fn is_successful(results: &[(Test, Verdict)]) -> bool {
    let good = |it: &Verdict| matches!(it, Verdict::Passed | Verdict::Warned(_));
    results.iter().all(|(_, verdict)| good(verdict))
}

/// Runs the tests whenever they are due, until it is dropped.
pub(crate) async fn run(bridge: Arc<GatewayState>, upstream: Arc<ArcSwap<UpstreamHealth>>) {
    let mut due = Instant::now();
    let mut unsuccessful = 0;
    let mut tested: Option<Arc<OwnCertificates>> = None;
    loop {
        sleep(TICK).await;
        if **upstream.load() != UpstreamHealth::Ready {
            // After a restart it may have other flags.
            due = Instant::now();
            continue;
        }
        let files = bridge.live.own.load_full();
        let is_same = tested.as_ref().is_some_and(|it| Arc::ptr_eq(it, &files));
        if is_same && Instant::now() < due {
            continue;
        }
        // Its connection is closed after each run: the next one is minutes away.
        let results = tests(&InternalClient::new(bridge.clone()), &files).await;
        unsuccessful = if is_successful(&results) {
            0
        } else {
            unsuccessful + 1
        };
        bridge.self_test.store(results);
        due = Instant::now() + pause(unsuccessful);
        tested = Some(files);
    }
}

/// All tests that the bridge's files allow.
async fn tests(own: &InternalClient, files: &OwnCertificates) -> Vec<(Test, Verdict)> {
    let Some(certificate) = &files.front_proxy else {
        return Vec::new();
    };
    let trust = own.bridge.live.trust.load_full();
    let (seen, published) = tokio::join!(seen_as(own), published(own));
    let bridge = &*own.bridge;
    if let (Ok(published), true) = (&published, bridge.interop.is_some()) {
        let client_ca = published.client_ca.as_deref();
        judge_published(&bridge.live, certificate, client_ca, &bridge.metrics);
    }
    let mut results = vec![(
        Test::FrontProxy,
        judge::front_proxy(&seen, certificate, trust.headers()),
    )];
    if files.client_ca.is_none() && files.request_header_ca.is_none() {
        return results;
    }
    let judged = |test: Test, verdict: &dyn Fn(&Published) -> Verdict| {
        let verdict = match &published {
            Ok(published) => verdict(published),
            Err(why) => Verdict::Unknown(why.clone()),
        };
        (test, verdict)
    };
    if let Some(ca) = &files.client_ca {
        results.push(judged(Test::ClientCa, &|it| {
            judge::client_ca(ca, it.client_ca.as_deref())
        }));
    }
    if let Some(ca) = &files.request_header_ca {
        results.push(judged(Test::RequestHeaderCa, &|it| {
            judge::request_header_ca(ca, it.request_header_ca.as_deref())
        }));
    }
    results
}

/// As whom upstream sees a user that the bridge asserts.
async fn seen_as(own: &InternalClient) -> SeenAs {
    let user = User {
        name: USER.to_owned(),
        groups: vec![GROUP.to_owned()],
        ..User::default()
    };
    let party = InternalTarget::UpstreamAs(&user);
    let review = br#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let ask = InternalRequest::json(Method::POST, REVIEWS, review.to_vec());
    let seen = match answer(own, party, ask).await {
        Ok(answer) => judge::seen_as(answer.status, &answer.body),
        Err(why) => return SeenAs::Unknown(why),
    };
    if seen != SeenAs::NotOffered {
        return seen;
    }
    match answer(own, party, InternalRequest::get(FORBIDDEN_PATH)).await {
        Ok(answer) => judge::seen_as(answer.status, &answer.body),
        Err(why) => SeenAs::Unknown(why),
    }
}

/// Which CAs upstream believes.
async fn published(own: &InternalClient) -> Result<Published, String> {
    let answer = answer(
        own,
        InternalTarget::Upstream,
        InternalRequest::get(AUTHENTICATION),
    )
    .await?;
    if answer.status == StatusCode::FORBIDDEN {
        return Err(format!(
            "the bridge's own user may not read {AUTHENTICATION}: bind the Role \
             extension-apiserver-authentication-reader in kube-system"
        ));
    }
    let answer = answer.ok(AUTHENTICATION)?;
    Published::parse(&answer.body).map_err(|why| format!("{AUTHENTICATION}: {why}"))
}

async fn answer(
    own: &InternalClient,
    party: InternalTarget<'_>,
    ask: InternalRequest<'_>,
) -> Result<Answer, String> {
    let path = ask.path.to_owned();
    let asked = own.ask(party, ask.limit(MAX_ANSWER));
    match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answered) => answered,
        Err(_) => Err(format!(
            "{path}: no answer within {} s",
            ANSWER_TIMEOUT.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_repeated_soon_and_successes_every_few_minutes() {
        let seconds = Duration::from_secs;
        let rows = [
            (0, INTERVAL),
            (1, seconds(1)),
            (2, seconds(2)),
            (5, seconds(16)),
        ];
        for (unsuccessful, expected) in rows {
            assert_eq!(pause(unsuccessful), expected, "{unsuccessful}");
        }
        for unsuccessful in [6, 40, u32::MAX] {
            assert_eq!(pause(unsuccessful), MAX_BACKOFF);
        }
    }

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

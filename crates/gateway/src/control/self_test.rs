//! Runs the self-test at the start and every few minutes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use skewbridge_k8s_api::identity::User;
use tokio::time::{sleep, timeout};

use super::internal_client::{InternalClient, InternalRequest, InternalResponse, InternalTarget};
use crate::health::UpstreamHealth;
use crate::live_config::judge_published;
use crate::self_test::judge::{self, GROUP, Published, SeenAs, USER};
use crate::self_test::{Test, Verdict};
use crate::state::GatewayState;
use crate::tls::own_certificates::OwnCertificates;

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
    if let (Ok(published), true) = (&published, bridge.cluster_handle.is_some()) {
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
) -> Result<InternalResponse, String> {
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
}

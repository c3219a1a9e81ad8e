//! Runs the self-test at the start and periodically.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use skewbridge_k8s_api::identity::User;
use tokio::time::{sleep, timeout};

use super::internal_client::{InternalClient, InternalRequest, InternalResponse, InternalTarget};
use crate::health::UpstreamHealth;
use crate::live_config::check_published_ca;
use crate::self_test::evaluate::{
    self, AUTHENTICATION_CONFIG_MAP_PATH, AuthenticatedAs, FORBIDDEN_PATH, GROUP, PublishedCas,
    REVIEW, REVIEWS_PATH, USER,
};
use crate::self_test::{Test, TestResult};
use crate::state::GatewayState;
use crate::tls::own_certificates::OwnCertificates;

/// The interval between two runs while the tests pass. A change of the bridge's files, and an
/// upstream that becomes ready, start a run at once.
const RUN_INTERVAL: Duration = Duration::from_mins(5);

/// The pause between two runs while a test fails or has no result, doubled up to the maximum. It
/// is short so that a correction takes effect soon.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The interval between two checks whether a run is due.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// The timeout of each request to upstream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A `SelfSubjectReview`, or a `ConfigMap` with large CA bundles.
const MAX_RESPONSE_BYTES: usize = 4 * 1024 * 1024;

/// The pause after a run, given the number of consecutive runs that failed or had no result.
fn next_run_delay(unsuccessful: u32) -> Duration {
    match unsuccessful.checked_sub(1) {
        None => RUN_INTERVAL,
        Some(earlier) => FIRST_BACKOFF
            .saturating_mul(1 << earlier.min(16))
            .min(MAX_BACKOFF),
    }
}

fn is_successful(results: &[(Test, TestResult)]) -> bool {
    let good = |it: &TestResult| matches!(it, TestResult::Passed | TestResult::Warned(_));
    results.iter().all(|(_, result)| good(result))
}

/// Runs the tests when they are due, until it is dropped.
pub(crate) async fn run(state: Arc<GatewayState>, upstream: Arc<ArcSwap<UpstreamHealth>>) {
    let mut due = Instant::now();
    let mut unsuccessful = 0;
    let mut tested: Option<Arc<OwnCertificates>> = None;
    loop {
        sleep(TICK_INTERVAL).await;
        if **upstream.load() != UpstreamHealth::Ready {
            // After a restart upstream may have other flags.
            due = Instant::now();
            continue;
        }
        let files = state.live.own.load_full();
        let is_same = tested.as_ref().is_some_and(|it| Arc::ptr_eq(it, &files));
        if is_same && Instant::now() < due {
            continue;
        }
        // A new client for each run closes its connection: the next run is minutes away.
        let results = tests(&InternalClient::new(state.clone()), &files).await;
        unsuccessful = if is_successful(&results) {
            0
        } else {
            unsuccessful + 1
        };
        state.self_test.store(results);
        due = Instant::now() + next_run_delay(unsuccessful);
        tested = Some(files);
    }
}

/// Runs the tests for the files that are configured.
async fn tests(client: &InternalClient, files: &OwnCertificates) -> Vec<(Test, TestResult)> {
    let Some(certificate) = &files.front_proxy else {
        return Vec::new();
    };
    let trust = client.bridge.live.trust.load_full();
    let (user, published) = tokio::join!(
        fetch_authenticated_user(client),
        fetch_published_cas(client)
    );
    let bridge = &*client.bridge;
    if let (Ok(published), true) = (&published, bridge.cluster_handle.is_some()) {
        let client_ca = published.client_ca.as_deref();
        check_published_ca(&bridge.live, certificate, client_ca, &bridge.metrics);
    }
    let mut results = vec![(
        Test::FrontProxy,
        evaluate::front_proxy(&user, certificate, trust.headers()),
    )];
    if files.client_ca.is_none() && files.request_header_ca.is_none() {
        return results;
    }
    let evaluated = |test: Test, result: &dyn Fn(&PublishedCas) -> TestResult| {
        let result = match &published {
            Ok(published) => result(published),
            Err(why) => TestResult::Unknown(why.clone()),
        };
        (test, result)
    };
    if let Some(ca) = &files.client_ca {
        results.push(evaluated(Test::ClientCa, &|it| {
            evaluate::client_ca(ca, it.client_ca.as_deref())
        }));
    }
    if let Some(ca) = &files.request_header_ca {
        results.push(evaluated(Test::RequestHeaderCa, &|it| {
            evaluate::request_header_ca(ca, it.request_header_ca.as_deref())
        }));
    }
    results
}

/// The user that upstream authenticates when the bridge asserts a user.
async fn fetch_authenticated_user(client: &InternalClient) -> AuthenticatedAs {
    let user = User {
        name: USER.to_owned(),
        groups: vec![GROUP.to_owned()],
        ..User::default()
    };
    let target = InternalTarget::UpstreamAs(&user);
    let request = InternalRequest::json(Method::POST, REVIEWS_PATH, REVIEW.into());
    let user = match send(client, target, request).await {
        Ok(response) => evaluate::authenticated_as(response.status, &response.body),
        Err(why) => return AuthenticatedAs::Unknown(why),
    };
    if user != AuthenticatedAs::NotOffered {
        return user;
    }
    match send(client, target, InternalRequest::get(FORBIDDEN_PATH)).await {
        Ok(response) => evaluate::authenticated_as(response.status, &response.body),
        Err(why) => AuthenticatedAs::Unknown(why),
    }
}

/// The CAs that upstream trusts.
async fn fetch_published_cas(client: &InternalClient) -> Result<PublishedCas, String> {
    let response = send(
        client,
        InternalTarget::Upstream,
        InternalRequest::get(AUTHENTICATION_CONFIG_MAP_PATH),
    )
    .await?;
    if response.status == StatusCode::FORBIDDEN {
        return Err(format!(
            "the bridge's own user may not read {AUTHENTICATION_CONFIG_MAP_PATH}: bind the Role \
             extension-apiserver-authentication-reader in kube-system"
        ));
    }
    let response = response.ok(AUTHENTICATION_CONFIG_MAP_PATH)?;
    PublishedCas::parse(&response.body)
        .map_err(|why| format!("{AUTHENTICATION_CONFIG_MAP_PATH}: {why}"))
}

async fn send(
    client: &InternalClient,
    target: InternalTarget<'_>,
    request: InternalRequest<'_>,
) -> Result<InternalResponse, String> {
    let path = request.path.to_owned();
    let response = client.request(target, request.max_response_bytes(MAX_RESPONSE_BYTES));
    match timeout(REQUEST_TIMEOUT, response).await {
        Ok(response) => response,
        Err(_) => Err(format!(
            "{path}: no answer within {} s",
            REQUEST_TIMEOUT.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_runs_are_retried_with_backoff_and_successful_runs_are_periodic() {
        let seconds = Duration::from_secs;
        let rows = [
            (0, RUN_INTERVAL),
            (1, seconds(1)),
            (2, seconds(2)),
            (5, seconds(16)),
        ];
        for (unsuccessful, expected) in rows {
            assert_eq!(next_run_delay(unsuccessful), expected, "{unsuccessful}");
        }
        for unsuccessful in [6, 40, u32::MAX] {
            assert_eq!(next_run_delay(unsuccessful), MAX_BACKOFF);
        }
    }
}

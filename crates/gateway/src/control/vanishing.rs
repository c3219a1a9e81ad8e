//! Keeps the ledger of vanishing APIs current: the newest version in the cluster, and the users of
//! bearer tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_released_apis::Minor;
use tokio::sync::mpsc;
use tokio::time::interval;

use super::review;
use super::reviewer::Reviewer;
use crate::access_log::sanitized;
use crate::balancer::Backends;
use crate::log_budget::LogBudget;
use crate::vanishing::apis::{Releases, WatchedApis};
use crate::vanishing::ledger::Ledger;
use crate::vanishing::token_users::{TokenUser, UnreviewedCall};

/// The interval between two checks of the versions in the cluster.
const VERSION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two checks for idle connections to kube-apiserver.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The delay after a failed review until the next one. Meanwhile calls are counted without a user, so that
/// no token waits for a kube-apiserver that does not answer.
const REVIEW_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Limits log lines about tokens whose user is not known.
static FAILED_REVIEW_LOG: LogBudget = LogBudget::new(10);

/// Runs until it is dropped.
pub(crate) async fn run(
    backends: Arc<Backends>,
    ledger: Arc<Ledger>,
    unreviewed: mpsc::Receiver<Box<UnreviewedCall>>,
) {
    tokio::join!(
        follow_versions(&backends, &ledger),
        review_tokens(Reviewer::new(backends.clone()), &ledger, unreviewed),
    );
}

/// Replaces the watched APIs when the newest version in the cluster changes.
async fn follow_versions(backends: &Backends, ledger: &Ledger) {
    let mut ticks = interval(VERSION_CHECK_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(releases) = newest_server(backends).and_then(|it| ledger.changed_releases(it))
        else {
            continue;
        };
        // Reading the data takes some milliseconds.
        let apis = tokio::task::spawn_blocking(move || WatchedApis::of(releases)).await;
        let apis = apis.map_err(|error| error.to_string());
        let apis = apis.and_then(|apis| apis.map_err(|error| error.to_string()));
        let apis = apis.unwrap_or_else(|error| {
            tracing::error!(
                "the APIs that the target release does not serve cannot be determined: {error}"
            );
            WatchedApis::unknown(releases)
        });
        log_target(&apis);
        ledger.set_watched_apis(apis);
    }
}

fn log_target(apis: &WatchedApis) {
    let Releases {
        newest: Some(newest),
        target: Some(target),
    } = apis.releases
    else {
        return;
    };
    if apis.is_target_known {
        tracing::info!(%newest, %target, "calls to APIs that the target release does not serve are counted");
    } else {
        tracing::info!(%newest, %target, "this program does not know what the target release removes: only calls to deprecated APIs are counted; --watch-target sets another release");
    }
}

/// The newest version of the backends and of their peers.
fn newest_server(backends: &Backends) -> Option<Minor> {
    let all = backends.all();
    let versions = all.iter().flat_map(|backend| {
        let own = backend.state.upstream_version.load().as_deref().copied();
        let cluster = backend.state.cluster_handle.as_ref();
        let peers = cluster.map(|it| it.cluster.load().peers.peers.clone());
        let peers = peers.unwrap_or_default().into_iter();
        own.into_iter()
            .chain(peers.filter_map(|peer| peer.version()))
    });
    versions.map(Minor::from).max()
}

/// Reviews tokens one after the other: a review is a request to kube-apiserver.
async fn review_tokens(
    reviewer: Reviewer,
    ledger: &Ledger,
    mut unreviewed: mpsc::Receiver<Box<UnreviewedCall>>,
) {
    let mut idle_check = interval(IDLE_CHECK_INTERVAL);
    let mut failed_at: Option<Instant> = None;
    loop {
        let call = tokio::select! {
            call = unreviewed.recv() => call,
            _ = idle_check.tick() => {
                reviewer.close_idle_connections();
                continue;
            }
        };
        let Some(call) = call else { return };
        let has_failed_recently = failed_at.is_some_and(|at| at.elapsed() < REVIEW_RETRY_DELAY);
        let user = match ledger.cached_user(&call) {
            Some(user) => user,
            None if has_failed_recently => TokenUser::Unknown,
            None => {
                let answer = user_of(&reviewer, call.token.expose()).await;
                failed_at = answer.is_none().then(Instant::now);
                let user = answer.unwrap_or(TokenUser::Unknown);
                ledger.cache_user(&call, user.clone());
                user
            }
        };
        ledger.count_reviewed(*call, user);
    }
}

/// The user of a token; `None` if no kube-apiserver has answered the review.
async fn user_of(reviewer: &Reviewer, token: &str) -> Option<TokenUser> {
    let review = review::token_review(token);
    let answer = reviewer.send(review::TOKEN_REVIEWS, review).await;
    match answer.and_then(|it| review::user_of_token(&it)) {
        Ok(Some(user)) => Some(TokenUser::Named(sanitized(&user.name))),
        // It has expired since.
        Ok(None) => Some(TokenUser::Unknown),
        Err(error) => {
            if let Some(suppressed) = FAILED_REVIEW_LOG.take(Instant::now()) {
                tracing::warn!(
                    suppressed = (suppressed > 0).then_some(suppressed),
                    "the user of a bearer token is not known, so that /debug/vanishing does not name it: {error}; a \
                     403 here means that the user of the bridge lacks the rights of `skewbridge manifest rbac`"
                );
            }
            None
        }
    }
}

//! The ledger: calls to APIs that the next minor version does not serve, by caller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use skewbridge_k8s_api::time::Time;
use skewbridge_released_apis::Minor;
use tokio::sync::mpsc;

use super::apis::{Releases, WatchedApis};
use super::caller_identity::{CallerIdentity, CallerUser};
use super::report::{Call, CallStats, Report};
use super::table::{AddResult, CallerKey, Table, WatchedCall};
use super::token_users::{TokenUser, TokenUsers, UnreviewedCall};
use crate::metrics::Metrics;

/// The user of a token that has not been reviewed.
const UNREVIEWED_USER: &str = "(bearer token)";

/// The ledger of a bridge, for all its backends. Only calls that are counted take a lock.
#[derive(Debug)]
pub(crate) struct Ledger {
    watched: ArcSwap<WatchedApis>,
    /// `--watch-target`
    watch_target: Option<Minor>,
    table: Mutex<Table>,
    token_users: TokenUsers,
    metrics: Metrics,
    since: Time,
}

impl Ledger {
    /// An empty ledger, and the queue of calls whose tokens have to be reviewed.
    pub(crate) fn new(
        watch_target: Option<Minor>,
        metrics: &Metrics,
    ) -> (Arc<Self>, mpsc::Receiver<Box<UnreviewedCall>>) {
        let (token_users, unreviewed) = TokenUsers::new();
        let ledger = Self {
            watched: ArcSwap::default(),
            watch_target,
            table: Mutex::default(),
            token_users,
            metrics: metrics.clone(),
            since: SystemTime::now().into(),
        };
        (Arc::new(ledger), unreviewed)
    }

    /// The releases to compare if this is the newest server of the cluster; `None` if they are being
    /// compared.
    pub(crate) fn changed_releases(&self, newest: Minor) -> Option<Releases> {
        let releases = Releases::new(Some(newest), self.watch_target);
        (self.watched.load().releases != releases).then_some(releases)
    }

    /// Replaces the APIs whose calls are counted.
    pub(crate) fn set_watched_apis(&self, apis: WatchedApis) {
        self.watched.store(Arc::new(apis));
    }

    pub(super) fn watched_apis(&self) -> impl std::ops::Deref<Target = Arc<WatchedApis>> {
        self.watched.load()
    }

    /// Counts a call.
    pub(super) fn record(&self, caller: CallerIdentity, call: WatchedCall) {
        self.metrics
            .vanishing()
            .called(&call.api, call.reason.as_str());
        let CallerIdentity {
            user,
            impersonated_user,
            user_agent,
        } = caller;
        let key = |user: String| CallerKey {
            user,
            impersonated_user: impersonated_user.clone(),
            user_agent: user_agent.clone(),
        };
        let token = match user {
            CallerUser::Named(user) => return self.count(key(user), call),
            CallerUser::Unknown => return self.count(key(UNREVIEWED_USER.to_owned()), call),
            CallerUser::Token(token) => token,
        };
        let digest = TokenUsers::digest(token.expose());
        if let Some(user) = self.token_users.get(&digest, Instant::now()) {
            return self.count(key(user_name(user)), call);
        }
        let unreviewed = Box::new(UnreviewedCall {
            token,
            digest,
            impersonated_user,
            user_agent,
            call,
        });
        if let Err(call) = self.token_users.review(unreviewed) {
            self.count_reviewed(*call, TokenUser::Unknown);
        }
    }

    /// The user of the token of a call, by an earlier review.
    pub(crate) fn cached_user(&self, call: &UnreviewedCall) -> Option<TokenUser> {
        self.token_users.get(&call.digest, Instant::now())
    }

    /// Stores the result of a review for further calls.
    pub(crate) fn cache_user(&self, call: &UnreviewedCall, user: TokenUser) {
        self.token_users.put(call.digest, user, Instant::now());
    }

    /// Counts a call after the review of its token.
    pub(crate) fn count_reviewed(&self, call: UnreviewedCall, user: TokenUser) {
        let caller = CallerKey {
            user: user_name(user),
            impersonated_user: call.impersonated_user,
            user_agent: call.user_agent,
        };
        self.count(caller, call.call);
    }

    fn count(&self, caller: CallerKey, call: WatchedCall) {
        let now = SystemTime::now().into();
        let mut table = self.table();
        let added = table.add(caller, call, now);
        let callers = table.callers();
        drop(table);
        self.metrics.vanishing().callers(callers);
        if added == AddResult::Overflow {
            self.metrics.vanishing().overflowed();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All calls, sorted by API and caller.
    pub(crate) fn report(&self) -> Report {
        let (mut calls, other) = {
            let table = self.table();
            (table.calls(), table.other())
        };
        calls.sort_by(|a, b| a.key().cmp(&b.key()));
        self.make_report(calls, other)
    }

    /// The most severe calls, and how many entries are left out.
    pub(crate) fn most_severe(&self, max: usize) -> (Report, usize) {
        let (calls, entries, other) = {
            let table = self.table();
            (table.most_severe(max), table.entries(), table.other())
        };
        let left_out = entries - calls.len();
        (self.make_report(calls, other), left_out)
    }

    fn make_report(&self, calls: Vec<Call>, other: Option<CallStats>) -> Report {
        let watched = self.watched.load();
        Report {
            since: self.since,
            newest_server: watched.releases.newest,
            target: watched.releases.target.or(self.watch_target),
            target_known: watched.is_target_known,
            calls,
            other,
        }
    }
}

fn user_name(user: TokenUser) -> String {
    match user {
        TokenUser::Named(name) => name,
        TokenUser::Unknown => UNREVIEWED_USER.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_released_apis::ApiName;

    use super::*;
    use crate::vanishing::apis::Reason;

    /// The limit that the documentation promises.
    const LIMIT: usize = 10_000;

    #[test]
    fn callers_beyond_the_limit_are_counted_together() {
        let metrics = Metrics::new();
        let (ledger, _unreviewed) = Ledger::new(None, &metrics);
        for number in 0..LIMIT + 50 {
            let caller = CallerIdentity {
                user: CallerUser::Named("alice".to_owned()),
                impersonated_user: None,
                user_agent: number.to_string(),
            };
            let [group, version, resource] = ["g", "v1", "r"].map(str::to_owned);
            let call = WatchedCall {
                api: ApiName {
                    group,
                    version,
                    resource,
                },
                verb: "list",
                reason: Reason::Removed,
                unavailable_in: None,
                replacement: None,
            };
            ledger.record(caller, call);
        }
        let report = ledger.report();
        assert_eq!(report.calls.len(), LIMIT);
        assert!(report.calls.is_sorted_by(|a, b| a.key() < b.key()));
        assert_eq!(report.other.unwrap().count, 50);
        let (few, left_out) = ledger.most_severe(3);
        assert_eq!((few.calls.len(), left_out), (3, LIMIT - 3));
        assert_eq!(few.other, report.other);
        let scrape = metrics.text();
        for sample in [
            "skewbridge_vanishing_requests_total{group=\"g\",version=\"v1\",resource=\"r\",reason=\"removed\"} 10050",
            "skewbridge_vanishing_callers 10000",
            "skewbridge_vanishing_requests_without_entry_total 50",
        ] {
            assert!(scrape.contains(sample), "{sample}");
        }
    }
}

//! Limits failed authentications per source.
//!
//! Each failure costs the bridge a signature check, or kube-apiserver a token check, possibly with a
//! webhook. A source that fails too often gets 429 until its budget has recovered. Behind a load
//! balancer or NAT many clients have one source address, so the limit does not apply to connections
//! that have authenticated, and to tokens that kube-apiserver has accepted recently. New tokens take
//! precedence over those that have failed: a tenth of each budget is reserved for first attempts,
//! and an attempt that succeeds costs nothing.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use skewbridge_k8s_api::status::Status;

use crate::config::Limits;
use crate::metrics::connections::Credential;
use crate::source_network::SourceNetwork;

/// The number of stored budgets, 100 bytes each. A source whose budget is evicted begins with a full
/// one, which is better than an unbounded table.
const MAX_BUDGETS: usize = 4096;

/// The number of stored accepted tokens, and of rejected ones, 100 bytes each.
const MAX_TOKENS: usize = 4096;

/// How long an accepted token is stored: service account tokens are renewed every hour.
const ACCEPTED_TOKEN_TTL: Duration = Duration::from_hours(1);

/// How long a rejected token is stored: as long as an empty budget takes to refill.
const REJECTED_TOKEN_TTL: Duration = REFILL_PERIOD;

/// The time in which an empty budget refills: the flag is in failures per minute.
const REFILL_PERIOD: Duration = Duration::from_mins(1);

/// The share of a budget that is reserved for first attempts, at least one of them.
const FIRST_ATTEMPT_SHARE: f64 = 0.1;

/// `Retry-After` of clients that are rejected together is spread over this time.
const RETRY_SPREAD_SECONDS: u64 = 10;

/// Whether an attempt to authenticate is the first one of a client, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptKind {
    /// Neither its connection nor its token has failed recently.
    First,
    /// A previous attempt has failed.
    Retry,
}

/// The budgets of all sources and kinds of credentials, over plain data. An attempt takes a unit of
/// its budget, and returns it unless it fails.
#[derive(Debug)]
struct Budgets {
    /// The failures per minute, and the size of a budget.
    allowed: f64,
    by_source: HashMap<Key, Budget>,
    /// By the time of the last attempt, for eviction.
    by_age: BTreeSet<(Instant, Key)>,
}

type Key = (SourceNetwork, Credential);

#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Units that were left at the time of the last change.
    left: f64,
    at: Instant,
}

impl Budgets {
    fn new(allowed: u32) -> Self {
        Self {
            allowed: allowed.into(),
            by_source: HashMap::new(),
            by_age: BTreeSet::new(),
        }
    }

    fn rate(&self) -> f64 {
        self.allowed / REFILL_PERIOD.as_secs_f64()
    }

    fn left(&self, key: Key, now: Instant) -> f64 {
        self.by_source.get(&key).map_or(self.allowed, |budget| {
            let passed = now.saturating_duration_since(budget.at).as_secs_f64();
            (budget.left + passed * self.rate()).min(self.allowed)
        })
    }

    /// Takes a unit, or returns how long the source has to wait for one.
    fn take(&mut self, key: Key, attempt: AttemptKind, now: Instant) -> Result<(), Duration> {
        let reserved = match attempt {
            AttemptKind::First => 0.0,
            AttemptKind::Retry => (self.allowed * FIRST_ATTEMPT_SHARE).max(1.0),
        };
        let left = self.left(key, now);
        let missing = (1.0 + reserved).min(self.allowed) - left;
        if missing > 0.0 {
            return Err(Duration::from_secs_f64(missing / self.rate()));
        }
        self.set(key, left - 1.0, now);
        Ok(())
    }

    /// Takes a unit for the failure of a token that had been accepted before.
    fn charge(&mut self, key: Key, now: Instant) {
        self.set(key, (self.left(key, now) - 1.0).max(0.0), now);
    }

    /// Returns the unit of an attempt that has not failed.
    fn refund(&mut self, key: Key, now: Instant) {
        if self.by_source.contains_key(&key) {
            self.set(key, self.left(key, now) + 1.0, now);
        }
    }

    fn set(&mut self, key: Key, left: f64, now: Instant) {
        if let Some(before) = self.by_source.remove(&key) {
            self.by_age.remove(&(before.at, key));
        }
        if left >= self.allowed {
            // A full budget is not stored.
            return;
        }
        self.by_source.insert(key, Budget { left, at: now });
        self.by_age.insert((now, key));
        if self.by_source.len() > MAX_BUDGETS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_source.remove(&oldest);
        }
    }
}

/// Tokens that kube-apiserver has accepted or rejected, as keyed hashes. A collision only affects
/// the limit: it authenticates nothing.
#[derive(Debug)]
struct Tokens {
    ttl: Duration,
    until: HashMap<u64, Instant>,
    by_age: BTreeSet<(Instant, u64)>,
}

impl Tokens {
    fn with_ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            until: HashMap::new(),
            by_age: BTreeSet::new(),
        }
    }

    fn insert(&mut self, token: u64, now: Instant) {
        self.remove(token);
        let until = now + self.ttl;
        self.until.insert(token, until);
        self.by_age.insert((until, token));
        if self.until.len() > MAX_TOKENS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.until.remove(&oldest);
        }
    }

    fn remove(&mut self, token: u64) {
        if let Some(until) = self.until.remove(&token) {
            self.by_age.remove(&(until, token));
        }
    }

    fn contains(&self, token: u64, now: Instant) -> bool {
        self.until.get(&token).is_some_and(|until| *until > now)
    }
}

/// The limit, shared by all connections. It only applies to requests on connections that have not
/// authenticated.
#[derive(Debug)]
pub(crate) struct AuthenticationLimit {
    /// `None` without a limit.
    shared: Option<Mutex<Shared>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shared {
    budgets: Budgets,
    accepted: Tokens,
    refused: Tokens,
}

/// The hash of the token of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenHash(u64);

impl AuthenticationLimit {
    /// The limit of the flags.
    pub(crate) fn of(limits: &Limits) -> Self {
        Self::new(limits.max_authentication_failures_per_source)
    }

    /// A limit of failures per minute and source; 0 disables it.
    fn new(failures_per_minute: u32) -> Self {
        let shared = (failures_per_minute > 0).then(|| {
            Mutex::new(Shared {
                budgets: Budgets::new(failures_per_minute),
                accepted: Tokens::with_ttl(ACCEPTED_TOKEN_TTL),
                refused: Tokens::with_ttl(REJECTED_TOKEN_TTL),
            })
        });
        Self {
            shared,
            hasher: RandomState::new(),
        }
    }

    /// The hash of the headers in which kube-apiserver accepts a token.
    pub(crate) fn token(&self, headers: &HeaderMap) -> TokenHash {
        let values = headers.get_all(AUTHORIZATION).iter();
        let values = values.chain(headers.get_all(SEC_WEBSOCKET_PROTOCOL));
        let values: Vec<_> = values.map(http::HeaderValue::as_bytes).collect();
        TokenHash(self.hasher.hash_one(values))
    }

    /// Begins an attempt, or returns the response if the source has failed too often. `has_failed`:
    /// an authentication on this connection has failed. `seed` spreads `Retry-After`.
    pub(crate) fn begin(
        &self,
        source: IpAddr,
        credential: Credential,
        token: Option<TokenHash>,
        has_failed: bool,
        seed: u64,
    ) -> Result<Attempt<'_>, Status> {
        let key = (SourceNetwork::of(source), credential);
        let mut attempt = Attempt {
            limit: self,
            key,
            token,
            holds_unit: false,
            is_sent: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
        };
        let Some(mut shared) = self.lock() else {
            return Ok(attempt);
        };
        let now = Instant::now();
        let is_known = |tokens: &Tokens| token.is_some_and(|it| tokens.contains(it.0, now));
        if !is_known(&shared.accepted) {
            let is_retry = has_failed || is_known(&shared.refused);
            let attempted = if is_retry {
                AttemptKind::Retry
            } else {
                AttemptKind::First
            };
            if let Err(wait) = shared.budgets.take(key, attempted, now) {
                // The attempt is dropped below and has no unit to return.
                drop(shared);
                return Err(too_many_failures(retry_after_seconds(wait, seed)));
            }
            attempt.holds_unit = true;
        }
        drop(shared);
        Ok(attempt)
    }

    /// Whether kube-apiserver has accepted this token recently. Always false without a limit.
    pub(crate) fn knows(&self, TokenHash(token): TokenHash) -> bool {
        let shared = self.lock();
        shared.is_some_and(|it| it.accepted.contains(token, Instant::now()))
    }

    fn lock(&self) -> Option<MutexGuard<'_, Shared>> {
        let shared = self.shared.as_ref()?;
        Some(shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The outcome of an attempt to authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The credential was accepted.
    Accepted,
    /// The credential was rejected.
    Refused,
    /// The credential has not been verified, as far as is known.
    Undecided,
}

/// The authentication of a request on a connection that has not authenticated. A request that was
/// sent to kube-apiserver and cancelled before its response counts as a failure, because
/// kube-apiserver has done the work. So does a request whose connection the bridge evicts:
/// otherwise a source with too many connections could try tokens for free.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    limit: &'a AuthenticationLimit,
    key: Key,
    token: Option<TokenHash>,
    holds_unit: bool,
    is_sent: AtomicBool,
    is_settled: AtomicBool,
}

impl Attempt<'_> {
    /// The credential is about to be sent to kube-apiserver.
    pub(crate) fn sent(&self) {
        self.is_sent.store(true, Ordering::Relaxed);
    }

    /// Sets the outcome. The first one counts.
    pub(crate) fn settle(&self, outcome: Outcome) {
        if self.is_settled.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(mut shared) = self.limit.lock() else {
            return;
        };
        let (now, token) = (Instant::now(), self.token.map(|it| it.0));
        match outcome {
            Outcome::Refused if self.holds_unit => {}
            Outcome::Refused => shared.budgets.charge(self.key, now),
            Outcome::Accepted | Outcome::Undecided if self.holds_unit => {
                shared.budgets.refund(self.key, now);
            }
            Outcome::Accepted | Outcome::Undecided => {}
        }
        match (outcome, token) {
            (Outcome::Accepted, Some(token)) => {
                shared.refused.remove(token);
                shared.accepted.insert(token, now);
            }
            (Outcome::Refused, Some(token)) => {
                shared.accepted.remove(token);
                shared.refused.insert(token, now);
            }
            _ => {}
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !*self.is_sent.get_mut() {
            self.settle(Outcome::Undecided);
        }
    }
}

/// `Retry-After` for a client that has to wait this long, spread so that clients that are rejected
/// together retry at different times.
fn retry_after_seconds(wait: Duration, seed: u64) -> u32 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    // The high bits: the low ones of a multiplied counter have a short period.
    let spread = (seed >> 32) % RETRY_SPREAD_SECONDS;
    u32::try_from(seconds.max(1) + spread).unwrap_or(u32::MAX)
}

fn too_many_failures(seconds: u32) -> Status {
    Status {
        retry_after_seconds: Some(seconds),
        ..Status::new(
            429,
            "TooManyRequests",
            "too many failed authentications from this address \
             (--max-authentication-failures-per-source)",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn source(number: u32) -> SourceNetwork {
        SourceNetwork::of(Ipv4Addr::from_bits(number).into())
    }

    fn after(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_budget_is_used_up_and_recovers() {
        let start = Instant::now();
        let key = (source(1), Credential::Token);
        // Two a second.
        let mut budgets = Budgets::new(120);
        for _ in 0..120 {
            assert_eq!(budgets.take(key, AttemptKind::First, start), Ok(()));
        }
        let half = Err(Duration::from_millis(500));
        assert_eq!(budgets.take(key, AttemptKind::First, start), half);
        for other in [
            (source(2), Credential::Token),
            (source(1), Credential::Certificate),
        ] {
            assert_eq!(
                budgets.take(other, AttemptKind::First, start),
                Ok(()),
                "{other:?}"
            );
        }
        let later = after(1, start);
        assert_eq!(budgets.take(key, AttemptKind::First, later), Ok(()));
        assert_eq!(budgets.take(key, AttemptKind::First, later), Ok(()));
        assert_eq!(budgets.take(key, AttemptKind::First, later), half);
        // A budget does not grow beyond its size.
        let later = after(1000, start);
        for _ in 0..120 {
            assert_eq!(budgets.take(key, AttemptKind::First, later), Ok(()));
        }
        assert_eq!(budgets.take(key, AttemptKind::First, later), half);
    }

    #[test]
    fn the_last_tenth_is_reserved_for_first_attempts() {
        let now = Instant::now();
        let key = (source(1), Credential::Token);
        for (allowed, retries, first) in [(600, 540, 60), (10, 9, 1), (2, 1, 1), (1, 1, 0)] {
            let mut budgets = Budgets::new(allowed);
            let mut admitted = |attempt| {
                let mut count = 0;
                while budgets.take(key, attempt, now).is_ok() {
                    count += 1;
                }
                count
            };
            assert_eq!(admitted(AttemptKind::Retry), retries, "{allowed}");
            assert_eq!(admitted(AttemptKind::First), first, "{allowed}");
        }
    }

    #[test]
    fn an_attempt_that_does_not_fail_costs_nothing() {
        let now = Instant::now();
        let key = (source(1), Credential::Token);
        let mut budgets = Budgets::new(2);
        for _ in 0..100 {
            assert_eq!(budgets.take(key, AttemptKind::First, now), Ok(()));
            budgets.refund(key, now);
        }
        assert!(budgets.by_source.is_empty() && budgets.by_age.is_empty());
    }

    /// One event of a source: milliseconds since the previous one, whether the attempt is a first
    /// one, and whether it fails.
    fn events() -> impl Strategy<Value = Vec<(u64, bool, bool)>> {
        let event = (0_u64..2000, any::<bool>(), any::<bool>());
        prop::collection::vec(event, 0..400)
    }

    proptest! {
        /// Guessing stays limited for any mix of attempts and successes.
        #[test]
        fn no_sequence_fails_more_often_than_the_budget_allows(
            allowed in 1_u32..100,
            events in events(),
        ) {
            let key = (source(1), Credential::Token);
            let mut budgets = Budgets::new(allowed);
            let (start, mut passed, mut failures) = (Instant::now(), 0, 0_u32);
            for (millis, is_first, fails) in events {
                passed += millis;
                let now = start + Duration::from_millis(passed);
                let attempt = if is_first { AttemptKind::First } else { AttemptKind::Retry };
                if budgets.take(key, attempt, now).is_ok() {
                    if fails {
                        failures += 1;
                    } else {
                        budgets.refund(key, now);
                    }
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "minutes")]
            let refilled = f64::from(allowed) * passed as f64 / 60_000.0;
            prop_assert!(f64::from(failures) <= f64::from(allowed) + refilled + 1e-6);
        }

        /// A new token is tried at once, whatever number of retries there is.
        #[test]
        fn retries_never_prevent_a_first_attempt(
            allowed in 2_u32..100,
            events in events(),
        ) {
            let key = (source(1), Credential::Token);
            let mut budgets = Budgets::new(allowed);
            let (start, mut passed) = (Instant::now(), 0);
            for (millis, is_first, _) in events {
                passed += millis;
                let now = start + Duration::from_millis(passed);
                if is_first {
                    prop_assert_eq!(budgets.take(key, AttemptKind::First, now), Ok(()));
                    budgets.refund(key, now);
                } else {
                    // It fails, if it is admitted.
                    let _ = budgets.take(key, AttemptKind::Retry, now);
                }
            }
        }
    }

    #[test]
    fn sources_are_bounded_and_the_oldest_is_evicted() {
        let start = Instant::now();
        let mut budgets = Budgets::new(1);
        let bound = u32::try_from(MAX_BUDGETS).unwrap();
        let key = |number| (source(number), Credential::Token);
        for number in 0..bound {
            budgets.charge(key(number), start + Duration::from_nanos(number.into()));
        }
        let now = start + Duration::from_nanos(bound.into());
        budgets.charge(key(0), now);
        budgets.charge(key(bound), now);
        assert_eq!(budgets.by_source.len(), MAX_BUDGETS);
        assert_eq!(budgets.by_age.len(), MAX_BUDGETS);
        assert!(budgets.by_source.contains_key(&key(0)));
        assert!(!budgets.by_source.contains_key(&key(1)));
    }

    #[test]
    fn tokens_are_bounded_and_expire() {
        let start = Instant::now();
        let mut tokens = Tokens::with_ttl(ACCEPTED_TOKEN_TTL);
        let count = u64::try_from(MAX_TOKENS).unwrap();
        for token in 0..=count {
            tokens.insert(token, start + Duration::from_nanos(token));
        }
        assert_eq!(tokens.until.len(), MAX_TOKENS);
        assert_eq!(tokens.by_age.len(), MAX_TOKENS);
        assert!(!tokens.contains(0, start));
        assert!(tokens.contains(1, start));
        assert!(!tokens.contains(count, start + ACCEPTED_TOKEN_TTL * 2));
        tokens.remove(1);
        assert_eq!(tokens.until.len(), tokens.by_age.len());
        assert!(!tokens.contains(1, start));
    }

    #[test]
    fn retry_after_is_spread() {
        let wait = Duration::from_millis(1500);
        let mut seconds: Vec<_> = (0..RETRY_SPREAD_SECONDS)
            .map(|seed| retry_after_seconds(wait, seed << 32))
            .collect();
        seconds.sort_unstable();
        assert_eq!(seconds, (2..12).collect::<Vec<_>>());
        assert_eq!(retry_after_seconds(Duration::from_nanos(1), 0), 1);
    }

    fn token(limit: &AuthenticationLimit, value: &'static str) -> TokenHash {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        limit.token(&headers)
    }

    fn begin<'a>(
        limit: &'a AuthenticationLimit,
        value: &'static str,
        has_failed: bool,
    ) -> Option<Attempt<'a>> {
        let token = Some(token(limit, value));
        let begun = limit.begin(ADDRESS, Credential::Token, token, has_failed, 0);
        begun.map_err(|status| assert_eq!(status.code, 429)).ok()
    }

    fn settles(limit: &AuthenticationLimit, value: &'static str, outcome: Outcome) {
        begin(limit, value, false).unwrap().settle(outcome);
    }

    #[test]
    fn an_accepted_token_is_not_limited_until_it_is_rejected() {
        let limit = AuthenticationLimit::new(1);
        settles(&limit, "Bearer good", Outcome::Accepted);
        settles(&limit, "Bearer bad", Outcome::Refused);
        assert!(begin(&limit, "Bearer good", true).is_some());
        assert!(begin(&limit, "Bearer other", false).is_none());
        let certificate = limit.begin(ADDRESS, Credential::Certificate, None, false, 0);
        assert!(certificate.is_ok());
        // The token was revoked.
        settles(&limit, "Bearer good", Outcome::Refused);
        assert!(begin(&limit, "Bearer good", false).is_none());
        // Without a limit, all attempts are admitted.
        let unlimited = AuthenticationLimit::new(0);
        settles(&unlimited, "Bearer bad", Outcome::Refused);
        assert!(begin(&unlimited, "Bearer bad", true).is_some());
    }

    #[test]
    fn an_attempt_is_a_retry_if_its_connection_or_its_token_has_failed() {
        let limit = AuthenticationLimit::new(2);
        settles(&limit, "Bearer expired", Outcome::Refused);
        assert!(begin(&limit, "Bearer expired", false).is_none());
        assert!(begin(&limit, "Bearer new", true).is_none());
        assert!(begin(&limit, "Bearer new", false).is_some());
    }

    #[test]
    fn an_attempt_that_was_sent_and_cancelled_is_a_failure_and_one_that_was_not_sent_is_none() {
        let limit = AuthenticationLimit::new(2);
        for _ in 0..10 {
            drop(begin(&limit, "Bearer a", false).unwrap());
        }
        for outcome in [Outcome::Accepted, Outcome::Undecided] {
            let attempt = begin(&limit, "Bearer b", false).unwrap();
            attempt.sent();
            attempt.settle(outcome);
        }
        for value in ["Bearer c", "Bearer d"] {
            begin(&limit, value, false).unwrap().sent();
        }
        assert!(begin(&limit, "Bearer e", false).is_none());
    }
}

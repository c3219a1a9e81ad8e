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

    fn units_left(&self, key: Key, now: Instant) -> f64 {
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
        let left = self.units_left(key, now);
        let missing = (1.0 + reserved).min(self.allowed) - left;
        if missing > 0.0 {
            return Err(Duration::from_secs_f64(missing / self.rate()));
        }
        self.set(key, left - 1.0, now);
        Ok(())
    }

    /// Takes a unit for the failure of a token that had been accepted before.
    fn charge(&mut self, key: Key, now: Instant) {
        self.set(key, (self.units_left(key, now) - 1.0).max(0.0), now);
    }

    /// Returns the unit of an attempt that has not failed.
    fn refund(&mut self, key: Key, now: Instant) {
        if self.by_source.contains_key(&key) {
            self.set(key, self.units_left(key, now) + 1.0, now);
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
    pub(crate) fn is_accepted(&self, TokenHash(token): TokenHash) -> bool {
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
mod tests;

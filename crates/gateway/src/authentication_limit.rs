//! Limits failed authentications per source.
//!
//! Each failure costs the bridge a signature check or kube-apiserver a token check, with
//! its webhook where there is one. A source that fails too often is answered 429 until its
//! budget has recovered. Load balancers give many clients one source address, so the limit
//! spares all that have ever succeeded: connections that have authenticated, and tokens
//! that kube-apiserver has accepted lately.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use skewbridge_api::status::Status;

use crate::config::Limits;
use crate::source_network::SourceNetwork;

/// Budgets that are remembered: 100 bytes each. A source that is forgotten begins with a
/// whole budget, which costs less than a table without a bound.
const MAX_BUDGETS: usize = 4096;

/// Accepted tokens that are remembered, 100 bytes each.
const MAX_ACCEPTED_TOKENS: usize = 4096;

/// How long an accepted token is remembered: service account tokens are renewed each hour.
const ACCEPTED_TOKEN_TTL: Duration = Duration::from_hours(1);

/// The period in which an empty budget is filled: the flag counts failures per minute.
const REFILL_PERIOD: Duration = Duration::from_mins(1);

/// The kind of a credential. Each has a budget of its own, so that refused certificates do
/// not slow down tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Credential {
    Token,
    Signature,
    Certificate,
}

impl Credential {
    pub(crate) const ALL: [Self; 3] = [Self::Token, Self::Signature, Self::Certificate];

    /// As a metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Signature => "signature",
            Self::Certificate => "certificate",
        }
    }
}

/// The budgets of one kind of credential and all sources, over plain data.
#[derive(Debug)]
struct Budgets {
    /// Failures a minute, and at once.
    allowed: f64,
    by_source: HashMap<Key, Budget>,
    /// By the time of the last failure, for the bound.
    by_age: BTreeSet<(Instant, Key)>,
}

type Key = (SourceNetwork, Credential);

#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Failures that are left at the time of the last one; below 0 for failures that were
    /// under way together.
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

    /// How long a source has to wait, if it has to.
    fn wait(&self, key: Key, now: Instant) -> Option<Duration> {
        let missing = 1.0 - self.left(key, now);
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / self.rate()))
    }

    fn fail(&mut self, key: Key, now: Instant) {
        let left = (self.left(key, now) - 1.0).max(-self.allowed);
        if let Some(before) = self.by_source.insert(key, Budget { left, at: now }) {
            self.by_age.remove(&(before.at, key));
        }
        self.by_age.insert((now, key));
        if self.by_source.len() > MAX_BUDGETS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_source.remove(&oldest);
        }
    }
}

/// Tokens that kube-apiserver has accepted, as keyed hashes: a hash that collides spares a
/// token the limit, and proves nothing.
#[derive(Debug, Default)]
struct AcceptedTokens {
    until: HashMap<u64, Instant>,
    by_age: BTreeSet<(Instant, u64)>,
}

impl AcceptedTokens {
    fn insert(&mut self, token: u64, now: Instant) {
        let until = now + ACCEPTED_TOKEN_TTL;
        if let Some(before) = self.until.insert(token, until) {
            self.by_age.remove(&(before, token));
        }
        self.by_age.insert((until, token));
        if self.until.len() > MAX_ACCEPTED_TOKENS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.until.remove(&oldest);
        }
    }

    fn contains(&self, token: u64, now: Instant) -> bool {
        self.until.get(&token).is_some_and(|until| *until > now)
    }
}

/// The limit as all connections share it. It is asked only for requests on connections
/// that have not authenticated.
#[derive(Debug)]
pub(crate) struct AuthenticationLimit {
    /// None: there is no limit.
    shared: Option<Mutex<Shared>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shared {
    budgets: Budgets,
    accepted: AcceptedTokens,
}

/// The token of a request, as the limit knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenHash(u64);

impl AuthenticationLimit {
    /// As the flags say.
    pub(crate) fn of(limits: &Limits) -> Self {
        Self::new(limits.max_authentication_failures_per_source)
    }

    /// This many failures a minute of one source; 0 is no limit.
    fn new(failures_per_minute: u32) -> Self {
        let shared = (failures_per_minute > 0).then(|| {
            Mutex::new(Shared {
                budgets: Budgets::new(failures_per_minute),
                accepted: AcceptedTokens::default(),
            })
        });
        Self {
            shared,
            hasher: RandomState::new(),
        }
    }

    /// What the headers bring where kube-apiserver looks for a token.
    pub(crate) fn token(&self, headers: &HeaderMap) -> TokenHash {
        let values = headers.get_all(AUTHORIZATION).iter();
        let values = values.chain(headers.get_all(SEC_WEBSOCKET_PROTOCOL));
        let values: Vec<_> = values.map(http::HeaderValue::as_bytes).collect();
        TokenHash(self.hasher.hash_one(values))
    }

    /// The answer to a request with this credential, if the source has failed too often.
    pub(crate) fn check(
        &self,
        source: IpAddr,
        credential: Credential,
        token: Option<TokenHash>,
    ) -> Option<Status> {
        let now = Instant::now();
        let shared = self.shared.as_ref()?;
        let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if token.is_some_and(|TokenHash(token)| shared.accepted.contains(token, now)) {
            return None;
        }
        let key = (SourceNetwork::of(source), credential);
        let wait = shared.budgets.wait(key, now)?;
        Some(too_many(wait))
    }

    /// Whether kube-apiserver has accepted this token lately. Not known without a limit.
    pub(crate) fn knows(&self, TokenHash(token): TokenHash) -> bool {
        self.shared.as_ref().is_some_and(|shared| {
            let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.accepted.contains(token, Instant::now())
        })
    }

    /// An authentication of this source has failed.
    pub(crate) fn failed(&self, source: IpAddr, credential: Credential) {
        if let Some(shared) = &self.shared {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (SourceNetwork::of(source), credential);
            shared.budgets.fail(key, Instant::now());
        }
    }

    /// kube-apiserver has accepted this token.
    pub(crate) fn accepted(&self, TokenHash(token): TokenHash) {
        if let Some(shared) = &self.shared {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.accepted.insert(token, Instant::now());
        }
    }
}

fn too_many(wait: Duration) -> Status {
    let seconds = wait.as_secs_f64().ceil().clamp(1.0, 60.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1 to 60"
    )]
    let seconds = seconds as u32;
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

    use super::*;

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
        for _ in 0..119 {
            budgets.fail(key, start);
            assert_eq!(budgets.wait(key, start), None);
        }
        budgets.fail(key, start);
        let half = Some(Duration::from_millis(500));
        assert_eq!(budgets.wait(key, start), half);
        assert_eq!(budgets.wait(key, after(1, start)), None);
        for other in [
            (source(2), Credential::Token),
            (source(1), Credential::Certificate),
        ] {
            assert_eq!(budgets.wait(other, start), None, "{other:?}");
        }
        // What was under way together is paid back, and no more than a budget of it.
        for _ in 0..1000 {
            budgets.fail(key, start);
        }
        assert!(budgets.wait(key, after(60, start)).is_some());
        assert_eq!(budgets.wait(key, after(61, start)), None);
        // A budget does not grow.
        for _ in 0..120 {
            budgets.fail(key, after(1000, start));
        }
        assert!(budgets.wait(key, after(1000, start)).is_some());
    }

    #[test]
    fn sources_are_bounded_and_the_oldest_is_forgotten() {
        let start = Instant::now();
        let mut budgets = Budgets::new(1);
        let bound = u32::try_from(MAX_BUDGETS).unwrap();
        let key = |number| (source(number), Credential::Token);
        for number in 0..bound {
            budgets.fail(key(number), after(number.into(), start));
        }
        let now = after(bound.into(), start);
        budgets.fail(key(0), now);
        budgets.fail(key(bound), now);
        assert_eq!(budgets.by_source.len(), MAX_BUDGETS);
        assert_eq!(budgets.by_age.len(), MAX_BUDGETS);
        assert!(budgets.by_source.contains_key(&key(0)));
        assert!(!budgets.by_source.contains_key(&key(1)));
    }

    #[test]
    fn accepted_tokens_are_bounded_and_forgotten() {
        let start = Instant::now();
        let mut accepted = AcceptedTokens::default();
        let count = u64::try_from(MAX_ACCEPTED_TOKENS).unwrap();
        for token in 0..=count {
            accepted.insert(token, start + Duration::from_nanos(token));
        }
        assert_eq!(accepted.until.len(), MAX_ACCEPTED_TOKENS);
        assert_eq!(accepted.by_age.len(), MAX_ACCEPTED_TOKENS);
        assert!(!accepted.contains(0, start));
        assert!(accepted.contains(1, start));
        assert!(!accepted.contains(count, start + ACCEPTED_TOKEN_TTL * 2));
    }

    #[test]
    fn a_token_that_was_accepted_is_not_limited() {
        let limit = AuthenticationLimit::new(1);
        let address = Ipv4Addr::LOCALHOST.into();
        let token = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            limit.token(&headers)
        };
        let (good, bad) = (token("Bearer good"), token("Bearer bad"));
        limit.accepted(good);
        limit.failed(address, Credential::Token);
        assert_eq!(limit.check(address, Credential::Token, Some(good)), None);
        let refused = limit.check(address, Credential::Token, Some(bad)).unwrap();
        assert_eq!((refused.code, refused.retry_after_seconds), (429, Some(60)));
        assert_eq!(limit.check(address, Credential::Certificate, None), None);
        // Without a limit, everything passes.
        let unlimited = AuthenticationLimit::new(0);
        unlimited.failed(address, Credential::Token);
        assert_eq!(unlimited.check(address, Credential::Token, Some(bad)), None);
    }
}

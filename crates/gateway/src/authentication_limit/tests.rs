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

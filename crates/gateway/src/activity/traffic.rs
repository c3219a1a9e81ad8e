//! Requests by server and reason: how many, how many failed, and their latencies.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::placement_rule::Rule;

/// Why a server got a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteReason {
    /// No rule demanded another server.
    Local,
    /// The bridge answered for all servers, after the server has permitted it.
    Discovery,
    /// A stream that is translated.
    Stream,
    /// A placement rule demanded the server.
    Placed(Rule),
    /// The bridge refused the request, or no server answered it.
    Refused,
}

impl RouteReason {
    /// The reasons for which a server gets a request.
    pub(crate) const ALL: [Self; 8] = [
        Self::Local,
        Self::Discovery,
        Self::Stream,
        Self::Placed(Rule::Available),
        Self::Placed(Rule::Serves),
        Self::Placed(Rule::Admission),
        Self::Placed(Rule::Fields),
        Self::Placed(Rule::Version),
    ];

    /// The name in documents: that of the route, or of the rule.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Discovery => "discovery",
            Self::Stream => "stream",
            Self::Placed(rule) => rule.as_str(),
            Self::Refused => "refused",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Local | Self::Refused => 0,
            Self::Discovery => 1,
            Self::Stream => 2,
            Self::Placed(Rule::Available) => 3,
            Self::Placed(Rule::Serves) => 4,
            Self::Placed(Rule::Admission) => 5,
            Self::Placed(Rule::Fields) => 6,
            Self::Placed(Rule::Version) => 7,
        }
    }
}

/// The traffic of one server.
#[derive(Debug)]
pub(crate) struct ServerTraffic {
    name: Arc<str>,
    by_reason: [RequestCounters; RouteReason::ALL.len()],
}

impl ServerTraffic {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            by_reason: array::from_fn(|_| RequestCounters::default()),
        }
    }

    /// Its identity.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn counters(&self, reason: RouteReason) -> &RequestCounters {
        &self.by_reason[reason.index()]
    }
}

/// The number of latency buckets: the upper bound of the first is [`FIRST_BUCKET_BOUND`], and doubles with
/// each. The last one has no bound.
pub(crate) const LATENCY_BUCKET_COUNT: usize = 17;

/// The upper bound of the first latency bucket. That of the last but one is 8 s.
pub(crate) const FIRST_BUCKET_BOUND: Duration = Duration::from_micros(250);

/// Counters of requests that have ended.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    requests: AtomicU64,
    errors: AtomicU64,
    latencies: [AtomicU64; LATENCY_BUCKET_COUNT],
}

/// The values of [`RequestCounters`] at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CountersSnapshot {
    pub(crate) requests: u64,
    /// Responses with a status of 500 or higher.
    pub(crate) errors: u64,
    pub(crate) latencies: [u64; LATENCY_BUCKET_COUNT],
}

impl RequestCounters {
    /// A request has ended. Long-running ones have no latency.
    pub(crate) fn add(&self, code: u16, latency: Option<Duration>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if code >= 500 {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(latency) = latency {
            self.latencies[bucket_of(latency)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> CountersSnapshot {
        let value = |it: &AtomicU64| it.load(Ordering::Relaxed);
        CountersSnapshot {
            requests: value(&self.requests),
            errors: value(&self.errors),
            latencies: array::from_fn(|bucket| value(&self.latencies[bucket])),
        }
    }
}

impl CountersSnapshot {
    /// What was added since an earlier snapshot.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            errors: self.errors.saturating_sub(before.errors),
            latencies: array::from_fn(|bucket| {
                self.latencies[bucket].saturating_sub(before.latencies[bucket])
            }),
        }
    }

    /// The latency that this share of the requests did not exceed: the upper bound of its bucket.
    /// `None` without requests.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.latencies.iter().sum();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank from 0 to the number of requests"
        )]
        let rank = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.latencies.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(upper_bound(bucket))
    }
}

fn bucket_of(latency: Duration) -> usize {
    (0..LATENCY_BUCKET_COUNT - 1)
        .find(|bucket| latency <= upper_bound(*bucket))
        .unwrap_or(LATENCY_BUCKET_COUNT - 1)
}

/// That of the last bucket is double the one before.
fn upper_bound(bucket: usize) -> Duration {
    let doublings = u32::try_from(bucket).unwrap_or(u32::MAX);
    FIRST_BUCKET_BOUND.saturating_mul(2_u32.saturating_pow(doublings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_counters_of_its_own() {
        let server = ServerTraffic::new("a".into());
        for (index, reason) in RouteReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index, "{}", reason.as_str());
            for _ in 0..=index {
                server.counters(reason).add(200, None);
            }
        }
        let counts = RouteReason::ALL.map(|reason| server.counters(reason).snapshot().requests);
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn responses_from_500_on_are_errors() {
        let counters = RequestCounters::default();
        for code in [200, 404, 429, 499, 500, 503] {
            counters.add(code, None);
        }
        let found = counters.snapshot();
        assert_eq!((found.requests, found.errors), (6, 2));
        assert_eq!(found.quantile(0.5), None, "no request has a latency");
    }

    #[test]
    fn a_quantile_is_the_upper_bound_of_its_bucket() {
        let millis = |text: &[u64], share| {
            let counters = RequestCounters::default();
            for latency in text {
                counters.add(200, Some(Duration::from_millis(*latency)));
            }
            let quantile = counters.snapshot().quantile(share);
            quantile.map(|it| it.as_secs_f64() * 1e3)
        };
        let ninety_nine_fast: Vec<u64> = [[1; 99].as_slice(), &[700]].concat();
        for (latencies, share, expected) in [
            (&[][..], 0.5, None),
            (&[0], 0.5, Some(0.25)),
            (&[1], 0.5, Some(1.0)),
            (&[2, 2, 100], 0.5, Some(2.0)),
            (&[2, 2, 100], 0.99, Some(128.0)),
            (&ninety_nine_fast, 0.99, Some(1.0)),
            (&ninety_nine_fast, 1.0, Some(1024.0)),
            (&[3_600_000], 0.5, Some(16_384.0)),
        ] {
            assert_eq!(millis(latencies, share), expected, "{latencies:?} {share}");
        }
    }

    #[test]
    fn a_difference_is_never_negative() {
        let counters = RequestCounters::default();
        counters.add(200, Some(Duration::ZERO));
        let before = counters.snapshot();
        counters.add(500, Some(Duration::ZERO));
        let since = counters.snapshot().since(&before);
        assert_eq!(
            (since.requests, since.errors, since.latencies[0]),
            (1, 1, 1)
        );
        assert_eq!(
            before.since(&counters.snapshot()),
            CountersSnapshot::default()
        );
    }
}

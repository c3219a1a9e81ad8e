//! Rates of the last minute, from snapshots of the counters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TrafficRow;
use super::traffic::{CountersSnapshot, RouteReason};

/// The interval between two snapshots.
pub(crate) const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// The snapshots that are kept: of the last minute, and the one before it.
const MAX_SNAPSHOTS: usize = 61;

/// The time over which requests per second are averaged, in snapshots.
const RATE_SNAPSHOTS: usize = 10;

/// The snapshots of the last minute.
#[derive(Debug, Default)]
pub(crate) struct RateWindow {
    /// The oldest first.
    snapshots: VecDeque<(Instant, Vec<TrafficRow>)>,
}

/// The rate of one server for one reason.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rate {
    pub(crate) server: Option<Arc<str>>,
    pub(crate) reason: RouteReason,
    /// Requests since the start of the bridge.
    pub(crate) total: CountersSnapshot,
    /// Requests per second in the last 10 s.
    pub(crate) per_second: f64,
    /// The last minute.
    pub(crate) last_minute: CountersSnapshot,
}

impl RateWindow {
    /// Adds a snapshot, unless the last one is too recent.
    pub(crate) fn record(&mut self, at: Instant, traffic: impl FnOnce() -> Vec<TrafficRow>) {
        let last = self.snapshots.back();
        if last.is_some_and(|(last, _)| at < *last + SNAPSHOT_INTERVAL) {
            return;
        }
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back((at, traffic()));
    }

    /// The rates up to these counters.
    pub(crate) fn of(&self, now: Instant, traffic: Vec<TrafficRow>) -> Vec<Rate> {
        let recent = self.snapshots.len().saturating_sub(RATE_SNAPSHOTS);
        let (recent, minute) = (self.snapshots.get(recent), self.snapshots.front());
        let rates = traffic.into_iter().map(|row| {
            let since = |snapshot: Option<&(Instant, Vec<TrafficRow>)>| match snapshot {
                Some((at, rows)) => {
                    let before = counters(rows, &row);
                    let passed = now.saturating_duration_since(*at);
                    (row.counters.since(&before), passed)
                }
                None => (CountersSnapshot::default(), Duration::ZERO),
            };
            let (since_recent, passed) = since(recent);
            Rate {
                per_second: per_second(since_recent.requests, passed),
                last_minute: since(minute).0,
                server: row.server,
                reason: row.reason,
                total: row.counters,
            }
        });
        rates.collect()
    }

    /// Requests of each second of the last minute, the oldest first.
    pub(crate) fn history(&self) -> Vec<u64> {
        let sum = |rows: &[TrafficRow]| rows.iter().map(|row| row.counters.requests).sum::<u64>();
        let totals: Vec<_> = self.snapshots.iter().map(|(_, rows)| sum(rows)).collect();
        let pairs = totals.windows(2);
        pairs.map(|it| it[1].saturating_sub(it[0])).collect()
    }
}

fn counters(rows: &[TrafficRow], of: &TrafficRow) -> CountersSnapshot {
    let is_same = |row: &&TrafficRow| row.server == of.server && row.reason == of.reason;
    let row = rows.iter().find(is_same);
    row.map_or_else(CountersSnapshot::default, |row| row.counters.clone())
}

/// Rounded to a tenth.
fn per_second(requests: u64, passed: Duration) -> f64 {
    if passed.is_zero() {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate is rounded anyway")]
    let rate = requests as f64 / passed.as_secs_f64();
    (rate * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(requests: u64) -> TrafficRow {
        TrafficRow {
            server: Some("a".into()),
            reason: RouteReason::Local,
            counters: CountersSnapshot {
                requests,
                ..CountersSnapshot::default()
            },
        }
    }

    #[test]
    fn rates_are_averages_of_ten_seconds_and_counts_of_a_minute() {
        let start = Instant::now();
        let mut rates = RateWindow::default();
        // Ten requests in each second, and 50 in each of the last 10.
        let total = |second: u64| second * 10 + second.saturating_sub(110) * 40;
        for second in 0..120 {
            let at = start + Duration::from_secs(second);
            rates.record(at, || vec![row(total(second))]);
            // Too early.
            rates.record(at + Duration::from_millis(500), || {
                panic!("no snapshot is due")
            });
        }
        let now = start + Duration::from_mins(2);
        let found = rates.of(now, vec![row(total(120))]);
        assert_eq!(found.len(), 1);
        assert!(
            (found[0].per_second - 50.0).abs() < f64::EPSILON,
            "{found:?}"
        );
        assert_eq!(found[0].last_minute.requests, total(120) - total(59));
        assert_eq!(found[0].total.requests, total(120));
        let history = rates.history();
        assert_eq!(history.len(), 60);
        assert_eq!((history[0], history[59]), (10, 50));
    }

    #[test]
    fn the_first_requests_of_a_server_count_from_zero() {
        let start = Instant::now();
        let mut rates = RateWindow::default();
        assert_eq!(rates.of(start, vec![row(5)])[0].last_minute.requests, 0);
        rates.record(start, Vec::new);
        let found = rates.of(start + Duration::from_secs(2), vec![row(5)]);
        assert!(
            (found[0].per_second - 2.5).abs() < f64::EPSILON,
            "{found:?}"
        );
        assert!(rates.history().is_empty());
    }
}

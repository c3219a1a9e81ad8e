//! Whether discovery of the local server in the cluster snapshot can be out of date. Pure, except
//! for the clock of writes.
//!
//! kube-apiserver changes its discovery when a `CustomResourceDefinition` or an `APIService` changes,
//! when it restarts, and when it reads discovery of an aggregated API server again. The first is an
//! event for the peer controller, the second raises a doubt (`LocalHealth::confirmation`), the third has
//! no event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};

/// How long after a change of a CRD or an `APIService` discovery of the local server may take to show it.
pub(crate) const SETTLING_PERIOD: Duration = Duration::from_secs(5);

/// How old discovery may be where there are aggregated APIs: kube-apiserver reads their servers again
/// every 60 s, without an event.
const AGGREGATED_APIS_MAX_AGE: Duration = Duration::from_millis(50);

/// After this time discovery is read again beside its use.
pub(crate) const REVALIDATION_AGE: Duration = Duration::from_secs(1);

/// The age up to which discovery is used. An event that was lost, for instance with a connection that was
/// cut without notice, has no effect for longer.
const MAX_AGE: Duration = Duration::from_secs(2);

/// What the cluster snapshot says about the age of its discovery of the local server.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDiscoveryState {
    /// When the last successful poll of the local server began.
    pub(crate) polled_at: Option<Instant>,
    /// Since when the watches of CRDs and `APIServices` are open. Events before that were missed.
    pub(crate) watched_since: Option<Instant>,
    /// Until when a change of them may become visible.
    pub(crate) settling_until: Option<Instant>,
    /// Whether there are APIs of aggregated servers.
    pub(crate) has_aggregated_apis: bool,
}

/// Whether a request can be answered from the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Nothing can have changed.
    Current,
    /// Nothing can have changed, but a poll is due that the request does not wait for.
    RevalidationDue,
    /// The local server may have other APIs by now: the request waits for a poll.
    Outdated,
}

impl LocalDiscoveryState {
    /// `last_write` is the last write of a CRD or an `APIService` through this bridge; `is_confirmed` is
    /// `false` if the local server may have been replaced since it was polled.
    pub(crate) fn freshness(
        &self,
        last_write: Option<Instant>,
        is_confirmed: bool,
        now: Instant,
    ) -> Freshness {
        let Some(polled_at) = self.polled_at else {
            return Freshness::Outdated;
        };
        let age = now.saturating_duration_since(polled_at);
        let is_written = last_write
            .is_some_and(|written| polled_at <= written || now < written + SETTLING_PERIOD);
        let is_settling = self.settling_until.is_some_and(|until| now < until);
        let is_watched = self.watched_since.is_some_and(|since| polled_at >= since);
        let max_age = if self.has_aggregated_apis {
            AGGREGATED_APIS_MAX_AGE
        } else {
            MAX_AGE
        };
        if !is_confirmed || !is_watched || is_written || is_settling || age > max_age {
            Freshness::Outdated
        } else if age > REVALIDATION_AGE {
            Freshness::RevalidationDue
        } else {
            Freshness::Current
        }
    }
}

/// Whether a request writes an object that changes discovery of all servers.
pub(crate) fn changes_shared_apis(info: &RequestInfo<'_>) -> bool {
    let is_write = matches!(
        info.verb,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
    );
    is_write
        && info.kind == Kind::Resource
        && matches!(
            (info.group, info.resource),
            ("apiextensions.k8s.io", "customresourcedefinitions")
                | ("apiregistration.k8s.io", "apiservices")
        )
}

/// The time of the last event of a kind, without a lock.
#[derive(Debug)]
pub(crate) struct EventClock {
    start: Instant,
    /// Nanoseconds from `start`, plus one; 0 if there was no event.
    last: AtomicU64,
}

impl EventClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn note(&self, at: Instant) {
        self.last.fetch_max(self.stamp(at), Ordering::AcqRel);
    }

    /// Notes the event unless there was one within this period. Of concurrent calls one succeeds.
    pub(crate) fn note_after(&self, period: Duration, now: Instant) -> bool {
        let last = self.last.load(Ordering::Acquire);
        let is_due = self.time(last).is_none_or(|last| now >= last + period);
        let stamp = self.stamp(now);
        is_due
            && (self.last)
                .compare_exchange(last, stamp, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    pub(crate) fn last(&self) -> Option<Instant> {
        self.time(self.last.load(Ordering::Acquire))
    }

    fn stamp(&self, at: Instant) -> u64 {
        let nanos = at.saturating_duration_since(self.start).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1
    }

    fn time(&self, stamp: u64) -> Option<Instant> {
        (stamp > 0).then(|| self.start + Duration::from_nanos(stamp - 1))
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    /// The state two minutes after the start of the test, and what happens before.
    #[derive(Clone, Copy)]
    struct Row {
        /// Milliseconds since the poll began.
        age: Option<u64>,
        /// Milliseconds since the watches were opened.
        watched_for: Option<u64>,
        is_confirmed: bool,
        /// Milliseconds until a change has settled.
        settles_in: Option<u64>,
        /// Milliseconds since a write through this bridge.
        written_ago: Option<u64>,
        has_aggregated_apis: bool,
    }

    const QUIET: Row = Row {
        age: Some(900),
        watched_for: Some(60_000),
        is_confirmed: true,
        settles_in: None,
        written_ago: None,
        has_aggregated_apis: false,
    };

    #[test]
    #[allow(clippy::too_many_lines)] // the table of all rules
    fn a_request_waits_for_a_poll_only_if_something_can_have_changed() {
        use Freshness::{Current, Outdated, RevalidationDue};
        let rows = [
            ("quiet", QUIET, Current),
            ("not polled", Row { age: None, ..QUIET }, Outdated),
            (
                "a poll is due",
                Row {
                    age: Some(1_001),
                    ..QUIET
                },
                RevalidationDue,
            ),
            (
                "the last poll is too old",
                Row {
                    age: Some(2_001),
                    ..QUIET
                },
                Outdated,
            ),
            (
                "no watch",
                Row {
                    watched_for: None,
                    ..QUIET
                },
                Outdated,
            ),
            (
                "a watch that was opened after the poll",
                Row {
                    watched_for: Some(899),
                    ..QUIET
                },
                Outdated,
            ),
            (
                "maybe restarted",
                Row {
                    is_confirmed: false,
                    ..QUIET
                },
                Outdated,
            ),
            (
                "a CRD has changed",
                Row {
                    settles_in: Some(1),
                    ..QUIET
                },
                Outdated,
            ),
            (
                "a CRD has changed and settled",
                Row {
                    settles_in: Some(0),
                    ..QUIET
                },
                Current,
            ),
            (
                "written and polled, not settled",
                Row {
                    written_ago: Some(4_999),
                    ..QUIET
                },
                Outdated,
            ),
            (
                "written, polled and settled",
                Row {
                    written_ago: Some(5_000),
                    ..QUIET
                },
                Current,
            ),
            (
                "written after the poll",
                Row {
                    age: Some(6_000),
                    written_ago: Some(6_000),
                    ..QUIET
                },
                Outdated,
            ),
            (
                "aggregated APIs, polled a moment ago",
                Row {
                    age: Some(50),
                    has_aggregated_apis: true,
                    ..QUIET
                },
                Current,
            ),
            (
                "aggregated APIs",
                Row {
                    age: Some(51),
                    has_aggregated_apis: true,
                    ..QUIET
                },
                Outdated,
            ),
        ];
        let now = Instant::now() + Duration::from_mins(2);
        let ago = |millis| now.checked_sub(Duration::from_millis(millis)).unwrap();
        for (name, row, expected) in rows {
            let state = LocalDiscoveryState {
                polled_at: row.age.map(ago),
                watched_since: row.watched_for.map(ago),
                settling_until: row.settles_in.map(|it| now + Duration::from_millis(it)),
                has_aggregated_apis: row.has_aggregated_apis,
            };
            let freshness = state.freshness(row.written_ago.map(ago), row.is_confirmed, now);
            assert_eq!(freshness, expected, "{name}");
        }
    }

    #[test]
    fn writes_of_crds_and_api_services_change_shared_apis() {
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let rows = [
            (Method::POST, crds.to_owned(), true),
            (Method::PUT, format!("{crds}/a.b"), true),
            (Method::PATCH, format!("{crds}/a.b/status"), true),
            (Method::DELETE, format!("{crds}/a.b"), true),
            (Method::DELETE, crds.to_owned(), true),
            (Method::GET, crds.to_owned(), false),
            (
                Method::POST,
                "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
                true,
            ),
            (Method::POST, "/api/v1/namespaces/a/pods".to_owned(), false),
            (
                Method::POST,
                "/apis/example.com/v1/customresourcedefinitions".to_owned(),
                false,
            ),
        ];
        for (method, path, expected) in rows {
            let decoded = DecodedPath::new(&path).unwrap();
            let info = RequestInfo::parse(&method, &decoded, None);
            assert_eq!(changes_shared_apis(&info), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_clock_has_the_last_event_and_notes_one_a_period() {
        let clock = EventClock::new();
        assert_eq!(clock.last(), None);
        let now = clock.start + Duration::from_secs(3);
        clock.note(now);
        clock.note(clock.start);
        assert_eq!(clock.last(), Some(now));
        let period = Duration::from_secs(1);
        assert!(!clock.note_after(period, now + period / 2));
        assert!(clock.note_after(period, now + period));
        assert!(!clock.note_after(period, now + period));
        assert_eq!(clock.last(), Some(now + period));
    }
}

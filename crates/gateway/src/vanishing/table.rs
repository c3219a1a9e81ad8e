//! The calls of the ledger by caller, with a bound on their number. Without I/O.

use std::cmp::Reverse;
use std::collections::HashMap;

use skewbridge_k8s_api::time::Time;
use skewbridge_released_apis::{ApiName, Minor};

use super::apis::Reason;
use super::report::{Call, CallStats};

/// The maximum number of callers: pairs of user and user agent. In a cluster of this size every
/// kubelet could be one. A caller takes 200 to 2,400 bytes.
const MAX_CALLERS: usize = 10_000;

/// The maximum number of entries: a caller may use several APIs and verbs. An entry takes 200 bytes.
const MAX_ENTRIES: usize = 40_000;

/// The caller that an entry counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallerKey {
    pub(super) user: String,
    pub(super) impersonated_user: Option<String>,
    pub(super) user_agent: String,
}

/// A call that is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchedCall {
    pub(super) api: ApiName,
    pub(super) verb: &'static str,
    pub(super) reason: Reason,
    pub(super) unavailable_in: Option<Minor>,
    pub(super) replacement: Option<String>,
}

/// Whether a caller got an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddResult {
    Entry,
    /// The table is full: the call is counted together with those of other callers.
    Overflow,
}

#[derive(Debug)]
struct Entry {
    call: WatchedCall,
    stats: CallStats,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    callers: HashMap<CallerKey, Vec<Entry>>,
    entries: usize,
    other: Option<CallStats>,
}

impl Table {
    /// Counts a call. Callers that have an entry keep it, so that a flood of new ones does not
    /// displace those that are known.
    pub(super) fn add(&mut self, caller: CallerKey, call: WatchedCall, at: Time) -> AddResult {
        let is_full = self.callers.len() >= MAX_CALLERS;
        let has_room = self.entries < MAX_ENTRIES;
        if let Some(entries) = self.callers.get_mut(&caller) {
            let mut same = entries.iter_mut();
            let same = same.find(|it| it.call.api == call.api && it.call.verb == call.verb);
            if let Some(entry) = same {
                entry.stats.add(CallStats::one(at));
                // After an upgrade the reason may be another one.
                entry.call = call;
                return AddResult::Entry;
            }
            if has_room {
                let stats = CallStats::one(at);
                entries.push(Entry { call, stats });
                self.entries += 1;
                return AddResult::Entry;
            }
        } else if has_room && !is_full {
            let stats = CallStats::one(at);
            self.callers.insert(caller, vec![Entry { call, stats }]);
            self.entries += 1;
            return AddResult::Entry;
        }
        match &mut self.other {
            Some(other) => other.add(CallStats::one(at)),
            None => self.other = Some(CallStats::one(at)),
        }
        AddResult::Overflow
    }

    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn other(&self) -> Option<CallStats> {
        self.other
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// All calls, in no order.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.caller_entries().map(to_call).collect()
    }

    /// The most severe calls, and of those the most frequent. Only these are copied.
    pub(super) fn most_severe(&self, max: usize) -> Vec<Call> {
        let mut all: Vec<_> = self.caller_entries().collect();
        if all.len() > max {
            all.select_nth_unstable_by(max, |a, b| severity(*a).cmp(&severity(*b)));
            all.truncate(max);
        }
        all.sort_unstable_by(|a, b| severity(*a).cmp(&severity(*b)));
        all.into_iter().map(to_call).collect()
    }

    fn caller_entries(&self) -> impl Iterator<Item = (&CallerKey, &Entry)> {
        let callers = self.callers.iter();
        callers.flat_map(|(caller, entries)| entries.iter().map(move |entry| (caller, entry)))
    }
}

/// The order of severity, the most severe first; no two entries are equal.
fn severity<'a>((caller, entry): (&'a CallerKey, &'a Entry)) -> impl Ord + 'a {
    let Entry { call, stats } = entry;
    let rank = (call.reason, Reverse(stats.count), Reverse(stats.last_seen));
    let api = (&call.api.group, &call.api.version, &call.api.resource);
    (rank, api, caller, call.verb)
}

fn to_call((caller, Entry { call, stats }): (&CallerKey, &Entry)) -> Call {
    Call {
        user: caller.user.clone(),
        impersonated_user: caller.impersonated_user.clone(),
        user_agent: caller.user_agent.clone(),
        group: call.api.group.clone(),
        version: call.api.version.clone(),
        resource: call.api.resource.clone(),
        verb: call.verb.to_owned(),
        reason: call.reason,
        unavailable_in: call.unavailable_in,
        replacement: call.replacement.clone(),
        stats: *stats,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(user: &str, user_agent: &str) -> CallerKey {
        CallerKey {
            user: user.to_owned(),
            impersonated_user: None,
            user_agent: user_agent.to_owned(),
        }
    }

    fn call(resource: &str, verb: &'static str) -> WatchedCall {
        WatchedCall {
            api: ApiName {
                group: "g".to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
            },
            verb,
            reason: Reason::Removed,
            unavailable_in: None,
            replacement: None,
        }
    }

    fn at(second: i64) -> Time {
        Time::from_unix(second)
    }

    #[test]
    fn calls_are_counted_by_caller_api_and_verb() {
        let mut table = Table::default();
        for (user, agent, resource, verb) in [
            ("a", "x", "r", "list"),
            ("a", "x", "r", "list"),
            ("a", "x", "r", "get"),
            ("a", "x", "s", "list"),
            ("a", "y", "r", "list"),
            ("b", "x", "r", "list"),
            ("a", "x", "r", "list"),
        ] {
            let added = table.add(caller(user, agent), call(resource, verb), at(1));
            assert_eq!(added, AddResult::Entry);
        }
        let mut counts: Vec<_> = (table.calls().iter())
            .map(|it| {
                let name = format!("{} {} {} {}", it.user, it.user_agent, it.resource, it.verb);
                (name, it.stats.count)
            })
            .collect();
        counts.sort();
        let expected = [
            ("a x r get", 1),
            ("a x r list", 3),
            ("a x s list", 1),
            ("a y r list", 1),
            ("b x r list", 1),
        ];
        assert_eq!(
            counts,
            expected.map(|(name, count)| (name.to_owned(), count))
        );
        assert_eq!((table.callers(), table.other()), (3, None));
    }

    #[test]
    fn an_impersonated_user_is_counted_as_another_caller() {
        let mut table = Table::default();
        for impersonated in [None, Some("bob"), Some("carol"), Some("bob")] {
            let key = CallerKey {
                impersonated_user: impersonated.map(str::to_owned),
                ..caller("alice", "x")
            };
            table.add(key, call("r", "list"), at(1));
        }
        assert_eq!(table.callers(), 3);
    }

    #[test]
    fn the_latest_reason_is_reported() {
        let mut table = Table::default();
        let deprecated = WatchedCall {
            reason: Reason::Deprecated,
            replacement: Some("g/v2 R".to_owned()),
            ..call("r", "list")
        };
        table.add(caller("a", "x"), deprecated, at(1));
        table.add(caller("a", "x"), call("r", "list"), at(2));
        let calls = table.calls();
        assert_eq!((calls.len(), calls[0].reason), (1, Reason::Removed));
        assert_eq!(
            (calls[0].stats.first_seen, calls[0].stats.last_seen),
            (at(1), at(2))
        );
    }

    #[test]
    fn the_most_severe_calls_come_first_and_have_a_bound() {
        let mut table = Table::default();
        for (user, resource, reason, count) in [
            ("a", "d", Reason::Deprecated, 9),
            ("b", "d", Reason::Deprecated, 12),
            ("a", "r", Reason::Removed, 1),
            ("c", "r", Reason::Removed, 3),
            ("b", "r", Reason::Removed, 3),
            ("a", "o", Reason::OffByDefault, 5),
        ] {
            for _ in 0..count {
                let call = WatchedCall {
                    reason,
                    ..call(resource, "list")
                };
                table.add(caller(user, "x"), call, at(1));
            }
        }
        let names = |max| -> Vec<_> {
            let calls = table.most_severe(max).into_iter();
            calls
                .map(|it| format!("{} {}", it.resource, it.user))
                .collect()
        };
        let expected = ["r b", "r c", "r a", "o a", "d b", "d a"];
        assert_eq!(names(100), expected);
        for max in 0..=expected.len() {
            assert_eq!(names(max), expected[..max]);
        }
        assert_eq!(table.entries(), expected.len());
    }

    #[test]
    fn the_number_of_callers_is_bounded_and_every_call_is_counted() {
        let mut table = Table::default();
        for number in 0..MAX_CALLERS {
            let added = table.add(caller("a", &number.to_string()), call("r", "list"), at(1));
            assert_eq!(added, AddResult::Entry, "{number}");
        }
        for number in 0..100 {
            let added = table.add(caller("b", &number.to_string()), call("r", "list"), at(2));
            assert_eq!(added, AddResult::Overflow, "{number}");
        }
        // Callers that are known are still counted by name, also with another verb.
        assert_eq!(
            table.add(caller("a", "7"), call("r", "list"), at(3)),
            AddResult::Entry
        );
        assert_eq!(
            table.add(caller("a", "7"), call("r", "get"), at(3)),
            AddResult::Entry
        );
        assert_eq!(table.callers(), MAX_CALLERS);
        let other = table.other().unwrap();
        assert_eq!((other.count, other.first_seen), (100, at(2)));
        let listed: u64 = table.calls().iter().map(|it| it.stats.count).sum();
        assert_eq!(listed, MAX_CALLERS as u64 + 2);
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        const RESOURCES: usize = 8;
        let mut table = Table::default();
        for number in 0..MAX_ENTRIES {
            let user = (number / RESOURCES).to_string();
            let resource = (number % RESOURCES).to_string();
            let added = table.add(caller(&user, "x"), call(&resource, "get"), at(1));
            assert_eq!(added, AddResult::Entry, "{number}");
        }
        for (user, resource, expected) in [
            ("0", "7", AddResult::Entry),
            ("0", "new", AddResult::Overflow),
            ("new", "7", AddResult::Overflow),
        ] {
            let added = table.add(caller(user, "x"), call(resource, "get"), at(1));
            assert_eq!(added, expected, "{user} {resource}");
        }
        assert_eq!(table.calls().len(), MAX_ENTRIES);
    }
}

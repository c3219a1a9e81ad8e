//! The last requests that were rerouted or refused. Without queries, bodies and names of headers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The requests of each kind that are kept.
const MAX_ENTRIES_PER_KIND: usize = 40;

/// The requests of each kind that are captured in a second: a bridge that reroutes everything must
/// not copy every path.
const MAX_CAPTURES_PER_SECOND: u64 = 10;

/// The longest text of a client that is kept.
const MAX_TEXT_CHARS: usize = 160;

/// Why a request is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TapKind {
    Rerouted,
    Refused,
}

/// A captured request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TapEntry {
    pub(crate) at: SystemTime,
    /// The verb, or the method of a request that was refused before its target was parsed.
    pub(crate) verb: String,
    /// Without a query, and without what follows `/proxy/`.
    pub(crate) path: String,
    pub(crate) user: String,
    pub(crate) user_agent: String,
    pub(crate) code: u16,
    pub(crate) duration: Duration,
    /// The identity of the server that answered.
    pub(crate) server: Option<String>,
    /// The placement rule.
    pub(crate) rule: Option<&'static str>,
}

/// The captured requests of both kinds.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    rerouted: Ring,
    refused: Ring,
}

/// The captured requests of one kind.
#[derive(Debug)]
struct Ring {
    budget: CaptureRateLimit,
    entries: Mutex<VecDeque<TapEntry>>,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            budget: CaptureRateLimit::new(Instant::now()),
            entries: Mutex::default(),
        }
    }
}

impl Tap {
    /// Whether a request of this kind is to be captured.
    pub(crate) fn admits(&self, kind: TapKind, now: Instant) -> bool {
        self.ring(kind).budget.take(now)
    }

    /// Adds a request that was admitted.
    pub(crate) fn add(&self, kind: TapKind, entry: TapEntry) {
        let entries = &self.ring(kind).entries;
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_ENTRIES_PER_KIND {
            entries.pop_back();
        }
        entries.push_front(entry);
    }

    /// The captured requests, the newest first.
    pub(crate) fn entries(&self, kind: TapKind) -> Vec<TapEntry> {
        let entries = &self.ring(kind).entries;
        let entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().cloned().collect()
    }

    /// The requests that were not captured, because there were too many in a second.
    pub(crate) fn skipped(&self, kind: TapKind) -> u64 {
        self.ring(kind).budget.skipped.load(Ordering::Relaxed)
    }

    fn ring(&self, kind: TapKind) -> &Ring {
        match kind {
            TapKind::Rerouted => &self.rerouted,
            TapKind::Refused => &self.refused,
        }
    }
}

/// Admits [`MAX_CAPTURES_PER_SECOND`] in each second.
#[derive(Debug)]
struct CaptureRateLimit {
    start: Instant,
    /// The second in the upper bits, the number of admitted requests in the lower 16.
    used: AtomicU64,
    skipped: AtomicU64,
}

impl CaptureRateLimit {
    fn new(start: Instant) -> Self {
        Self {
            start,
            used: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    fn take(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.start).as_secs();
        let admit = |used: u64| match (used >> 16 == second, used & 0xffff) {
            (false, _) => Some(second << 16 | 1),
            (true, count) if count < MAX_CAPTURES_PER_SECOND => Some(used + 1),
            (true, _) => None,
        };
        let relaxed = Ordering::Relaxed;
        let is_admitted = self.used.fetch_update(relaxed, relaxed, admit).is_ok();
        if !is_admitted {
            self.skipped.fetch_add(1, relaxed);
        }
        is_admitted
    }
}

/// Text of a client: without control characters, and not too long.
pub(crate) fn printable_prefix(text: &str) -> String {
    let mut letters = text.chars().map(|letter| {
        if letter.is_control() {
            '\u{fffd}'
        } else {
            letter
        }
    });
    let mut kept: String = letters.by_ref().take(MAX_TEXT_CHARS).collect();
    if letters.next().is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> TapEntry {
        TapEntry {
            at: SystemTime::UNIX_EPOCH,
            verb: "get".to_owned(),
            path: path.to_owned(),
            user: "alice".to_owned(),
            user_agent: "kubectl".to_owned(),
            code: 200,
            duration: Duration::ZERO,
            server: None,
            rule: None,
        }
    }

    #[test]
    fn the_newest_requests_of_each_kind_are_kept() {
        let tap = Tap::default();
        for number in 0..MAX_ENTRIES_PER_KIND * 2 {
            tap.add(TapKind::Rerouted, entry(&number.to_string()));
        }
        tap.add(TapKind::Refused, entry("refused"));
        let kept = tap.entries(TapKind::Rerouted);
        assert_eq!(kept.len(), MAX_ENTRIES_PER_KIND);
        assert_eq!(kept[0].path, (MAX_ENTRIES_PER_KIND * 2 - 1).to_string());
        assert_eq!(tap.entries(TapKind::Refused), [entry("refused")]);
    }

    #[test]
    fn each_second_admits_some_requests_and_counts_the_others() {
        let start = Instant::now();
        let budget = CaptureRateLimit::new(start);
        let admitted = |second: u64, requests: u64| {
            let at = start + Duration::from_secs(second);
            (0..requests).filter(|_| budget.take(at)).count()
        };
        assert_eq!(admitted(0, 3), 3);
        assert_eq!(admitted(0, 100), 7);
        assert_eq!(admitted(1, 10), 10);
        assert_eq!(admitted(1, 1), 0);
        assert_eq!(admitted(3_600 * 24 * 365, 10), 10);
        assert_eq!(budget.skipped.load(Ordering::Relaxed), 94);
    }

    #[test]
    fn text_of_clients_is_short_and_printable() {
        let long = "é".repeat(MAX_TEXT_CHARS + 1);
        for (text, expected) in [
            ("kubectl/v1.36.4", "kubectl/v1.36.4".to_owned()),
            (
                "a\r\nb\u{1b}[1m",
                "a\u{fffd}\u{fffd}b\u{fffd}[1m".to_owned(),
            ),
            (&long, format!("{}…", "é".repeat(MAX_TEXT_CHARS))),
        ] {
            assert_eq!(printable_prefix(text), expected);
        }
    }
}

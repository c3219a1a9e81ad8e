//! How a peer does with the requests that it gets: shared by all threads, and
//! kept while the rest of what is known of it is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::roster::Peer;

/// How long a peer that failed is not asked first: doubled with each failure,
/// never longer than the second. It is still asked when there is no other.
const FIRST_PENALTY: Duration = Duration::from_millis(500);
const MAX_PENALTY: Duration = Duration::from_secs(5);

/// A failure that took longer than this kept a client waiting: a peer that is stopped,
/// or behind a firewall. Reachable peers take or refuse a connection within milliseconds.
const SLOW_FAILURE: Duration = Duration::from_secs(1);

/// A peer's health and load.
#[derive(Debug)]
pub struct Standing {
    began: Instant,
    in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Milliseconds after `began`.
    shunned_until: AtomicU64,
    /// Requests have waited in vain for an answer: until the peer answers a fetch, no
    /// further request waits for it.
    unreachable: AtomicBool,
    /// When a request last failed and when a poll last succeeded: milliseconds
    /// after `began`, and one; 0 is never.
    failed_at: AtomicU64,
    polled_at: AtomicU64,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            shunned_until: AtomicU64::new(0),
            unreachable: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
        }
    }
}

/// Counts a request while it lasts.
#[derive(Debug)]
pub struct Burden(Arc<Standing>);

impl Drop for Burden {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Standing {
    /// A request goes there.
    pub fn burden(self: &Arc<Self>) -> Burden {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Burden(self.clone())
    }

    /// How many requests it has.
    pub fn load(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// It did not take a request.
    pub fn failed(&self, at: Instant) {
        self.failed_at.store(self.stamp(at), Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let penalty = FIRST_PENALTY
            .saturating_mul(1 << failures.min(16))
            .min(MAX_PENALTY);
        let until = (at + penalty).saturating_duration_since(self.began);
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.shunned_until.fetch_max(until, Ordering::Relaxed);
    }

    /// A request or a fetch waited for an answer that did not come. A failure that
    /// came at once (a refused connection) costs the next request nothing, and is no
    /// reason to refuse it.
    pub fn record_timeout(&self, waited: Duration) {
        if waited >= SLOW_FAILURE {
            self.unreachable.store(true, Ordering::Relaxed);
        }
    }

    /// It answered a fetch.
    pub fn reachable(&self) {
        self.unreachable.store(false, Ordering::Relaxed);
    }

    /// Whether a request may be sent to it. If not, the peer does not answer, and
    /// fetches in the background find out when it does.
    pub fn is_reachable(&self) -> bool {
        !self.unreachable.load(Ordering::Relaxed)
    }

    /// It answered, or is somewhere else now.
    pub fn forgive(&self) {
        self.reachable();
        if self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.shunned_until.store(0, Ordering::Relaxed);
        }
    }

    /// A discovery poll succeeded.
    pub fn polled(&self, at: Instant) {
        self.polled_at.store(self.stamp(at), Ordering::Relaxed);
    }

    /// When a discovery poll last succeeded.
    pub fn polled_at(&self) -> Option<Instant> {
        let stamp = self.polled_at.load(Ordering::Relaxed);
        Some(self.began + Duration::from_millis(stamp.checked_sub(1)?))
    }

    /// Whether the last request failed, and neither a request nor a poll has
    /// succeeded since.
    pub fn is_failing(&self) -> bool {
        let failed = self.failed_at.load(Ordering::Relaxed);
        self.failures.load(Ordering::Relaxed) > 0 && failed > self.polled_at.load(Ordering::Relaxed)
    }

    fn stamp(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.began).as_millis();
        u64::try_from(after).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Whether it is worth asking first.
    pub fn is_healthy(&self, at: Instant) -> bool {
        let now = at.saturating_duration_since(self.began).as_millis();
        self.is_reachable() && u128::from(self.shunned_until.load(Ordering::Relaxed)) <= now
    }
}

/// In which order to ask the peers that serve a request. Those that do well come
/// first, and of two of them that chance picks the one with less to do (power of
/// two choices); those without an address not at all.
pub fn order(mut serving: Vec<Arc<Peer>>, random: u64, now: Instant) -> Vec<Arc<Peer>> {
    serving.retain(|peer| peer.address.is_some());
    shuffle(&mut serving, random);
    serving.sort_by_key(|peer| !(peer.published && peer.standing.is_healthy(now)));
    let good = |peer: &Arc<Peer>| peer.published && peer.standing.is_healthy(now);
    if let [first, second, ..] = serving.as_slice()
        && good(first)
        && good(second)
        && second.standing.load() < first.standing.load()
    {
        serving.swap(0, 1);
    }
    serving
}

/// Fisher and Yates, with a generator that is good enough to spread load.
fn shuffle<T>(items: &mut [T], mut random: u64) {
    for last in (1..items.len()).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The high bits are the random ones; a list is never longer than usize.
        let below = u64::try_from(last + 1).unwrap_or(1);
        let pick = usize::try_from((random >> 33) % below).unwrap_or(0);
        items.swap(last, pick);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::identity::Identity;

    fn peer(name: &str) -> Arc<Peer> {
        Arc::new(Peer {
            identity: Identity::named(name).unwrap(),
            host: None,
            address: Some(([127, 0, 0, 1], 6443).into()),
            published: true,
            alive_until: Instant::now(),
            awaited_until: Instant::now(),
            served: None,
            record: crate::roster::PeerRecord::default(),
            standing: Arc::default(),
            succeeded: None,
            problem: None,
        })
    }

    fn first(peers: &[Arc<Peer>], random: u64) -> String {
        let order = order(peers.to_vec(), random, Instant::now());
        order[0].identity.to_string()
    }

    #[test]
    fn equals_share_the_work() {
        let peers = ["a", "b", "c"].map(peer);
        let chosen: HashSet<_> = (0..100).map(|turn| first(&peers, turn)).collect();
        assert_eq!(chosen.len(), 3);
    }

    #[test]
    fn of_two_the_one_with_less_to_do_is_chosen() {
        let peers = ["a", "b"].map(peer);
        let burdens = [peers[0].standing.burden(), peers[0].standing.burden()];
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        drop(burdens);
        assert_eq!(peers[0].standing.load(), 0);
    }

    #[test]
    fn who_failed_comes_last_until_it_answers_or_time_has_passed() {
        let peers = ["a", "b"].map(peer);
        let now = Instant::now();
        peers[0].standing.failed(now);
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        assert!(peers[0].standing.is_healthy(now + MAX_PENALTY));
        // It is never left out.
        assert_eq!(order(peers.to_vec(), 0, now).len(), 2);
        peers[0].standing.forgive();
        assert!(peers[0].standing.is_healthy(now));
    }

    #[test]
    fn a_peer_that_lets_requests_wait_gets_none_until_it_answers_a_fetch() {
        type Event = fn(&Standing);
        let slow: Event = |it| it.record_timeout(SLOW_FAILURE);
        let fast: Event = |it| it.record_timeout(Duration::from_millis(5));
        let refused: Event = |it| it.failed(Instant::now());
        let fetched: Event = Standing::reachable;
        let answered: Event = Standing::forgive;
        for (events, reachable) in [
            (&[][..], true),
            (&[fast, refused], true),
            (&[slow], false),
            (&[slow, fast, refused], false),
            (&[slow, slow, fetched], true),
            // A request that was under way.
            (&[slow, answered], true),
            (&[slow, fetched, slow], false),
        ] {
            let standing = Standing::default();
            for event in events {
                event(&standing);
            }
            assert_eq!(standing.is_reachable(), reachable);
            let later = Instant::now() + 2 * MAX_PENALTY;
            assert_eq!(standing.is_healthy(later), reachable);
        }
    }

    #[test]
    fn the_penalty_is_bounded() {
        let standing = Standing::default();
        let now = Instant::now();
        for _ in 0..1_000 {
            standing.failed(now);
        }
        assert!(!standing.is_healthy(now));
        assert!(standing.is_healthy(now + MAX_PENALTY + Duration::from_millis(1)));
    }

    #[test]
    fn who_has_no_address_is_not_asked_and_who_took_it_back_comes_last() {
        let mut peers = ["a", "b"].map(peer).to_vec();
        Arc::get_mut(&mut peers[0]).unwrap().published = false;
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        Arc::get_mut(&mut peers[0]).unwrap().address = None;
        assert_eq!(order(peers, 0, Instant::now()).len(), 1);
    }
}

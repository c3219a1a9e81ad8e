//! How a peer does with the requests that it gets: shared by all threads, and
//! kept while the rest of what is known of it is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::roster::Peer;

/// How long a peer that failed is not asked first: doubled with each failure,
/// never longer than the second. It is still asked when there is no other.
const FIRST_PENALTY: Duration = Duration::from_millis(500);
const MAX_PENALTY: Duration = Duration::from_secs(5);

/// A peer's health and load.
#[derive(Debug)]
pub struct Standing {
    began: Instant,
    in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Milliseconds after `began`.
    shunned_until: AtomicU64,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            shunned_until: AtomicU64::new(0),
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
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let penalty = FIRST_PENALTY
            .saturating_mul(1 << failures.min(16))
            .min(MAX_PENALTY);
        let until = (at + penalty).saturating_duration_since(self.began);
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.shunned_until.fetch_max(until, Ordering::Relaxed);
    }

    /// It answered, or is somewhere else now.
    pub fn forgive(&self) {
        if self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.shunned_until.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is worth asking first.
    pub fn is_healthy(&self, at: Instant) -> bool {
        let now = at.saturating_duration_since(self.began).as_millis();
        u128::from(self.shunned_until.load(Ordering::Relaxed)) <= now
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
            address: Some(([127, 0, 0, 1], 6443).into()),
            published: true,
            alive_until: Instant::now(),
            awaited_until: Instant::now(),
            served: None,
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

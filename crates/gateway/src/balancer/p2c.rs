//! The backend that gets a request: power of two choices (p2c), a pure function over plain data.

use crate::config::MAX_UPSTREAMS;

/// Whether a backend can be expected to serve a request. The order is that of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Readiness {
    /// Its server is ready, and the bridge has read its APIs.
    Ready,
    /// Its server is ready, but the last request to it failed, or the bridge has not read its APIs
    /// yet.
    Degraded,
    /// Its server is not ready, or does not answer.
    NotReady,
}

/// The state of a backend that the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) readiness: Readiness,
    /// Requests in flight of the class of the request.
    pub(crate) in_flight: i64,
}

/// A set of backends, by their index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BackendSet(u32);

impl BackendSet {
    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    fn nth(self, number: usize) -> Option<usize> {
        (0..MAX_UPSTREAMS)
            .filter(|it| self.contains(*it))
            .nth(number)
    }
}

/// Chooses among the backends that have not been tried: of those with the best readiness, two
/// random ones are compared, and the one with fewer requests in flight is chosen. Comparing all
/// would send every new request to a server that has just returned.
pub(crate) fn choose(
    backends: usize,
    tried: BackendSet,
    random: u64,
    candidate: impl Fn(usize) -> Candidate,
) -> Option<usize> {
    let mut best = Readiness::NotReady;
    let mut equal = BackendSet::default();
    for index in (0..backends).filter(|it| !tried.contains(*it)) {
        let readiness = candidate(index).readiness;
        if readiness < best {
            best = readiness;
            equal = BackendSet::default();
        }
        if readiness == best {
            equal.insert(index);
        }
    }
    let count = equal.len();
    if count < 2 {
        return equal.nth(0);
    }
    let first = random_below(random >> 33, count);
    let second = random_below(random >> 13, count - 1);
    // Not the first one again.
    let second = second + usize::from(second >= first);
    let (first, second) = (equal.nth(first)?, equal.nth(second)?);
    let is_second_better = candidate(second).in_flight < candidate(first).in_flight;
    Some(if is_second_better { second } else { first })
}

/// A number below `count` from random bits.
fn random_below(random: u64, count: usize) -> usize {
    // The remainder is below `count`, which is a usize.
    usize::try_from(random % count as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Readiness::{Degraded, NotReady, Ready};

    const RANDOM: [u64; 4] = [0, 0x9e37_79b9_7f4a_7c15, 0x5555_5555_5555_5555, u64::MAX];

    fn tried(indices: &[usize]) -> BackendSet {
        let mut set = BackendSet::default();
        for index in indices {
            set.insert(*index);
        }
        set
    }

    /// All backends that are chosen with some random number.
    fn chosen(backends: &[(Readiness, i64)], tried: BackendSet) -> BackendSet {
        let mut all = BackendSet::default();
        for random in 0..2_000_u64 {
            let random = random.wrapping_mul(RANDOM[1]);
            let index = choose(backends.len(), tried, random, |index| Candidate {
                readiness: backends[index].0,
                in_flight: backends[index].1,
            });
            if let Some(index) = index {
                all.insert(index);
            }
        }
        all
    }

    #[test]
    fn a_request_goes_to_a_ready_backend_with_few_requests_in_flight() {
        type Row<'a> = (&'a [(Readiness, i64)], &'a [usize], &'a [usize]);
        let rows: [Row<'_>; 11] = [
            (&[], &[], &[]),
            (&[(NotReady, 9)], &[], &[0]),
            (&[(Ready, 9)], &[0], &[]),
            (&[(Ready, 0), (Ready, 0)], &[], &[0, 1]),
            (&[(Ready, 3), (Ready, 2)], &[], &[1]),
            (&[(Ready, 3), (NotReady, 0)], &[], &[0]),
            (&[(NotReady, 0), (Degraded, 5)], &[], &[1]),
            // The backend with the most requests in flight is never chosen.
            (&[(Ready, 1), (Ready, 5), (Ready, 2)], &[], &[0, 2]),
            (&[(Ready, 1), (Ready, 5), (Ready, 2)], &[0], &[2]),
            (&[(Ready, 1), (NotReady, 5), (NotReady, 2)], &[0], &[2]),
            (&[(NotReady, 0), (NotReady, 0)], &[], &[0, 1]),
        ];
        for (backends, already_tried, expected) in rows {
            let all = chosen(backends, tried(already_tried));
            assert_eq!(all, tried(expected), "{backends:?} {already_tried:?}");
        }
    }

    proptest! {
        #[test]
        fn the_choice_has_not_been_tried_and_no_other_one_is_readier(
            backends in prop::collection::vec((0..3_u8, 0..4_i64), 0..MAX_UPSTREAMS),
            tried_bits: u32,
            random: u64,
        ) {
            let readiness = |index: usize| [Ready, Degraded, NotReady][usize::from(backends[index].0)];
            let tried = BackendSet(tried_bits);
            let index = choose(backends.len(), tried, random, |index| Candidate {
                readiness: readiness(index),
                in_flight: backends[index].1,
            });
            let left: Vec<_> = (0..backends.len()).filter(|it| !tried.contains(*it)).collect();
            match index {
                None => prop_assert!(left.is_empty()),
                Some(index) => {
                    prop_assert!(left.contains(&index));
                    prop_assert!(left.iter().all(|it| readiness(*it) >= readiness(index)));
                }
            }
        }
    }
}

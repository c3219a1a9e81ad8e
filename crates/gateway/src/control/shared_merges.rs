//! Merges that concurrent requests share: at most one of a document runs, and a request gets the result
//! for its own state of the document. Pure.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// States of one document whose merges run or wait: each holds a document of up to
/// `MAX_DOCUMENT_BYTES`. A request for one more is not merged.
const MAX_STATES: usize = 4;

/// The merges in progress, by document. `S` is the state of the document that a merge is for, `I` its
/// input, `R` what answers a request.
#[derive(Debug)]
pub(super) struct SharedMerges<K, S, I, R> {
    /// The first of each queue runs.
    queues: HashMap<K, VecDeque<Merge<S, I, R>>>,
}

/// One merge that runs (without its input) or waits.
#[derive(Debug)]
struct Merge<S, I, R> {
    state: S,
    input: Option<I>,
    replies: Vec<R>,
}

/// What a finished merge leaves to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finished<I, R> {
    /// The requests that get the result.
    pub(super) replies: Vec<R>,
    /// The merge that begins now.
    pub(super) next: Option<I>,
}

impl<K: Eq + Hash + Clone, S: PartialEq, I, R> SharedMerges<K, S, I, R> {
    pub(super) fn new() -> Self {
        Self {
            queues: HashMap::new(),
        }
    }

    /// Adds a request; `reply` is `None` if it only revalidates. Returns the input of a merge that begins
    /// now. The reply is dropped if too many states of the document wait.
    pub(super) fn request(&mut self, key: &K, state: S, input: I, reply: Option<R>) -> Option<I> {
        let queue = self.queues.entry(key.clone()).or_default();
        if let Some(merge) = queue.iter_mut().find(|merge| merge.state == state) {
            merge.replies.extend(reply);
            return None;
        }
        if queue.len() >= MAX_STATES {
            return None;
        }
        let (starts_now, waits) = if queue.is_empty() {
            (Some(input), None)
        } else {
            (None, Some(input))
        };
        queue.push_back(Merge {
            state,
            input: waits,
            replies: reply.into_iter().collect(),
        });
        starts_now
    }

    /// Ends the merge that runs, and begins the next one.
    pub(super) fn finish(&mut self, key: &K) -> Finished<I, R> {
        let queue = self.queues.get_mut(key);
        let finished = queue.and_then(|queue| {
            let finished = queue.pop_front()?;
            let next = queue.front_mut().and_then(|merge| merge.input.take());
            Some((finished.replies, next))
        });
        let (replies, next) = finished.unwrap_or_default();
        if next.is_none() {
            self.queues.remove(key);
        }
        Finished { replies, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Merges = SharedMerges<&'static str, u32, u32, char>;

    fn finished(replies: &[char], next: Option<u32>) -> Finished<u32, char> {
        Finished {
            replies: replies.to_vec(),
            next,
        }
    }

    #[test]
    fn requests_for_the_same_state_share_one_merge() {
        let mut merges = Merges::new();
        assert_eq!(merges.request(&"v2", 1, 1, Some('a')), Some(1));
        assert_eq!(merges.request(&"v2", 1, 1, Some('b')), None);
        assert_eq!(merges.request(&"v3", 1, 1, Some('c')), Some(1));
        assert_eq!(merges.finish(&"v2"), finished(&['a', 'b'], None));
        assert_eq!(merges.request(&"v2", 1, 1, Some('d')), Some(1));
    }

    #[test]
    fn a_request_for_another_state_waits_for_a_merge_of_that_state() {
        let mut merges = Merges::new();
        assert_eq!(merges.request(&"v2", 1, 1, Some('a')), Some(1));
        assert_eq!(merges.request(&"v2", 2, 2, Some('b')), None);
        assert_eq!(merges.request(&"v2", 3, 3, Some('c')), None);
        assert_eq!(merges.request(&"v2", 2, 2, Some('d')), None);
        assert_eq!(merges.finish(&"v2"), finished(&['a'], Some(2)));
        assert_eq!(merges.finish(&"v2"), finished(&['b', 'd'], Some(3)));
        assert_eq!(merges.finish(&"v2"), finished(&['c'], None));
        assert_eq!(merges.finish(&"v2"), finished(&[], None));
    }

    #[test]
    fn a_revalidation_joins_a_running_merge_without_a_reply() {
        let mut merges = Merges::new();
        assert_eq!(merges.request(&"v2", 1, 1, None), Some(1));
        assert_eq!(merges.request(&"v2", 1, 1, None), None);
        assert_eq!(merges.request(&"v2", 1, 1, Some('a')), None);
        assert_eq!(merges.finish(&"v2"), finished(&['a'], None));
    }

    #[test]
    fn the_number_of_waiting_states_is_limited() {
        let mut merges = Merges::new();
        for state in 0..10 {
            merges.request(&"v2", state, state, Some('a'));
        }
        let mut replies = 0;
        loop {
            let finished = merges.finish(&"v2");
            replies += finished.replies.len();
            if finished.next.is_none() {
                break;
            }
        }
        assert_eq!(replies, MAX_STATES);
    }
}

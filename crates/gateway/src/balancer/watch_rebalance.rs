//! Ends watches at one backend, evenly over some time, so that their clients begin them again at
//! another one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The period over which the watches at a backend end that is not ready any more. It is short, because the
/// server is about to end them all at once.
pub(crate) const WATCH_DRAIN_PERIOD: Duration = Duration::from_secs(5);

/// A share of watches, of [`WatchShare::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchShare(u32);

impl WatchShare {
    pub(crate) const ALL: Self = Self(1 << 16);
    const NONE: Self = Self(0);

    /// The share `part / whole`.
    fn of(part: i64, whole: i64) -> Self {
        if part <= 0 || whole <= 0 {
            return Self::NONE;
        }
        let parts = part.saturating_mul(i64::from(Self::ALL.0)) / whole;
        Self(u32::try_from(parts).map_or(Self::ALL.0, |it| it.min(Self::ALL.0)))
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// The share of its watches that each backend ends so that all have equally many. `watches` are those
/// of the ready backends.
pub(crate) fn shares_to_end(watches: &[i64]) -> Vec<WatchShare> {
    let count = i64::try_from(watches.len()).unwrap_or(i64::MAX).max(1);
    let total: i64 = watches.iter().sum();
    // Rounded up, so that a difference of one watch moves none.
    let fair = total / count + i64::from(total % count != 0);
    let share = |own: &i64| WatchShare::of(own - fair, *own);
    watches.iter().map(share).collect()
}

/// A share of the watches ends, evenly over a period.
#[derive(Debug, Clone, Copy)]
struct Rebalance {
    share: WatchShare,
    began: Instant,
    period: Duration,
}

impl Rebalance {
    /// When the watch with this random number ends, if it does.
    fn end(&self, random: u64) -> Option<Instant> {
        let sixteen_bits = |shift: u32| u32::try_from(random >> shift & 0xffff).unwrap_or(0);
        (sixteen_bits(48) < self.share.0)
            .then(|| self.began + self.period * sixteen_bits(32) / (1 << 16))
    }
}

/// Ends the watches at one backend.
#[derive(Debug)]
pub(crate) struct WatchRebalancer(watch::Sender<Option<Rebalance>>);

impl Default for WatchRebalancer {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl WatchRebalancer {
    /// Ends a share of the watches that are open now, evenly over a period.
    pub(crate) fn begin(&self, share: WatchShare, period: Duration) {
        let began = Instant::now();
        self.0.send_replace(Some(Rebalance {
            share,
            began,
            period,
        }));
    }

    /// Stops ending watches.
    pub(crate) fn cancel(&self) {
        self.0.send_if_modified(|it| it.take().is_some());
    }

    /// Resolves when a watch that begins now is to end. `random` differs between watches.
    pub(crate) fn end_of_watch(&self, random: u64) -> impl Future<Output = ()> + Send + use<> {
        let mut rebalances = self.0.subscribe();
        // Only later rebalances concern this watch.
        rebalances.mark_unchanged();
        async move {
            let mut random = random;
            let mut end = None;
            loop {
                let ended = async {
                    match end {
                        Some(end) => sleep_until(end).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = ended => return,
                    changed = rebalances.changed() => {
                        if changed.is_err() {
                            return std::future::pending().await;
                        }
                        random = splitmix64(random);
                        end = rebalances.borrow_and_update().and_then(|it| it.end(random));
                    }
                }
            }
        }
    }
}

/// `SplitMix64`: each rebalance selects different watches.
pub(super) fn splitmix64(random: u64) -> u64 {
    let mut bits = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use super::*;

    #[test]
    fn backends_end_as_many_watches_as_they_have_more_than_the_others() {
        let half = WatchShare(1 << 15);
        let third = WatchShare((1 << 16) / 3);
        let none = WatchShare::NONE;
        let rows: [(&[i64], &[WatchShare]); 7] = [
            (&[], &[]),
            (&[9], &[none]),
            (&[10, 10], &[none, none]),
            (&[11, 10], &[none, none]),
            (&[10, 0], &[half, none]),
            (&[90, 90, 0], &[third, third, none]),
            (&[0, 0, 0], &[none, none, none]),
        ];
        for (watches, expected) in rows {
            assert_eq!(shares_to_end(watches), expected, "{watches:?}");
        }
    }

    #[test]
    fn a_share_of_the_watches_ends_evenly_over_the_period() {
        let began = Instant::now();
        let a_third = Rebalance {
            share: WatchShare::of(1, 3),
            began,
            period: Duration::from_secs(30),
        };
        let mut random = 1;
        let mut ends = [0; 3];
        for _ in 0..9_000 {
            random = splitmix64(random);
            if let Some(end) = a_third.end(random) {
                let after = usize::try_from((end - began).as_secs()).unwrap();
                ends[after / 10] += 1;
            }
        }
        assert!(ends.iter().all(|it| (900..1_100).contains(it)), "{ends:?}");
    }

    const SHORT: Duration = Duration::from_millis(20);

    async fn is_open(end: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
        poll_fn(|cx| Poll::Ready(end.as_mut().poll(cx).is_pending())).await
    }

    #[tokio::test]
    async fn a_rebalance_ends_open_watches_and_no_later_ones() {
        let rebalancer = WatchRebalancer::default();
        rebalancer.begin(WatchShare::ALL, Duration::ZERO);
        let mut open = pin!(rebalancer.end_of_watch(7));
        assert!(is_open(&mut open).await, "it began after the rebalance");
        rebalancer.begin(WatchShare::ALL, SHORT);
        let mut later = pin!(rebalancer.end_of_watch(8));
        open.await;
        assert!(is_open(&mut later).await);
    }

    #[tokio::test]
    async fn a_cancelled_rebalance_ends_no_watch() {
        let rebalancer = WatchRebalancer::default();
        let mut open = pin!(rebalancer.end_of_watch(7));
        rebalancer.begin(WatchShare::ALL, WATCH_DRAIN_PERIOD);
        assert!(is_open(&mut open).await);
        rebalancer.cancel();
        rebalancer.begin(WatchShare::NONE, Duration::ZERO);
        assert!(is_open(&mut open).await);
    }
}

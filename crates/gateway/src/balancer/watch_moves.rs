//! Ends watches at one backend, evenly over some time, so that their clients begin them again at
//! another one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The time over which the watches at a backend end that is not ready any more. Shorter, because the
/// server is about to end them all at once.
pub(crate) const DRAIN_PERIOD: Duration = Duration::from_secs(5);

/// A share of watches, of [`Share::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl Share {
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
pub(crate) fn shares_to_move(watches: &[i64]) -> Vec<Share> {
    let count = i64::try_from(watches.len()).unwrap_or(i64::MAX).max(1);
    let total: i64 = watches.iter().sum();
    // Rounded up, so that a difference of one watch moves none.
    let fair = total / count + i64::from(total % count != 0);
    let share = |own: &i64| Share::of(own - fair, *own);
    watches.iter().map(share).collect()
}

/// Watches that end.
#[derive(Debug, Clone, Copy)]
struct WatchMove {
    share: Share,
    began: Instant,
    period: Duration,
}

impl WatchMove {
    /// When a watch with this random number ends, if it does.
    fn end(&self, random: u64) -> Option<Instant> {
        let sixteen_bits = |shift: u32| u32::try_from(random >> shift & 0xffff).unwrap_or(0);
        (sixteen_bits(48) < self.share.0)
            .then(|| self.began + self.period * sixteen_bits(32) / (1 << 16))
    }
}

/// Ends the watches at one backend.
#[derive(Debug)]
pub(crate) struct WatchMoves(watch::Sender<Option<WatchMove>>);

impl Default for WatchMoves {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl WatchMoves {
    /// Ends a share of the watches that are open now, evenly over a period.
    pub(crate) fn begin(&self, share: Share, period: Duration) {
        let began = Instant::now();
        self.0.send_replace(Some(WatchMove {
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
        let mut moves = self.0.subscribe();
        // Only later moves concern this watch.
        moves.mark_unchanged();
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
                    changed = moves.changed() => {
                        if changed.is_err() {
                            return std::future::pending().await;
                        }
                        random = mixed(random);
                        end = moves.borrow_and_update().and_then(|it| it.end(random));
                    }
                }
            }
        }
    }
}

/// `SplitMix64`: each move selects different watches.
pub(super) fn mixed(random: u64) -> u64 {
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
        let half = Share(1 << 15);
        let third = Share((1 << 16) / 3);
        let none = Share::NONE;
        let rows: [(&[i64], &[Share]); 7] = [
            (&[], &[]),
            (&[9], &[none]),
            (&[10, 10], &[none, none]),
            (&[11, 10], &[none, none]),
            (&[10, 0], &[half, none]),
            (&[90, 90, 0], &[third, third, none]),
            (&[0, 0, 0], &[none, none, none]),
        ];
        for (watches, expected) in rows {
            assert_eq!(shares_to_move(watches), expected, "{watches:?}");
        }
    }

    #[test]
    fn a_share_of_the_watches_ends_evenly_over_the_period() {
        let began = Instant::now();
        let a_third = WatchMove {
            share: Share::of(1, 3),
            began,
            period: Duration::from_secs(30),
        };
        let mut random = 1;
        let mut ends = [0; 3];
        for _ in 0..9_000 {
            random = mixed(random);
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
    async fn a_move_ends_open_watches_and_no_later_ones() {
        let moves = WatchMoves::default();
        moves.begin(Share::ALL, Duration::ZERO);
        let mut open = pin!(moves.end_of_watch(7));
        assert!(is_open(&mut open).await, "it began after the move");
        moves.begin(Share::ALL, SHORT);
        let mut later = pin!(moves.end_of_watch(8));
        open.await;
        assert!(is_open(&mut later).await);
    }

    #[tokio::test]
    async fn a_cancelled_move_ends_no_watch() {
        let moves = WatchMoves::default();
        let mut open = pin!(moves.end_of_watch(7));
        moves.begin(Share::ALL, DRAIN_PERIOD);
        assert!(is_open(&mut open).await);
        moves.cancel();
        moves.begin(Share::NONE, Duration::ZERO);
        assert!(is_open(&mut open).await);
    }
}

use std::future::poll_fn;

use std::sync::atomic::AtomicBool;

use skewbridge_testkit::TEST_TIMEOUT;

use super::*;

const MIB: usize = 1 << 20;
const STALL: Duration = Duration::from_millis(50);

/// A client that may authenticate later.
#[derive(Debug, Default)]
struct Client(AtomicBool);

impl ClientAuthentication for Client {
    fn is_authenticated(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn unauthenticated() -> Arc<Client> {
    Arc::default()
}

fn budget(limit: usize) -> Arc<BufferBudget> {
    BufferBudget::new(limit, STALL, None)
}

/// The indexes of the streams (authenticated, seconds stalled, MiB) that are evicted for this excess.
fn evicted(streams: &[(bool, u64, usize)], excess: usize) -> Vec<usize> {
    let start = Instant::now();
    let longest = streams.iter().map(|(_, age, _)| *age).max().unwrap_or(0);
    let now = start + Duration::from_secs(longest);
    let mut stalled = StalledStreams::default();
    for (authenticated, age, bytes) in streams {
        let id = stalled.add(*authenticated, now - Duration::from_secs(*age));
        stalled.update(id, bytes * MIB, 0, now);
    }
    stalled.evict(excess * MIB, now);
    let marked = stalled.streams.values().enumerate();
    marked
        .filter(|(_, stream)| stream.evicted)
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn the_oldest_unauthenticated_streams_are_reset_first() {
    for (streams, excess, expected) in [
        // No excess, no eviction.
        (&[(false, 5, 1)][..], 0, &[][..]),
        // The oldest covers the excess alone.
        (&[(false, 9, 2), (false, 5, 2)], 1, &[0]),
        (&[(false, 9, 2), (false, 5, 2)], 3, &[0, 1]),
        // Authenticated streams stay while unauthenticated ones cover the excess.
        (&[(true, 500, 8), (false, 1, 2), (false, 0, 2)], 2, &[1]),
        // They follow after all unauthenticated streams, oldest first, and only after the minimum age.
        (&[(true, 500, 4), (true, 400, 4), (false, 1, 2)], 5, &[0, 2]),
        (&[(true, 29, 8), (false, 1, 2)], 5, &[1]),
        // Evicting a stream without buffered bytes frees nothing.
        (&[(false, 9, 0), (false, 5, 1)], 1, &[1]),
    ] {
        assert_eq!(evicted(streams, excess), expected, "{streams:?} {excess}");
    }
}

#[test]
fn pending_evictions_are_not_counted_twice() {
    let now = Instant::now();
    let mut stalled = StalledStreams::default();
    let ids: Vec<_> = (0..3).map(|_| stalled.add(false, now)).collect();
    for id in &ids {
        stalled.update(*id, MIB, 0, now);
    }
    stalled.evict(1, now);
    stalled.evict(1, now);
    let evicted = stalled.streams.values().filter(|it| it.evicted).count();
    assert_eq!(evicted, 1);
}

#[test]
fn reservations_stay_within_both_budgets_and_are_released() {
    let budget = budget(2 * UNAUTHENTICATED_CONNECTION_BYTES);
    let half = UNAUTHENTICATED_CONNECTION_BYTES / 2;
    let one = ClientLimits::new(unauthenticated(), budget.clone());
    let (mut first, mut second) = (one.reservation(), one.reservation());
    assert!(first.try_add(half) && second.try_add(half));
    assert!(!first.try_add(1), "the connection's own budget");
    let other = ClientLimits::new(unauthenticated(), budget.clone());
    let mut third = other.reservation();
    assert!(third.try_add(2 * half));
    let another = ClientLimits::new(unauthenticated(), budget.clone());
    assert!(!another.reservation().try_add(1), "the process's budget");
    drop(second);
    assert!(another.reservation().try_add(1));
    first.clear();
    drop((first, third));
    assert_eq!(budget.buffered_bytes(), 0);
}

#[tokio::test]
async fn trickled_bytes_do_not_extend_the_stall_timeout() {
    let limits = ClientLimits::new(unauthenticated(), budget(MIB));
    let timeout = limits.stall_timeout(Duration::from_mins(10));
    assert_eq!(timeout, STALL);
    let mut guard = StallGuard::new(&limits, Some(timeout));
    let sample = || Sample {
        bytes: 100,
        waits_for_client: true,
    };
    let mut taken = 0;
    let eviction = poll_fn(|cx| {
        taken += 1;
        guard.poll_evicted(taken, sample, cx)
    });
    let eviction = tokio::time::timeout(TEST_TIMEOUT, eviction).await;
    assert_eq!(eviction.unwrap(), Eviction::TimedOut);
}

#[tokio::test]
async fn a_slow_upstream_does_not_evict_the_client() {
    let limits = ClientLimits::new(unauthenticated(), budget(MIB));
    let mut guard = StallGuard::new(&limits, limits.request_body_timeout());
    let slow_samples = 5;
    let mut samples = 0;
    let eviction = poll_fn(|cx| {
        let sample = || {
            samples += 1;
            Sample {
                bytes: 100,
                waits_for_client: samples > slow_samples,
            }
        };
        guard.poll_evicted(0, sample, cx)
    });
    assert_eq!(eviction.await, Eviction::TimedOut);
    assert!(samples > slow_samples, "{samples}");
}

#[test]
fn the_short_stall_timeout_is_for_unauthenticated_clients_only() {
    let (client, limit) = (unauthenticated(), Duration::from_mins(10));
    let limits = ClientLimits::new(client.clone(), budget(MIB));
    assert_eq!(limits.stall_timeout(limit), STALL);
    assert_eq!(limits.request_body_timeout(), Some(STALL));
    client.0.store(true, Ordering::Relaxed);
    assert_eq!(limits.stall_timeout(limit), limit);
    assert_eq!(limits.request_body_timeout(), None);
}

#[tokio::test]
async fn a_connection_over_its_own_budget_is_reset_while_the_process_has_room() {
    let budget = budget(100 * UNAUTHENTICATED_CONNECTION_BYTES);
    let limits = ClientLimits::new(unauthenticated(), budget.clone());
    let half = || Sample {
        bytes: UNAUTHENTICATED_CONNECTION_BYTES / 2 + 1,
        waits_for_client: true,
    };
    let guard = || StallGuard::new(&limits, None);
    let (mut one, mut other, mut alone) = (guard(), guard(), guard());
    let evicted = poll_fn(|cx| {
        let (one, other) = (
            one.poll_evicted(0, half, cx),
            other.poll_evicted(0, half, cx),
        );
        if one.is_ready() { one } else { other }
    });
    let evicted = tokio::time::timeout(TEST_TIMEOUT, evicted).await;
    assert_eq!(evicted.unwrap(), Eviction::OverBudget);
    drop((one, other));
    // The other stream of the connection is within the budget again: counted, and not evicted.
    poll_fn(|cx| {
        assert!(alone.poll_evicted(0, half, cx).is_pending());
        match budget.buffered_bytes() {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

#[tokio::test]
async fn the_older_of_two_stalled_streams_is_evicted() {
    let budget = budget(3 * MIB / 8);
    let sample = || Sample {
        bytes: MIB / 4,
        waits_for_client: true,
    };
    let (older, newer) = (
        ClientLimits::new(unauthenticated(), budget.clone()),
        ClientLimits::new(unauthenticated(), budget.clone()),
    );
    let (mut older, mut newer) = (StallGuard::new(&older, None), StallGuard::new(&newer, None));
    let evicted = poll_fn(|cx| {
        let first = older.poll_evicted(0, sample, cx);
        let second = newer.poll_evicted(0, sample, cx);
        assert!(second.is_pending());
        first
    });
    let evicted = tokio::time::timeout(TEST_TIMEOUT, evicted).await;
    assert_eq!(evicted.expect("one is evicted"), Eviction::OverBudget);
    older.end_wait();
    assert_eq!(budget.buffered_bytes(), MIB / 4);
    newer.end_wait();
    assert_eq!(budget.buffered_bytes(), 0);
}

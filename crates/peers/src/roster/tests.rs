use proptest::prelude::*;

use super::*;

const A: &str = "apiserver-a";
const B: &str = "apiserver-b";
const ME: &str = "apiserver-me";

fn identity(name: &str) -> Identity {
    Identity::named(name).unwrap()
}

fn seen(name: &str, holder: &str, version: u32) -> Seen {
    Seen {
        identity: identity(name),
        holder: holder.to_owned(),
        resource_version: version.to_string(),
    }
}

fn addresses(list: &[(&str, u16)]) -> BTreeMap<Identity, SocketAddr> {
    list.iter()
        .map(|(name, port)| (identity(name), ([127, 0, 0, 1], *port).into()))
        .collect()
}

fn served() -> Served {
    Served {
        index: Arc::default(),
        documents: [Arc::default(), Arc::default()],
        etags: [None, None],
        version: None,
    }
}

fn due(roster: &mut Roster, at: Instant) -> Vec<String> {
    let due = roster.due(at);
    due.iter().map(|peer| peer.identity.to_string()).collect()
}

/// What can happen, in any order.
#[derive(Debug, Clone, Copy)]
enum Step {
    Lease,
    Address,
    Tick,
}

proptest! {
    /// The original gives up on a peer whose Lease comes before its address.
    #[test]
    fn a_peer_is_found_in_whatever_order_it_appears(
        steps in proptest::collection::vec(
            prop_oneof![Just(Step::Lease), Just(Step::Address), Just(Step::Tick)], 0..40),
    ) {
        let mut at = Instant::now();
        let mut roster = Roster::new(identity(ME));
        let (mut leased, mut addressed, mut fetched) = (false, false, 0);
        for step in steps {
            at += Duration::from_secs(10);
            match step {
                Step::Lease => {
                    roster.lease(seen(A, "h", 1), at);
                    leased = true;
                }
                Step::Address => {
                    roster.addresses(&addresses(&[(A, 1)]), at);
                    addressed = true;
                }
                Step::Tick => {}
            }
            for _ in due(&mut roster, at) {
                fetched += 1;
                // It is never ready.
                roster.fetched(&identity(A), Err("no".into()), at, SystemTime::now(), 0.5);
            }
            // Ten seconds later it is always asked again.
            prop_assert_eq!(fetched > 0, leased && addressed);
        }
    }
}

#[test]
fn the_last_good_answer_counts_while_the_lease_lives() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1), seen(ME, "h", 1)], at);
    roster.addresses(&addresses(&[(A, 1), (ME, 2)]), at);
    assert_eq!(due(&mut roster, at), [A], "not itself");
    roster.fetched(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    assert!(roster.snapshot().peers[0].served.is_some());

    // It restarts, cannot be reached, and its record runs out.
    roster.lease(seen(A, "another", 2), at);
    assert_eq!(due(&mut roster, at), [A]);
    roster.fetched(
        &identity(A),
        Err("refused".into()),
        at,
        SystemTime::now(),
        0.0,
    );
    roster.addresses(&addresses(&[]), at);
    let peer = &roster.snapshot().peers[0];
    assert!(peer.served.is_some());
    assert!(peer.address.is_some() && !peer.published);
    assert_eq!(peer.problem.as_deref(), Some("refused"));

    roster.lease_gone(&identity(A), at);
    assert!(roster.snapshot().peers.is_empty());
    // Back again, it has to tell anew.
    roster.lease(seen(A, "third", 3), at);
    assert!(roster.snapshot().peers[0].served.is_none());
}

#[test]
fn what_is_told_after_the_lease_has_ended_does_not_count() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1)], at);
    roster.addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut roster, at), [A]);
    roster.lease_gone(&identity(A), at);
    roster.fetched(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    roster.lease(seen(A, "another", 2), at);
    assert!(roster.snapshot().peers[0].served.is_none());
    assert_eq!(due(&mut roster, at), [A], "it is asked at once");
}

/// From 1.35 on a server deletes its Lease when it ends, and its bridge stays.
#[test]
fn a_server_that_restarts_behind_its_bridge_is_not_forgotten() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    let begin = |roster: &mut Roster| {
        roster.leases(vec![seen(A, "h", 1)], at);
        roster.addresses(&addresses(&[(A, 1)]), at);
        roster.due(at);
        roster.fetched(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
        roster.lease_gone(&identity(A), at);
    };
    begin(&mut roster);
    let peer = &roster.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.alive_until <= at);
    assert!(!roster.expire(at));
    // Back again, it is asked at once.
    roster.lease(seen(A, "another", 2), at);
    assert_eq!(due(&mut roster, at), [A]);
    assert!(roster.snapshot().peers[0].served.is_some());

    // Both leave.
    let mut roster = Roster::new(identity(ME));
    begin(&mut roster);
    roster.addresses(&addresses(&[]), at);
    assert!(roster.snapshot().peers.is_empty());

    // It does not come back.
    let mut roster = Roster::new(identity(ME));
    begin(&mut roster);
    assert!(roster.expire(at + TO_RESTART));
    assert!(roster.snapshot().peers.is_empty());
}

#[test]
fn a_lease_that_nobody_renews_or_deletes_runs_out() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1)], at);
    assert!(!roster.expire(at + LEASE / 2));
    assert!(roster.expire(at + LEASE));
    assert!(roster.snapshot().peers.is_empty());
}

#[test]
fn who_never_says_where_it_is_is_not_waited_for_for_ever() {
    let start = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1)], start);
    let later = start + TO_APPEAR + Duration::from_secs(1);
    roster.lease(seen(A, "h", 2), later);
    let awaited = |roster: &Roster, at| roster.snapshot().peers[0].is_awaited(at);
    assert!(awaited(&roster, start));
    assert!(!awaited(&roster, later), "it runs, and takes no part");
    roster.addresses(&addresses(&[(A, 1)]), later);
    assert!(awaited(&roster, later), "it does now");
}

#[test]
fn a_list_ends_those_that_are_not_in_it() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    assert!(!roster.snapshot().listed);
    roster.leases(vec![seen(A, "h", 1), seen(B, "h", 1)], at);
    assert!(roster.snapshot().listed);
    roster.leases(vec![seen(B, "h", 1)], at);
    let snapshot = roster.snapshot();
    assert_eq!(snapshot.peers.len(), 1);
    assert!(snapshot.get(&identity(B)).is_some());
}

#[test]
fn only_a_change_that_we_see_is_a_sign_of_life() {
    let start = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1)], start);
    let later = start + Duration::from_secs(30);
    roster.leases(vec![seen(A, "h", 1)], later);
    let alive_until = |roster: &Roster| roster.snapshot().peers[0].alive_until;
    assert_eq!(alive_until(&roster), start + ALIVE);
    roster.lease(seen(A, "h", 2), later);
    assert_eq!(alive_until(&roster), later + ALIVE);
}

#[test]
fn a_new_address_is_asked_at_once_and_an_old_fetch_does_not_hide_it() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1)], at);
    roster.addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut roster, at), [A]);
    roster.addresses(&addresses(&[(A, 2)]), at);
    assert!(due(&mut roster, at).is_empty(), "one at a time");
    roster.fetched(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    let again = roster.due(at);
    assert_eq!(again[0].address.unwrap().port(), 2);
}

/// Its bridge has left and come back at the same address, and before 1.35 its Lease
/// says nothing.
#[test]
fn an_address_that_is_published_again_is_asked_at_once() {
    let at = Instant::now();
    let mut roster = Roster::new(identity(ME));
    roster.leases(vec![seen(A, "h", 1)], at);
    roster.addresses(&addresses(&[(A, 1)]), at);
    roster.due(at);
    roster.fetched(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    roster.addresses(&addresses(&[(A, 1)]), at);
    assert!(due(&mut roster, at).is_empty(), "nothing has happened");
    roster.addresses(&addresses(&[]), at);
    assert!(due(&mut roster, at).is_empty(), "it is away");
    roster.addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut roster, at), [A]);
    assert!(roster.snapshot().peers[0].served.is_some());
}

#[test]
fn a_server_whose_restart_is_no_event_is_asked_often() {
    let at = Instant::now();
    let etag = Some("\"a\"".to_owned());
    for (version, etag, soon) in [
        ("1.25.16", None, false),
        ("1.28.15", etag.clone(), true),
        ("1.34.4", etag.clone(), true),
        ("1.35.8", etag, false),
    ] {
        let mut roster = Roster::new(identity(ME));
        roster.leases(vec![seen(A, "h", 1)], at);
        roster.addresses(&addresses(&[(A, 1)]), at);
        roster.due(at);
        let version = Some(version.parse().unwrap());
        let served = Served {
            version,
            etags: [etag.clone(), etag],
            ..served()
        };
        roster.fetched(&identity(A), Ok(served), at, SystemTime::now(), 0.0);
        let later = at + Duration::from_secs(5);
        assert_eq!(!due(&mut roster, later).is_empty(), soon, "{version:?}");
    }
}

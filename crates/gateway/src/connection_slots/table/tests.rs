use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

fn source(number: u8) -> SourceNetwork {
    SourceNetwork::of(Ipv4Addr::new(192, 0, 2, number).into())
}

fn table(max: usize, reserved: usize, per_source: usize) -> SlotTable {
    SlotTable::new(Policy {
        max_connections: max,
        reserved,
        max_unauthenticated_per_source: per_source,
    })
}

/// An event; connections are numbered from 0 in the order of arrival.
enum Step {
    /// A connection of this source, and which one is evicted for it.
    Admit(u8, Option<(ConnectionId, EvictionReason)>),
    /// A connection of this source has to wait.
    Wait(u8),
    Promote(ConnectionId, Class),
    Close(ConnectionId),
}

use Class::{Authenticated, Reserved, Unauthenticated};
use EvictionReason::{SlotsFull, SourceLimit};
use Step::{Admit, Close, Promote, Wait};

/// Unauthenticated, overflow, authenticated, reserved.
fn counted(table: &SlotTable) -> [usize; 4] {
    let counts = table.counts();
    [
        counts.unauthenticated,
        counts.overflow,
        counts.authenticated,
        counts.reserved,
    ]
}

#[test]
#[allow(clippy::too_many_lines)] // a table
fn the_oldest_connection_that_has_not_authenticated_loses_its_slot() {
    let rows: [(&str, SlotTable, Vec<Step>, [usize; 4]); 9] = [
        (
            "unauthenticated connections evict each other, the oldest first",
            table(2, 0, 2),
            vec![
                Admit(1, None),
                Admit(2, None),
                Admit(3, Some((0, SlotsFull))),
                Admit(4, Some((1, SlotsFull))),
            ],
            [2, 0, 0, 0],
        ),
        (
            "an authenticated connection keeps its slot, and excess waits",
            table(2, 0, 2),
            vec![
                Admit(1, None),
                Promote(0, Authenticated),
                Admit(1, None),
                Admit(1, Some((1, SlotsFull))),
                Promote(2, Authenticated),
                Wait(1),
                Close(0),
                Admit(1, None),
            ],
            [1, 0, 1, 0],
        ),
        (
            "a source over its limit evicts its own oldest while slots are free",
            table(10, 0, 2),
            vec![
                Admit(2, None),
                Admit(1, None),
                Admit(1, None),
                Admit(1, Some((1, SourceLimit))),
                Admit(1, Some((2, SourceLimit))),
                Admit(2, None),
            ],
            [4, 0, 0, 0],
        ),
        (
            "authenticated connections do not count against their source",
            table(10, 0, 1),
            vec![
                Admit(1, None),
                Promote(0, Authenticated),
                Admit(1, None),
                Promote(1, Reserved),
                Admit(1, None),
                Admit(1, Some((2, SourceLimit))),
            ],
            [1, 0, 1, 1],
        ),
        (
            "authenticated connections do not keep the reserved share",
            table(3, 1, 3),
            vec![
                Admit(1, None),
                Admit(1, None),
                Admit(1, None),
                Promote(0, Authenticated),
                Promote(1, Authenticated),
                Promote(2, Authenticated),
                Admit(1, Some((2, SlotsFull))),
                Promote(3, Reserved),
                Wait(1),
            ],
            [0, 0, 2, 1],
        ),
        (
            "overflow connections are evicted after unauthenticated ones",
            table(3, 2, 3),
            vec![
                Admit(1, None),
                Admit(1, None),
                Promote(0, Authenticated),
                Promote(1, Authenticated),
                Admit(1, None),
                Admit(1, Some((2, SlotsFull))),
                Promote(3, Reserved),
                Admit(1, Some((1, SlotsFull))),
            ],
            [1, 0, 1, 1],
        ),
        (
            "a free authenticated slot goes to the oldest overflow connection",
            table(3, 2, 3),
            vec![
                Admit(1, None),
                Admit(1, None),
                Admit(1, None),
                Promote(0, Authenticated),
                Promote(2, Authenticated),
                Promote(1, Authenticated),
                Close(0),
                Admit(1, None),
                Promote(3, Reserved),
                Admit(1, Some((2, SlotsFull))),
            ],
            [1, 0, 1, 1],
        ),
        (
            "reserved connections use every slot",
            table(2, 1, 2),
            vec![
                Admit(1, None),
                Promote(0, Reserved),
                Admit(1, None),
                Promote(1, Reserved),
                Wait(1),
                Close(1),
            ],
            [0, 0, 0, 1],
        ),
        (
            "an evicted connection is neither promoted nor released twice",
            table(1, 0, 1),
            vec![
                Admit(1, None),
                Admit(2, Some((0, SlotsFull))),
                Promote(0, Authenticated),
                Promote(1, Unauthenticated),
                Close(0),
                Close(0),
            ],
            [1, 0, 0, 0],
        ),
    ];
    for (name, mut table, steps, expected) in rows {
        let mut next = 0;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Admit(from, evicted) => {
                    assert!(table.has_room(), "{name}, step {number}");
                    let admission = table.admit(source(from));
                    let expected = Admission::Admitted { id: next, evicted };
                    assert_eq!(admission, expected, "{name}, step {number}");
                    next += 1;
                }
                Wait(from) => {
                    assert!(!table.has_room(), "{name}, step {number}");
                    let admission = table.admit(source(from));
                    assert_eq!(admission, Admission::Full, "{name}, step {number}");
                }
                Promote(id, class) => table.promote(id, class),
                Close(id) => table.release(id),
            }
        }
        assert_eq!(counted(&table), expected, "{name}");
    }
}

#[test]
fn evicted_connections_that_are_not_closed_are_bounded() {
    let mut table = table(1, 0, 1);
    table.admit(source(1));
    for _ in 0..MAX_CLOSING_CONNECTIONS {
        assert!(table.has_room());
        table.admit(source(1));
    }
    assert!(!table.has_room());
    assert_eq!(table.admit(source(1)), Admission::Full);
    table.release(0);
    assert!(table.has_room());
}

#[test]
fn peers_nodes_and_components_have_the_reserved_share() {
    for (user, groups, expected) in [
        ("system:node:a", &["system:nodes"][..], true),
        ("system:node:a", &[], false),
        ("system:kube-controller-manager", &[], true),
        ("system:kube-scheduler", &[], true),
        ("system:apiserver", &[], true),
        ("admin", &["kubeadm:cluster-admins"], false),
        ("admin", &["dev", "system:masters"], true),
        ("system:anonymous", &["system:unauthenticated"], false),
        ("alice", &["system:authenticated"], false),
    ] {
        let groups: Vec<_> = groups.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(is_component(user, &groups), expected, "{user} {groups:?}");
    }
}

#[test]
fn shares_default_to_fractions() {
    let policy = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        let policy = Policy::of(&limits);
        (policy.reserved, policy.max_unauthenticated_per_source)
    };
    assert_eq!(policy(|_| {}), (1638, 4096));
    assert_eq!(policy(|it| it.max_connections = 1), (0, 16));
    let given = policy(|it| {
        it.reserved_connections = Some(0);
        it.max_unauthenticated_connections_per_source = Some(7);
    });
    assert_eq!(given, (0, 7));
}

#[derive(Debug, Clone)]
enum Event {
    Admit(u8),
    Promote(usize, Class),
    Close(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let class = prop_oneof![Just(Authenticated), Just(Reserved)];
    prop_oneof![
        3 => (0u8..4).prop_map(Event::Admit),
        2 => (any::<usize>(), class).prop_map(|(at, class)| Event::Promote(at, class)),
        2 => any::<usize>().prop_map(Event::Close),
    ]
}

proptest! {
    #[test]
    fn no_sequence_breaks_the_shares(
        max in 1usize..8,
        reserved in 0usize..8,
        per_source in 1usize..5,
        events in prop::collection::vec(event(), 1..200),
    ) {
        let reserved = reserved.min(max);
        let mut table = table(max, reserved, per_source);
        // All that were admitted and have not closed, with the class that they reached.
        let mut alive: Vec<(ConnectionId, Class)> = Vec::new();
        for event in events {
            match event {
                Event::Admit(from) => {
                    let before = table.counts();
                    match table.admit(source(from)) {
                        Admission::Admitted { id, evicted } => {
                            if let Some((candidate, _)) = evicted {
                                let at = alive.iter().position(|it| it.0 == candidate);
                                let (_, class) = alive.remove(at.unwrap());
                                prop_assert_ne!(class, Reserved);
                                if class == Authenticated {
                                    // It held a slot of the reserved share, and no
                                    // unauthenticated connection was left.
                                    prop_assert_eq!(before.unauthenticated, 0);
                                    prop_assert!(before.overflow > 0);
                                    prop_assert_eq!(before.authenticated, max - reserved);
                                }
                                // In this test, workers close it at once.
                                table.release(candidate);
                            }
                            alive.push((id, Unauthenticated));
                        }
                        Admission::Full => {
                            prop_assert_eq!(before.unauthenticated + before.overflow, 0);
                            prop_assert_eq!(before.authenticated + before.reserved, max);
                        }
                    }
                }
                Event::Promote(at, class) if !alive.is_empty() => {
                    let at = at % alive.len();
                    let (id, reached) = &mut alive[at];
                    table.promote(*id, class);
                    *reached = class.max(*reached);
                }
                Event::Close(at) if !alive.is_empty() => {
                    let at = at % alive.len();
                    let (id, _) = alive.remove(at);
                    table.release(id);
                }
                Event::Promote(..) | Event::Close(_) => {}
            }
            let counts = table.counts();
            let of = |class| alive.iter().filter(|it| it.1 == class).count();
            prop_assert!(alive.len() <= max);
            prop_assert_eq!(counts.reserved, of(Reserved));
            prop_assert_eq!(counts.unauthenticated, of(Unauthenticated));
            prop_assert_eq!(counts.authenticated + counts.overflow, of(Authenticated));
            prop_assert!(counts.authenticated <= max - reserved);
            // No connection waits for an authenticated slot that is free.
            prop_assert!(counts.overflow == 0 || counts.authenticated == max - reserved);
        }
    }
}

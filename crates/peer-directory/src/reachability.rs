//! Whether a peer can be reached, by the last discovery poll, the last request
//! and its identity Lease.

use std::time::Instant;

use crate::peer::Peer;
use crate::registry::RegistryStatus;

/// Whether a peer can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// The last poll and the last request were answered.
    Reachable,
    /// It has not been polled yet.
    NotPolled,
    /// It cannot be reached, for this reason.
    Unreachable(String),
}

impl Reachability {
    /// Whether it is known to be reachable.
    pub fn is_reachable(&self) -> bool {
        *self == Self::Reachable
    }

    /// Why the peer is not reachable.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Reachable => None,
            Self::NotPolled => Some("not polled yet"),
            Self::Unreachable(problem) => Some(problem),
        }
    }
}

/// Whether this peer can be reached, as currently known.
pub fn reachability(peer: &Peer, registry: &RegistryStatus, now: Instant) -> Reachability {
    let unreachable = |problem: String| Reachability::Unreachable(problem);
    if let Some(problem) = &peer.problem {
        return unreachable(problem.clone());
    }
    if peer.address.is_none() {
        return unreachable(registry.no_address());
    }
    if peer.health.is_failing() || !peer.health.is_reachable() {
        return unreachable("the last request to it failed".to_owned());
    }
    if peer.health.last_poll().is_none() {
        return Reachability::NotPolled;
    }
    if !peer.is_running(now) {
        return unreachable("its identity Lease is not renewed any more".to_owned());
    }
    Reachability::Reachable
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::identity::Identity;
    use crate::peer_health::PeerHealth;

    fn peer(now: Instant) -> Peer {
        let health = Arc::new(PeerHealth::default());
        health.record_poll(now);
        Peer {
            identity: Identity::named("apiserver-a").unwrap(),
            host: None,
            address: Some(([127, 0, 0, 1], 6443).into()),
            published: true,
            alive_until: now + Duration::from_secs(40),
            awaited_until: now,
            served: None,
            record: crate::peer::PeerRecord::default(),
            health,
            last_success: None,
            problem: None,
        }
    }

    fn up() -> RegistryStatus {
        RegistryStatus::up("etcd")
    }

    fn down() -> RegistryStatus {
        RegistryStatus {
            up: false,
            read_error: Some("--etcd-servers: refused".to_owned()),
            last_error: Some("--etcd-servers: refused".to_owned()),
            since: SystemTime::now(),
            ..up()
        }
    }

    #[test]
    fn a_peer_is_reachable_only_if_the_last_poll_and_the_last_request_were_answered() {
        type Change = fn(&mut Peer, Instant);
        let later = Duration::from_millis(10);
        let table: [(&str, Change, RegistryStatus, Option<&str>); 11] = [
            ("everything works", |_, _| {}, up(), None),
            ("the registry is down", |_, _| {}, down(), None),
            (
                "the last poll failed",
                |it, _| it.problem = Some("connect timed out".to_owned()),
                up(),
                Some("connect timed out"),
            ),
            (
                "no address",
                |it, _| it.address = None,
                up(),
                Some("it has published no address"),
            ),
            (
                "no address, and the registry is down",
                |it, _| it.address = None,
                down(),
                Some("the registry cannot be read: --etcd-servers: refused"),
            ),
            (
                "an address that is refused",
                |it, _| {
                    it.address = None;
                    it.problem = Some("outside of --peer-cidrs".to_owned());
                },
                down(),
                Some("outside of --peer-cidrs"),
            ),
            (
                "never polled",
                |it, _| it.health = Arc::default(),
                up(),
                Some("not polled yet"),
            ),
            (
                "a request failed after the last poll",
                |it, now| it.health.record_failure(now + Duration::from_millis(5)),
                up(),
                Some("the last request to it failed"),
            ),
            (
                "a poll succeeded after the failed request",
                |it, now| {
                    it.health.record_failure(now + Duration::from_millis(2));
                    it.health.record_poll(now + Duration::from_millis(5));
                },
                up(),
                None,
            ),
            (
                "a request succeeded after the failed one",
                |it, now| {
                    it.health.record_failure(now + Duration::from_millis(2));
                    it.health.record_success();
                },
                up(),
                None,
            ),
            (
                "the Lease is old, but the poll is not",
                |it, now| it.alive_until = now,
                up(),
                None,
            ),
        ];
        for (what, change, registry, expected) in table {
            let now = Instant::now();
            let mut peer = peer(now);
            change(&mut peer, now);
            let found = reachability(&peer, &registry, now + later);
            assert_eq!(found.problem(), expected, "{what}");
            assert_eq!(found.is_reachable(), expected.is_none(), "{what}");
        }
    }

    #[test]
    fn a_server_whose_lease_has_ended_is_not_reachable_by_an_old_poll() {
        let now = Instant::now();
        let peer = peer(now);
        let then = now + Duration::from_mins(2);
        let found = reachability(&peer, &up(), then);
        let expected = Some("its identity Lease is not renewed any more");
        assert_eq!(found.problem(), expected);
    }
}

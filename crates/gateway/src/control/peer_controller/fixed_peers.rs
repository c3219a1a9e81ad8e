//! Peers that are behind the same bridge. They count as running without identity Leases, because a
//! server that is removed for good is removed from the flags, or from the `EndpointSlices`.

use std::time::{Duration, Instant};

use skewbridge_peer_directory::registry::FixedServer;
use skewbridge_peer_directory::{Identity, LeaseSnapshot, PeerTable};
use tokio::sync::watch;

/// The interval at which they are renewed in the peer table, as kube-apiserver renews its Lease.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);

/// The configured peers.
#[derive(Debug)]
pub(super) struct FixedPeers {
    own: Identity,
    /// All servers behind the bridge.
    servers: watch::Receiver<Vec<FixedServer>>,
    renewals: u64,
    renewed_at: Option<Instant>,
}

impl FixedPeers {
    pub(super) fn new(own: Identity, servers: watch::Receiver<Vec<FixedServer>>) -> Self {
        Self {
            own,
            servers,
            renewals: 0,
            renewed_at: None,
        }
    }

    /// Renews all of them in the peer table, if that is due or they have changed.
    pub(super) fn renew(&mut self, peer_table: &mut PeerTable, now: Instant) {
        let is_renewed = (self.renewed_at).is_some_and(|at| now < at + RENEWAL_INTERVAL);
        // An error means that the sender is dropped: the list no longer changes.
        if is_renewed && !self.servers.has_changed().unwrap_or_default() {
            return;
        }
        self.renewed_at = Some(now);
        self.renewals += 1;
        let servers = self.servers.borrow_and_update();
        let others = servers.iter().filter(|it| it.identity != self.own);
        let snapshots = others.map(|server| LeaseSnapshot {
            identity: server.identity.clone(),
            host: None,
            holder: String::new(),
            resource_version: self.renewals.to_string(),
        });
        peer_table.set_leases(snapshots.collect(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_behind_the_bridge_run_from_the_start_until_they_are_removed() {
        let named = |name| Identity::named(name).unwrap();
        let server = |name| FixedServer {
            identity: named(name),
            host: "192.0.2.1".to_owned(),
            port: 6443,
        };
        let mut table = PeerTable::new(named("upstream-1"));
        let all = ["upstream-1", "upstream-2", "upstream-3"].map(server);
        let (change, servers) = watch::channel(all.to_vec());
        let mut peers = FixedPeers::new(named("upstream-1"), servers);
        let began = Instant::now();
        for seconds in [0, 11, 60, 4_000] {
            let now = began + Duration::from_secs(seconds);
            peers.renew(&mut table, now);
            table.expire(now);
            let snapshot = table.snapshot();
            assert!(snapshot.leases_listed);
            assert_eq!(snapshot.peers.len(), 2);
            assert!(snapshot.peers.iter().all(|it| it.alive_until > now));
        }
        // A change takes effect immediately, not with the next renewal.
        change.send_replace(all[..2].to_vec());
        let now = began + Duration::from_secs(4_001);
        peers.renew(&mut table, now);
        table.expire(now);
        let snapshot = table.snapshot();
        let running: Vec<_> = (snapshot.peers.iter())
            .filter(|it| it.alive_until > now)
            .map(|it| it.identity.as_str())
            .collect();
        assert_eq!(running, ["upstream-2"]);
    }
}

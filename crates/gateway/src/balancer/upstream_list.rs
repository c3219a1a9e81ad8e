//! The kube-apiservers behind a bridge with `--upstream=endpoints`: the values of `--upstream` until
//! the `EndpointSlices` have been read, then the addresses in them. Plain data, without I/O.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use rustls_pki_types::ServerName;
use skewbridge_peer_directory::Identity;
use tokio::time::Instant;

use crate::config::{MAX_UPSTREAMS, UpstreamServer};

/// Removal delay of a server that is no longer listed: as long as the upgrade of a host usually takes.
/// Until then the APIs that only this server serves get 503 and not 404.
const REMOVAL_DELAY: Duration = Duration::from_mins(5);

/// Removal delay of a value of `--upstream` that was never listed, such as a virtual address: it is
/// another name of a listed server. Long enough for its watches to end one after the other.
const UNLISTED_SEED_REMOVAL_DELAY: Duration = Duration::from_secs(15);

/// A kube-apiserver behind the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerEntry {
    /// Its identity as a peer of the others. Never given to another server.
    pub(crate) identity: Identity,
    pub(crate) server: UpstreamServer,
    /// Whether the `EndpointSlices` list it; true for all servers until they have been read.
    is_listed: bool,
    was_listed: bool,
    is_first: bool,
    drains_since: Option<Instant>,
}

impl ServerEntry {
    /// Whether it is the first one since the start.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether it gets no new requests because it is no longer listed and another server is ready.
    pub(crate) fn is_draining(&self) -> bool {
        self.drains_since.is_some()
    }
}

/// The servers behind the bridge, listed ones and those that drain.
#[derive(Debug)]
pub(crate) struct UpstreamList {
    entries: Vec<ServerEntry>,
    last_number: u32,
    /// The name in the certificates of listed servers; `None` if no `EndpointSlices` are read.
    server_name: Option<ServerName<'static>>,
}

impl UpstreamList {
    /// The list before the `EndpointSlices` are read.
    pub(crate) fn new(
        seeds: Vec<UpstreamServer>,
        server_name: Option<ServerName<'static>>,
    ) -> Self {
        let mut list = Self {
            entries: Vec::new(),
            last_number: 0,
            server_name,
        };
        for seed in seeds {
            list.add(seed, false);
        }
        list
    }

    /// Adds servers that were listed when an earlier process of this bridge ran, if the `EndpointSlices`
    /// are used: one that does not answer and is no longer listed is kept as if it had just ended.
    pub(crate) fn add_stored(&mut self, addresses: &[SocketAddr]) {
        let Some(server_name) = self.server_name.clone() else {
            return;
        };
        for address in addresses {
            let mut known = self.entries.iter().map(|it| address_of(&it.server));
            if known.any(|it| it == Some(*address)) || self.entries.len() == MAX_UPSTREAMS {
                continue;
            }
            let server = UpstreamServer {
                host: address.ip().to_string(),
                port: address.port(),
                server_name: server_name.clone(),
            };
            self.add(server, true);
        }
    }

    pub(crate) fn entries(&self) -> &[ServerEntry] {
        &self.entries
    }

    /// The `EndpointSlices` list these addresses. Without any address they are not used: a control
    /// plane has a server. Returns how many addresses are left out because of [`MAX_UPSTREAMS`].
    pub(crate) fn set_listed(&mut self, addresses: &BTreeSet<SocketAddr>) -> usize {
        let Some(server_name) = self.server_name.clone().filter(|_| !addresses.is_empty()) else {
            return 0;
        };
        let mut new = addresses.clone();
        for entry in &mut self.entries {
            let address = address_of(&entry.server);
            entry.is_listed = address.is_some_and(|it| new.remove(&it));
            entry.was_listed |= entry.is_listed;
        }
        let mut left_out = 0;
        for address in new {
            if self.entries.len() == MAX_UPSTREAMS {
                left_out += 1;
                continue;
            }
            let server = UpstreamServer {
                host: address.ip().to_string(),
                port: address.port(),
                server_name: server_name.clone(),
            };
            self.add(server, true);
        }
        left_out
    }

    /// Drains servers that are no longer listed, and returns the removed ones. As long as no listed
    /// server is ready, the others stay in use: the addresses may be wrong.
    pub(crate) fn update(
        &mut self,
        is_ready: impl Fn(&Identity) -> bool,
        now: Instant,
    ) -> Vec<ServerEntry> {
        let is_any_ready = (self.entries.iter()).any(|it| it.is_listed && is_ready(&it.identity));
        for entry in &mut self.entries {
            entry.drains_since =
                (!entry.is_listed && is_any_ready).then(|| entry.drains_since.unwrap_or(now));
        }
        let is_due = |entry: &ServerEntry| {
            let delay = if entry.was_listed {
                REMOVAL_DELAY
            } else {
                UNLISTED_SEED_REMOVAL_DELAY
            };
            entry.drains_since.is_some_and(|since| now >= since + delay)
        };
        let (removed, kept) = self.entries.drain(..).partition(is_due);
        self.entries = kept;
        removed
    }

    fn add(&mut self, server: UpstreamServer, was_listed: bool) {
        self.last_number += 1;
        // `upstream-NUMBER` is always a valid identity.
        let Ok(identity) = Identity::named(&format!("upstream-{}", self.last_number)) else {
            return;
        };
        self.entries.push(ServerEntry {
            identity,
            server,
            is_listed: true,
            was_listed,
            is_first: self.last_number == 1,
            drains_since: None,
        });
    }
}

fn address_of(server: &UpstreamServer) -> Option<SocketAddr> {
    let ip = server.host.parse().ok()?;
    Some(SocketAddr::new(ip, server.port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seed(host: &str) -> UpstreamServer {
        UpstreamServer {
            host: host.to_owned(),
            port: 6443,
            server_name: ServerName::try_from("seed").unwrap(),
        }
    }

    fn list(seeds: &[&str]) -> UpstreamList {
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        UpstreamList::new(seeds.iter().copied().map(seed).collect(), Some(name))
    }

    fn addresses(hosts: &[u8]) -> BTreeSet<SocketAddr> {
        let address = |host: &u8| SocketAddr::from(([10, 0, 0, *host], 6443));
        hosts.iter().map(address).collect()
    }

    /// Each server by the number of its identity and its host; `-` for one that drains.
    fn text(list: &UpstreamList) -> String {
        let entry = |it: &ServerEntry| {
            let mark = if it.is_draining() { "-" } else { "" };
            let number = it.identity.as_str().trim_start_matches("upstream-");
            format!("{mark}{number}={}", it.server.host)
        };
        let all: Vec<_> = list.entries().iter().map(entry).collect();
        all.join(" ")
    }

    #[test]
    fn servers_are_added_drained_and_removed_as_they_are_listed() {
        let began = Instant::now();
        let mut list = list(&["10.0.0.1"]);
        assert_eq!(text(&list), "1=10.0.0.1");
        let rows: [(&[u8], u64, &str); 6] = [
            (&[1, 2, 3], 0, "1=10.0.0.1 2=10.0.0.2 3=10.0.0.3"),
            // It ends, and returns after its upgrade.
            (&[1, 3], 10, "1=10.0.0.1 -2=10.0.0.2 3=10.0.0.3"),
            (&[1, 2, 3], 100, "1=10.0.0.1 2=10.0.0.2 3=10.0.0.3"),
            // Another server is removed permanently.
            (&[2, 3], 200, "-1=10.0.0.1 2=10.0.0.2 3=10.0.0.3"),
            (&[2, 3], 499, "-1=10.0.0.1 2=10.0.0.2 3=10.0.0.3"),
            (&[2, 3, 4], 500, "2=10.0.0.2 3=10.0.0.3 4=10.0.0.4"),
        ];
        for (listed, seconds, expected) in rows {
            list.set_listed(&addresses(listed));
            list.update(|_| true, began + Duration::from_secs(seconds));
            assert_eq!(text(&list), expected, "after {seconds} s");
        }
        // One that returns later is another server.
        list.set_listed(&addresses(&[1, 2, 3, 4]));
        assert!(text(&list).ends_with("5=10.0.0.1"), "{}", text(&list));
    }

    #[test]
    fn servers_of_an_earlier_process_are_kept_as_if_they_had_just_ended() {
        let began = Instant::now();
        let mut list = list(&["10.0.0.1"]);
        let stored: Vec<_> = addresses(&[1, 2, 3]).into_iter().collect();
        list.add_stored(&stored);
        assert_eq!(text(&list), "1=10.0.0.1 2=10.0.0.2 3=10.0.0.3");
        let rows: [(u64, &str); 3] = [
            (0, "1=10.0.0.1 -2=10.0.0.2 3=10.0.0.3"),
            (299, "1=10.0.0.1 -2=10.0.0.2 3=10.0.0.3"),
            (300, "1=10.0.0.1 3=10.0.0.3"),
        ];
        for (seconds, expected) in rows {
            list.set_listed(&addresses(&[1, 3]));
            list.update(|_| true, began + Duration::from_secs(seconds));
            assert_eq!(text(&list), expected, "after {seconds} s");
        }
        let mut without_slices = UpstreamList::new(vec![seed("10.0.0.1")], None);
        without_slices.add_stored(&stored);
        assert_eq!(
            text(&without_slices),
            "1=10.0.0.1",
            "the flags name all servers"
        );
    }

    #[test]
    fn a_flag_value_that_is_not_listed_is_removed_when_a_listed_server_is_ready() {
        let began = Instant::now();
        let mut list = list(&["vip.example.org", "10.0.0.1"]);
        list.set_listed(&addresses(&[1, 2]));
        let not_ready = list.update(|_| false, began);
        assert!(not_ready.is_empty());
        assert_eq!(text(&list), "1=vip.example.org 2=10.0.0.1 3=10.0.0.2");
        list.update(|it| it.as_str() == "upstream-3", began);
        assert_eq!(text(&list), "-1=vip.example.org 2=10.0.0.1 3=10.0.0.2");
        // A server that was only briefly ready does not replace it.
        list.update(|_| false, began + Duration::from_secs(14));
        assert_eq!(text(&list), "1=vip.example.org 2=10.0.0.1 3=10.0.0.2");
        let mut removed = Vec::new();
        for seconds in [20, 34, 35] {
            removed = list.update(|_| true, began + Duration::from_secs(seconds));
        }
        assert_eq!(removed[0].server.host, "vip.example.org");
        assert_eq!(text(&list), "2=10.0.0.1 3=10.0.0.2");
    }

    #[test]
    fn without_any_address_the_known_servers_stay() {
        let began = Instant::now();
        let mut list = list(&["10.0.0.1"]);
        list.set_listed(&addresses(&[1, 2]));
        list.set_listed(&addresses(&[]));
        for seconds in [0, 1_000] {
            list.update(|_| true, began + Duration::from_secs(seconds));
        }
        assert_eq!(text(&list), "1=10.0.0.1 2=10.0.0.2");
    }

    proptest! {
        /// Each listed server is in the list once, as long as there is room; identities are unique.
        #[test]
        fn listed_servers_are_in_the_list_once(
            steps in prop::collection::vec((prop::collection::btree_set(0..60_u8, 0..45), 0..900_u64, any::<bool>()), 1..8),
        ) {
            let mut list = list(&["10.0.0.1", "vip"]);
            let mut now = Instant::now();
            for (hosts, seconds, is_ready) in steps {
                now += Duration::from_secs(seconds);
                let listed = addresses(&hosts.iter().copied().collect::<Vec<_>>());
                let left_out = list.set_listed(&listed);
                list.update(|_| is_ready, now);
                prop_assert!(list.entries().len() <= MAX_UPSTREAMS);
                let known: Vec<_> = (list.entries().iter()).filter_map(|it| address_of(&it.server)).collect();
                let unique: BTreeSet<_> = known.iter().collect();
                prop_assert_eq!(known.len(), unique.len());
                let missing = listed.iter().filter(|it| !known.contains(it)).count();
                prop_assert_eq!(missing, left_out);
                let identities: BTreeSet<_> = list.entries().iter().map(|it| it.identity.as_str()).collect();
                prop_assert_eq!(identities.len(), list.entries().len());
            }
        }
    }
}

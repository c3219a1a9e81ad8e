//! Which server each listed address belongs to.
//!
//! `EndpointSlices` list addresses of kube-apiservers without identities, and identity Leases list
//! identities without addresses. This module joins them, so that no server counts twice: not the
//! local server, and not a bridge and the server behind it. An address whose identity is not
//! known is a server of its own, named by the address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::identity::Identity;
use crate::registry::{AddressOrigin, Addresses};
use crate::served_record::{Records, ServedRecord};

/// What is known of the servers of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct KnownServers<'a> {
    /// The identity of the local server.
    pub own: &'a Identity,
    /// The addresses of this bridge and of the local server.
    pub own_addresses: &'a BTreeSet<SocketAddr>,
    /// The servers that have an identity Lease, with the address in its annotations.
    pub leases: &'a BTreeMap<Identity, Option<SocketAddr>>,
    /// The addresses in the registry.
    pub registry: &'a Addresses,
    /// The served records in the registry.
    pub published: &'a Records,
    /// The served records in `--state-dir`.
    pub stored: &'a Records,
    /// What servers have presented at their addresses.
    pub observed: &'a BTreeMap<SocketAddr, ObservedServer>,
}

/// What a server has presented at an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedServer {
    /// The identity of the local server of the bridge that has answered there.
    pub bridge_of: Option<Identity>,
    /// The DNS names of its serving certificate, at most [`MAX_CERTIFICATE_NAMES`].
    pub certificate_names: Vec<String>,
}

/// The largest number of names of a certificate that are compared with host names.
pub const MAX_CERTIFICATE_NAMES: usize = 64;

/// The servers at the listed addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerAddresses {
    /// The address of each server whose identity is known.
    pub identified: BTreeMap<Identity, SocketAddr>,
    /// The addresses of the other servers.
    pub unidentified: BTreeSet<SocketAddr>,
}

/// Why an address belongs to an identity: the first source that names exactly one identity is
/// used. What answers at the address is more recent than what was published, and that is more
/// recent than what was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// The bridge that answers there names the identity.
    Bridge,
    /// The registry has this address for the identity.
    Registry,
    /// The identity Lease has this address.
    Lease,
    /// The serving certificate is valid for the host name from which the identity is derived.
    Certificate,
    /// The served record in the registry has this address.
    PublishedRecord,
    /// The served record in `--state-dir` has this address.
    StoredRecord,
}

const ALL_EVIDENCE: [Evidence; 6] = [
    Evidence::Bridge,
    Evidence::Registry,
    Evidence::Lease,
    Evidence::Certificate,
    Evidence::PublishedRecord,
    Evidence::StoredRecord,
];

/// Assigns each listed address to a server. The addresses of this bridge and of the local server
/// are left out.
pub fn assign(listed: &BTreeSet<SocketAddr>, known: &KnownServers<'_>) -> ServerAddresses {
    let mut claims: BTreeMap<Identity, Vec<(Evidence, SocketAddr)>> = BTreeMap::new();
    let mut servers = ServerAddresses::default();
    for address in listed {
        if known.own_addresses.contains(address) {
            continue;
        }
        match known.identity_at(*address) {
            Some((_, identity)) if identity == *known.own => {}
            Some((evidence, identity)) => {
                claims
                    .entry(identity)
                    .or_default()
                    .push((evidence, *address));
            }
            None => {
                servers.unidentified.insert(*address);
            }
        }
    }
    for (identity, mut claims) in claims {
        claims.sort_unstable();
        let Some((best, address)) = claims.first().copied() else {
            continue;
        };
        let mut equals = claims.iter().filter(|(it, _)| *it == best);
        if best == Evidence::Certificate && equals.nth(1).is_some() {
            // Several servers present one certificate: it identifies none of them.
            servers
                .unidentified
                .extend(claims.into_iter().map(|(_, address)| address));
            continue;
        }
        servers.identified.insert(identity, address);
        // Further addresses with the same evidence belong to the same server. Weaker evidence may
        // be that of an earlier server at the address.
        let weaker = claims.into_iter().filter(|(it, _)| *it != best);
        servers
            .unidentified
            .extend(weaker.map(|(_, address)| address));
    }
    servers
}

impl KnownServers<'_> {
    /// The identity of the server at an address.
    fn identity_at(&self, address: SocketAddr) -> Option<(Evidence, Identity)> {
        ALL_EVIDENCE.into_iter().find_map(|evidence| {
            let mut identities = self.identities(evidence, address);
            // Without a Lease or an address in the registry, an identity names no running server.
            identities.retain(|it| {
                it == self.own || self.leases.contains_key(it) || self.registry.contains_key(it)
            });
            let identity = identities.pop_first()?;
            identities.is_empty().then_some((evidence, identity))
        })
    }

    fn identities(&self, evidence: Evidence, address: SocketAddr) -> BTreeSet<Identity> {
        let observed = self.observed.get(&address);
        match evidence {
            Evidence::Bridge => observed
                .and_then(|it| it.bridge_of.clone())
                .into_iter()
                .collect(),
            Evidence::Registry => (self.registry.iter())
                .filter(|(_, it)| {
                    it.address == address
                        || it.origin
                            == AddressOrigin::File {
                                server: Some(address),
                            }
                })
                .map(|(identity, _)| identity.clone())
                .collect(),
            Evidence::Lease => (self.leases.iter())
                .filter(|(_, it)| **it == Some(address))
                .map(|(identity, _)| identity.clone())
                .collect(),
            Evidence::Certificate => (observed.iter())
                .flat_map(|it| &it.certificate_names)
                .map(|name| Identity::of_hostname(name))
                .filter(|it| it == self.own || self.leases.contains_key(it))
                .collect(),
            Evidence::PublishedRecord => of_records(self.published, address),
            Evidence::StoredRecord => of_records(self.stored, address),
        }
    }
}

fn of_records(records: &Records, address: SocketAddr) -> BTreeSet<Identity> {
    let names = |record: &ServedRecord| {
        record.identity.address().is_none()
            && (record.server == Some(address) || record.bridge == Some(address))
    };
    (records.values())
        .filter(|record| names(record))
        .map(|record| record.identity.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::registry::AdvertisedAddress;
    use crate::served_record::tests::record;

    /// The host name of the server with this letter.
    fn host(letter: &str) -> String {
        format!("cp-{letter}")
    }

    fn identity(letter: &str) -> Identity {
        Identity::of_hostname(&host(letter))
    }

    fn address(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 6443).into()
    }

    #[derive(Default)]
    struct Facts {
        own_addresses: BTreeSet<SocketAddr>,
        leases: BTreeMap<Identity, Option<SocketAddr>>,
        registry: Addresses,
        published: Records,
        stored: Records,
        observed: BTreeMap<SocketAddr, ObservedServer>,
    }

    impl Facts {
        fn lease(mut self, letter: &str, annotated: Option<u8>) -> Self {
            self.leases.insert(identity(letter), annotated.map(address));
            self
        }

        fn own_address(mut self, number: u8) -> Self {
            self.own_addresses.insert(address(number));
            self
        }

        fn registry(mut self, letter: &str, advertised: AdvertisedAddress) -> Self {
            self.registry.insert(identity(letter), advertised);
            self
        }

        fn certificate(mut self, number: u8, hosts: &[&str]) -> Self {
            let observed = self.observed.entry(address(number)).or_default();
            observed.certificate_names = hosts.iter().map(|it| host(it)).collect();
            self
        }

        fn bridge(mut self, number: u8, letter: &str) -> Self {
            let observed = self.observed.entry(address(number)).or_default();
            observed.bridge_of = Some(identity(letter));
            self
        }

        fn published(mut self, letter: &str, server: Option<u8>, bridge: Option<u8>) -> Self {
            let record = served(letter, server, bridge);
            self.published.insert(identity(letter), record);
            self
        }

        fn stored(mut self, letter: &str, server: u8) -> Self {
            let record = served(letter, Some(server), None);
            self.stored.insert(identity(letter), record);
            self
        }

        fn assign(&self, numbers: &[u8]) -> ServerAddresses {
            let listed = numbers.iter().copied().map(address).collect();
            let own = identity("own");
            let known = KnownServers {
                own: &own,
                own_addresses: &self.own_addresses,
                leases: &self.leases,
                registry: &self.registry,
                published: &self.published,
                stored: &self.stored,
                observed: &self.observed,
            };
            assign(&listed, &known)
        }
    }

    fn served(letter: &str, server: Option<u8>, bridge: Option<u8>) -> Arc<ServedRecord> {
        let mut record = record(identity(letter).as_str(), &[], SystemTime::UNIX_EPOCH);
        record.server = server.map(address);
        record.bridge = bridge.map(address);
        Arc::new(record)
    }

    fn with_leases() -> Facts {
        let facts = Facts::default().lease("own", None);
        facts.lease("a", None).lease("b", None)
    }

    /// The servers that the addresses 1 and 2 belong to: `-` for a server without an identity, and
    /// nothing for one that does not count.
    #[test]
    #[allow(clippy::too_many_lines)] // a table
    fn an_address_belongs_to_the_server_that_the_first_evidence_names() {
        let by_bridge = |number| AdvertisedAddress::by_bridge(address(number));
        let by_server = |number| AdvertisedAddress::by_server(address(number));
        let file =
            |number, server| AdvertisedAddress::by_file(address(number), Some(address(server)));
        let table: [(&str, Facts, [&str; 2]); 22] = [
            ("nothing is known", Facts::default(), ["-", "-"]),
            ("Leases without addresses", with_leases(), ["-", "-"]),
            (
                "this bridge, or the local server",
                with_leases().own_address(1),
                ["", "-"],
            ),
            (
                "this bridge answers",
                with_leases().bridge(1, "own"),
                ["", "-"],
            ),
            (
                "the certificate is that of the local host",
                with_leases().certificate(1, &["own"]),
                ["", "-"],
            ),
            (
                "another bridge answers",
                with_leases().bridge(1, "a"),
                ["a", "-"],
            ),
            (
                "another bridge answers, and its server has ended",
                with_leases().bridge(1, "c"),
                ["-", "-"],
            ),
            (
                "the registry has the address of a bridge",
                with_leases().registry("a", by_bridge(1)),
                ["a", "-"],
            ),
            (
                "the registry has the address of a server since 1.36",
                with_leases().registry("a", by_server(2)),
                ["-", "a"],
            ),
            (
                "the file has the address of the server behind a bridge",
                with_leases().registry("a", file(9, 2)),
                ["-", "a"],
            ),
            (
                "a server since 1.36 annotates its Lease",
                with_leases().lease("a", Some(1)),
                ["a", "-"],
            ),
            (
                "each server has a certificate for its host",
                with_leases()
                    .certificate(1, &["b", "kubernetes"])
                    .certificate(2, &["a"]),
                ["b", "a"],
            ),
            (
                "two servers share a certificate for all hosts",
                with_leases()
                    .certificate(1, &["a", "b"])
                    .certificate(2, &["a", "b"]),
                ["-", "-"],
            ),
            (
                "two servers share a certificate for one host",
                with_leases().certificate(1, &["a"]).certificate(2, &["a"]),
                ["-", "-"],
            ),
            (
                "no server of that host has a Lease",
                with_leases().certificate(1, &["c"]),
                ["-", "-"],
            ),
            (
                "the bridge of a server has published the address of the server",
                with_leases().published("a", Some(1), Some(9)),
                ["a", "-"],
            ),
            (
                "a killed bridge had the address",
                with_leases().published("a", None, Some(2)),
                ["-", "a"],
            ),
            (
                "two records have the address",
                with_leases()
                    .published("a", Some(1), None)
                    .published("b", Some(1), None),
                ["-", "-"],
            ),
            (
                "an earlier process stored it",
                with_leases().stored("a", 1),
                ["a", "-"],
            ),
            (
                "another server has the address since",
                with_leases().stored("a", 1).certificate(1, &["b"]),
                ["b", "-"],
            ),
            (
                "the server of a stored address has another one now",
                with_leases().stored("a", 1).certificate(2, &["a"]),
                ["-", "a"],
            ),
            (
                "what answers is more certain than what was published",
                with_leases()
                    .bridge(1, "a")
                    .registry("b", by_bridge(1))
                    .certificate(2, &["b"]),
                ["a", "b"],
            ),
        ];
        for (name, facts, expected) in table {
            let servers = facts.assign(&[1, 2]);
            let at = |number: u8| {
                let is_at = |(_, it): &(&Identity, &SocketAddr)| **it == address(number);
                match servers.identified.iter().find(is_at) {
                    Some((it, _)) => ["a", "b"].into_iter().find(|at| identity(at) == *it),
                    None if servers.unidentified.contains(&address(number)) => Some("-"),
                    None => Some(""),
                }
            };
            assert_eq!([at(1), at(2)], expected.map(Some), "{name}");
        }
    }

    #[test]
    fn two_addresses_of_one_server_count_once() {
        let facts = with_leases().bridge(1, "a").bridge(2, "a");
        let servers = facts.assign(&[1, 2]);
        assert_eq!(servers.identified, [(identity("a"), address(1))].into());
        assert!(servers.unidentified.is_empty());
    }

    #[test]
    fn addresses_that_are_not_listed_are_not_used() {
        let facts = with_leases().published("a", Some(9), Some(8));
        assert_eq!(facts.assign(&[]), ServerAddresses::default());
    }

    proptest! {
        /// Whatever is known: each listed address is that of at most one server, no other address
        /// is used, and the local server is not among them.
        #[test]
        fn no_server_counts_twice(
            listed in prop::collection::btree_set(1_u8..6, 0..6),
            leases in prop::collection::vec((0_usize..3, prop::option::of(1_u8..6)), 0..4),
            registry in prop::collection::vec((0_usize..3, 1_u8..6), 0..3),
            certificates in prop::collection::vec((1_u8..6, 0_usize..3), 0..6),
            bridges in prop::collection::vec((1_u8..6, 0_usize..3), 0..3),
            published in prop::collection::vec((0_usize..3, prop::option::of(1_u8..6)), 0..3),
            own in prop::option::of(1_u8..6),
        ) {
            const LETTERS: [&str; 3] = ["a", "b", "own"];
            let mut facts = Facts::default();
            for (letter, annotated) in leases {
                facts = facts.lease(LETTERS[letter], annotated);
            }
            for (letter, number) in registry {
                let advertised = AdvertisedAddress::by_bridge(address(number));
                facts = facts.registry(LETTERS[letter], advertised);
            }
            for (number, letter) in certificates {
                facts = facts.certificate(number, &[LETTERS[letter]]);
            }
            for (number, letter) in bridges {
                facts = facts.bridge(number, LETTERS[letter]);
            }
            for (letter, server) in published {
                facts = facts.published(LETTERS[letter], server, None);
            }
            if let Some(own) = own {
                facts = facts.own_address(own);
            }
            let numbers: Vec<_> = listed.into_iter().collect();
            let servers = facts.assign(&numbers);
            let all: BTreeSet<_> = numbers.into_iter().map(address).collect();
            let identified: BTreeSet<_> = servers.identified.values().copied().collect();
            prop_assert_eq!(identified.len(), servers.identified.len());
            prop_assert!(identified.is_disjoint(&servers.unidentified));
            prop_assert!(identified.union(&servers.unidentified).all(|it| all.contains(it)));
            prop_assert!(!servers.identified.contains_key(&identity("own")));
            let own_addresses = &facts.own_addresses;
            prop_assert!(identified.is_disjoint(own_addresses));
            prop_assert!(servers.unidentified.is_disjoint(own_addresses));
        }
    }
}

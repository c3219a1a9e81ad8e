//! The addresses of peers: those in the registry, and listed ones, assigned to servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use skewbridge_peer_directory::registry::{
    Activity, AddressOrigin, Addresses, AdvertisedAddress, StatusReporter,
};
use skewbridge_peer_directory::{
    EndpointSlice, Identity, KnownServers, ListedAddresses, server_addresses,
};

use super::PeerController;
use super::informer::Change;
use super::leases::lease_addresses;
use super::listed_servers::ListedServers;
use super::permitted_networks::partition_permitted;
use crate::peer_config::{PeerRegistry, PeeringConfig};

/// The addresses from all sources.
#[derive(Debug)]
pub(super) struct PeerAddresses {
    /// The addresses in the registry; `None` until a file of addresses has been read, because a
    /// file that has not been read is no empty file.
    published: Option<Addresses>,
    /// Servers in `EndpointSlices`, and those without a bridge in a file.
    pub(super) listed_servers: ListedServers,
    /// Networks that addresses must be in; empty permits any address.
    pub(super) networks: Vec<IpNet>,
    /// Addresses that were rejected, so that each is logged once.
    pub(super) rejected: Addresses,
    /// The status of the registry.
    reporter: Arc<StatusReporter>,
    are_in_file: bool,
}

impl PeerAddresses {
    pub(super) fn new(config: &PeeringConfig) -> Self {
        let are_in_file = matches!(config.registry, PeerRegistry::File(_));
        let own = config.own_addresses.clone();
        Self {
            published: (!are_in_file).then(Addresses::new),
            listed_servers: ListedServers::new(own, config.reads_endpoints),
            networks: config.networks.clone(),
            rejected: Addresses::new(),
            reporter: config.registry_reporter(),
            are_in_file,
        }
    }

    /// Whether an administrator maintains the addresses in a file.
    pub(super) fn are_in_file(&self) -> bool {
        self.are_in_file
    }
}

impl PeerController {
    pub(super) fn on_endpoints_change(&mut self, change: Change<EndpointSlice>, now: Instant) {
        match change {
            Change::Listed(all) => {
                self.addresses.listed_servers.slices.set_all(all);
                // Before the registry counts as read.
                self.apply_addresses(now);
                self.addresses.reporter.succeeded(Activity::ReadEndpoints);
            }
            Change::Event(event) => {
                self.addresses.listed_servers.slices.apply(event);
                self.apply_addresses(now);
            }
            Change::WatchBegan | Change::WatchEnded => {}
            Change::Failed(problem) => {
                let error = format!(
                    "--peer-registry: endpoints: {problem}; the user --bridge-user needs the right \
                     to list and watch endpointslices in the namespace default"
                );
                self.addresses
                    .reporter
                    .failed(Activity::ReadEndpoints, error);
            }
        }
    }

    /// Replaces the addresses in the registry.
    pub(super) fn set_addresses(&mut self, published: Addresses, now: Instant) {
        self.addresses.published = Some(published);
        self.apply_addresses(now);
    }

    /// Assigns addresses to servers: those in the registry, and listed ones.
    pub(super) fn apply_addresses(&mut self, now: Instant) {
        let Some(mut published) = self.addresses.published.clone() else {
            return;
        };
        published.extend(self.addresses.listed_servers.in_slices());
        let (permitted, rejected) = partition_permitted(published, &self.addresses.networks);
        for (identity, advertised) in &rejected {
            if self.addresses.rejected.get(identity) != Some(advertised) {
                let address = advertised.address;
                tracing::warn!(peer = %self.name_of(identity), %address, "the address of a peer is outside of --peer-cidrs; it is ignored");
            }
        }
        let (listed, mut addresses): (Addresses, Addresses) = permitted
            .into_iter()
            .partition(|(identity, _)| identity.address().is_some());
        let all: BTreeSet<_> = listed.values().map(|it| it.address).collect();
        self.addresses.listed_servers.set_listed(all.clone(), now);
        let known = KnownServers {
            own: &self.identity,
            own_addresses: self.addresses.listed_servers.own_addresses(),
            leases: &lease_addresses(&self.leases),
            registry: &addresses,
            published: self.peer_table.published_records(),
            stored: self.peer_table.stored_records(),
            observed: self.addresses.listed_servers.observed(),
        };
        let servers = server_addresses::assign(&all, &known);
        for (identity, address) in &servers.identified {
            let Some(advertised) = listed.get(&Identity::of_address(*address)) else {
                continue;
            };
            let known = addresses.get(identity).map(|it| it.origin);
            // Other hosts may not be able to reach the address that a server since 1.36 writes.
            let is_own = known == Some(AddressOrigin::Server) && !self.addresses.are_in_file;
            if known.is_none() || is_own {
                addresses.insert(identity.clone(), *advertised);
            }
        }
        let unidentified = &servers.unidentified;
        let is_unidentified =
            |(_, it): &(Identity, AdvertisedAddress)| unidentified.contains(&it.address);
        addresses.extend(listed.into_iter().filter(is_unidentified));
        let listed = ListedAddresses {
            all,
            identified: servers.identified,
        };
        self.peer_table.set_listed_addresses(listed);
        self.peer_table.set_addresses(&addresses, now);
        self.peer_table.set_refused_addresses(&rejected);
        self.addresses.rejected = rejected;
    }
}

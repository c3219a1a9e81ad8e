//! The effect of each event on what the controller knows.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use skewbridge_peer_directory::registry::{Activity, Addresses};
use skewbridge_peer_directory::watch::WatchEvent;
use skewbridge_peer_directory::{
    ApiService, CustomResourceDefinition, Identity, IdentityLease, Records,
};
use tokio::sync::{mpsc, watch};

use super::informer::Change;
use super::leases::{annotated_addresses, lease_snapshot};
use super::own_lease::Annotations;
use super::permitted_networks::{is_permitted, keep_permitted_server, remove_addresses};
use super::watched_kinds::InformerState;
use super::{Event, PeerController};
use crate::discovery_view::freshness::SETTLING_PERIOD;
use crate::metrics::peers::SyncErrorType;

impl PeerController {
    /// Handles all queued events, then publishes one snapshot.
    pub(super) fn handle_events(&mut self, first: Event, others: &mut mpsc::Receiver<Event>) {
        self.handle_event(first);
        while let Ok(event) = others.try_recv() {
            self.handle_event(event);
        }
        self.publish();
        self.policies.notify_waiters();
        self.notify_refresh_waiters();
        self.notify_confirmation_waiters();
    }

    fn handle_event(&mut self, event: Event) {
        let now = Instant::now();
        let jitter = self.jitter();
        match event {
            Event::Fields(key, result) => {
                if let Some(fields) = &mut self.fields {
                    fields.record(key, result, now);
                }
            }
            Event::Lease(change) => self.on_lease_change(change, now),
            Event::ApiService(change) => self.on_api_service_change(change, now),
            Event::CustomResource(change) => self.on_custom_resource_change(change, now),
            Event::Endpoints(change) => self.on_endpoints_change(change, now),
            Event::Certificate(address, names) => {
                if (self.addresses.listed_servers).on_certificate(address, names, now, jitter) {
                    self.apply_addresses(now);
                }
            }
            Event::Policies(event) => self.policies.on_event(event, now),
            Event::Peer(identity, poll) => self.on_peer_poll(&identity, poll, now, jitter),
            Event::Local(outcome, poll) => self.on_local_poll(outcome, poll, now, jitter),
        }
    }

    fn on_api_service_change(&mut self, change: Change<ApiService>, now: Instant) {
        if let Some(is_open) = change.opens_watch() {
            self.informers.api_services.set_watched(is_open);
            return self.on_watch_change(is_open, now);
        }
        self.begin_settling(now);
        match change {
            Change::Listed(all) => {
                self.shared_tracker.set_api_services(&all, now);
                self.informers.api_services = InformerState::Listed;
            }
            Change::Event(event) => {
                if !self.shared_tracker.on_api_service(&event, now) {
                    // Only its status has changed: the set of shared APIs is the same.
                    return self.local_schedule.refresh_now(now);
                }
            }
            Change::Failed(_) | Change::WatchBegan | Change::WatchEnded => return,
        }
        self.update_shared();
        self.local_schedule.refresh_now(now);
    }

    fn on_custom_resource_change(
        &mut self,
        change: Change<CustomResourceDefinition>,
        now: Instant,
    ) {
        if let Some(is_open) = change.opens_watch() {
            self.informers.custom_resources.set_watched(is_open);
            return self.on_watch_change(is_open, now);
        }
        self.begin_settling(now);
        match change {
            Change::Listed(all) => {
                self.shared_tracker.set_crds(&all, now);
                self.informers.custom_resources = InformerState::Listed;
            }
            Change::Event(event) => {
                if !self.shared_tracker.on_crd(&event, now) {
                    return self.local_schedule.refresh_now(now);
                }
            }
            Change::Failed(_) | Change::WatchBegan | Change::WatchEnded => return,
        }
        self.update_shared();
        self.local_schedule.refresh_now(now);
    }

    /// A watch of the APIs that all servers share was opened or has ended. Discovery is read again: changes
    /// may have been missed, or come without an event.
    fn on_watch_change(&mut self, is_open: bool, now: Instant) {
        self.informers.note_watch(now);
        if !is_open {
            self.begin_settling(now);
        }
        self.local_schedule.refresh_now(now);
    }

    fn on_lease_change(&mut self, change: Change<IdentityLease>, now: Instant) {
        match change {
            Change::Listed(mut all) => {
                self.lease_status.succeeded(Activity::Read);
                self.own_lease.remove_stale(&all);
                for (identity, lease) in &self.leases {
                    if !all.iter().any(|it| it.identity() == identity) {
                        self.ended.add(lease.clone(), now);
                    }
                }
                // A Lease that had expired before the list belongs to no running server.
                let wall = SystemTime::now();
                all.retain(|lease| !lease.is_expired(wall));
                self.peer_table
                    .set_leases(all.iter().map(lease_snapshot).collect(), now);
                self.leases = all
                    .into_iter()
                    .map(|lease| (lease.identity().clone(), lease))
                    .collect();
            }
            Change::Event(WatchEvent::Deleted(lease)) => {
                self.peer_table.remove_lease(lease.identity(), now);
                self.leases.remove(lease.identity());
                self.ended.add(lease, now);
            }
            Change::Event(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => {
                self.peer_table.update_lease(lease_snapshot(&lease), now);
                self.leases.insert(lease.identity().clone(), lease);
            }
            Change::Event(_) | Change::WatchBegan | Change::WatchEnded => {}
            Change::Failed(problem) => {
                self.lease_status.failed(Activity::Read, problem);
                let metrics = self.client.bridge.metrics.peers();
                metrics.sync_error(SyncErrorType::Leases);
            }
        }
        if self.annotations == Annotations::Nothing {
            if self.addresses.listed_servers.is_used() {
                self.apply_addresses(now);
            }
            // The Lease of a rejected address may be created after the address.
            return self
                .peer_table
                .set_refused_addresses(&self.addresses.rejected);
        }
        let leases = self.ended.with_existing(&self.leases, now);
        let mut records = self.records.annotated(&leases, &self.addresses.networks);
        match self.annotations {
            Annotations::AddressesAndRecords => {
                let addresses = annotated_addresses(&leases, &records);
                self.set_addresses(addresses, now);
            }
            _ => records.values_mut().for_each(remove_addresses),
        }
        self.records.on_records_read(&records);
        self.peer_table.set_published_records(&records, now);
        if self.addresses.listed_servers.is_used() {
            self.apply_addresses(now);
        }
    }

    pub(super) fn on_addresses(&mut self, all: Addresses) {
        self.set_addresses(all, Instant::now());
        self.publish();
    }

    /// The served records in the registry have changed.
    pub(super) fn on_records(&mut self, all: Option<Records>) {
        if let Some(mut all) = all {
            for record in all.values_mut() {
                if (record.server).is_some_and(|it| !is_permitted(it, &self.addresses.networks)) {
                    keep_permitted_server(Arc::make_mut(record), &self.addresses.networks);
                }
            }
            self.records.on_records_read(&all);
            self.peer_table.set_published_records(&all, Instant::now());
            if self.addresses.listed_servers.is_used() {
                self.apply_addresses(Instant::now());
            }
            self.publish();
        }
    }

    /// The registry has been read. The first time, addresses and records are taken over before the
    /// peer table stops waiting for the registry.
    pub(super) fn on_registry_read(
        &mut self,
        addresses: &mut watch::Receiver<Addresses>,
        records: &mut watch::Receiver<Option<Records>>,
    ) {
        if !self.peer_table.awaits_registry() {
            return;
        }
        if self.annotations != Annotations::AddressesAndRecords {
            self.on_addresses(addresses.borrow_and_update().clone());
        }
        if self.annotations == Annotations::Nothing {
            self.on_records(records.borrow_and_update().clone());
        }
        self.peer_table.mark_registry_read(Instant::now());
        self.publish();
    }

    /// An API that all servers share was created or deleted. Each server serves the change after
    /// some delay, without an event.
    fn begin_settling(&mut self, now: Instant) {
        self.local_discovery.settling_until = Some(now + SETTLING_PERIOD);
    }

    /// Host and identity of a peer, for the log.
    pub(super) fn name_of(&self, identity: &Identity) -> String {
        match &self.client.bridge.cluster_handle {
            Some(cluster_handle) => cluster_handle.name_of(identity),
            None => identity.to_string(),
        }
    }

    /// From 0 to 1.
    #[allow(clippy::cast_precision_loss)] // any value spreads the polls
    fn jitter(&self) -> f64 {
        self.client.bridge.next_lb_seed() as f64 / u64::MAX as f64
    }
}

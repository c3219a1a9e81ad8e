//! The cluster snapshot that requests read, made of what the controller knows.

use std::sync::Arc;
use std::time::Instant;

use super::PeerController;
use super::watched_kinds::InformerState;
use crate::cluster_state::Cluster;
use crate::discovery_view::View;
use crate::discovery_view::freshness::LocalDiscoveryState;

impl PeerController {
    /// Replaces the cluster snapshot.
    pub(super) fn publish(&mut self) {
        let Some(cluster_handle) = &self.client.bridge.cluster_handle else {
            return;
        };
        let peers = self.peer_table.snapshot();
        self.records.log_departures(&peers);
        if peers.leases_listed {
            (self.policies).update(self.local.as_deref(), &peers, Instant::now());
        }
        let policies = self.policies.current();
        let placement = self.client.bridge.metrics.placement();
        placement.dropped_policies(self.policies.take_dropped());
        let began = Instant::now();
        let view = match (&self.local, &self.shared) {
            (Some(local), Some(shared)) if peers.leases_listed => {
                View::of(&self.identity, local, &peers, shared, self.view.as_ref())
            }
            _ => None,
        };
        let is_new = match (&self.view, &view) {
            (Some(before), Some(view)) => !Arc::ptr_eq(before, view),
            (before, view) => before.is_some() != view.is_some(),
        };
        if is_new && view.is_some() {
            let metrics = self.client.bridge.metrics.discovery();
            metrics.recomputed(began.elapsed());
        }
        self.view.clone_from(&view);
        let fields = match (&mut self.fields, &self.local, &self.shared) {
            (Some(fields), Some(local), Some(shared)) => {
                fields.differences(local, &peers, shared, Instant::now())
            }
            _ => Arc::default(),
        };
        cluster_handle.cluster.store(Arc::new(Cluster {
            local: self.local.clone(),
            local_health: self.client.bridge.local_health.clone(),
            peers,
            shared: self.shared.clone(),
            view,
            local_discovery: LocalDiscoveryState {
                watched_since: self.informers.watched_since,
                has_aggregated_apis: self.shared_tracker.has_aggregated_apis(),
                ..self.local_discovery
            },
            awaits_registry: self.records.is_awaiting_registry(Instant::now()),
            fields,
            policies,
        }));
    }

    /// Takes over a change of the APIs that all servers share.
    pub(super) fn update_shared(&mut self) {
        if self.informers.least() >= InformerState::Listed {
            self.shared = Some(self.shared_tracker.snapshot());
        }
    }
}

//! The identity Lease of a server (used by KEP-4020).

use std::time::{Duration, SystemTime};

use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::{Identity, IdentityLease};
use tokio::time::interval;

use super::shared_store::{SharedStore, entropy};
use crate::catalogue::Release;
use crate::object::{Object, generate_uid};
use crate::resource_strategy::Part;
use crate::status::GroupResource;
use crate::store::Preconditions;

/// kube-apiserver's interval.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

const NAMESPACE: &str = "kube-system";

/// Renews the Lease of one server.
#[derive(Debug, Clone)]
pub(super) struct LeaseHeartbeat {
    store: SharedStore,
    release: Release,
    hostname: String,
    identity: Identity,
    holder: String,
}

impl LeaseHeartbeat {
    pub(super) fn new(store: SharedStore, release: Release, hostname: &str) -> Self {
        let identity = Identity::of_hostname(hostname);
        let holder = format!("{identity}_{}", generate_uid(&mut entropy));
        Self {
            store,
            release,
            hostname: hostname.to_owned(),
            identity,
            holder,
        }
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Renews it until it is dropped.
    pub(super) async fn run(self) {
        let mut ticks = interval(RENEW_INTERVAL);
        loop {
            ticks.tick().await;
            if let Err(status) = self.renew() {
                tracing::warn!(
                    identity = %self.identity,
                    problem = %status.message,
                    "the Lease of a server could not be renewed"
                );
            }
        }
    }

    /// Acquires or renews the Lease.
    pub(super) fn renew(&self) -> Result<(), Status> {
        let now = SystemTime::now();
        let name = self.identity.as_str();
        let Ok(found) = self.store.get(&leases(), NAMESPACE, name) else {
            let lease = IdentityLease::new(&self.identity, &self.hostname, &self.holder, now);
            let object = Object::parse(lease.to_json().as_bytes())?;
            return self.store.create(&leases(), NAMESPACE, object).map(drop);
        };
        let text = found.value().to_string();
        let lease = IdentityLease::parse(text.as_bytes())
            .map_err(|error| Status::internal(error.to_string()))?;
        // Servers before 1.35 keep the existing holder.
        let lease = if self.release >= Release::V1_36 && lease.holder() != Some(&self.holder) {
            lease.taken_over(&self.hostname, &self.holder, now)
        } else {
            lease.renewed(now)
        };
        let renewed = Object::parse(lease.to_json().as_bytes())?;
        let changed = self
            .store
            .modify(&leases(), NAMESPACE, name, Part::Main, |object| {
                object.take_from(&renewed, &["spec"]);
                object.take_from(&renewed, &["metadata", "labels"]);
            });
        changed.map(drop)
    }

    /// Deletes it, as servers from 1.35 on do when they stop.
    pub(super) fn release(&self) {
        if self.release >= Release::V1_36 {
            let none = Preconditions::default();
            // It may have been deleted already.
            let _ = self
                .store
                .delete(&leases(), NAMESPACE, self.identity.as_str(), &none);
        }
    }
}

fn leases() -> GroupResource {
    GroupResource::new("coordination.k8s.io", "leases")
}

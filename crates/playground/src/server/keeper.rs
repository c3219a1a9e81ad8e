//! The Lease by which a server says that it lives, and under which name (KEP-4020 goes
//! by it).

use std::time::{Duration, SystemTime};

use skewbridge_api::status::Status;
use skewbridge_peer_directory::{Identity, IdentityLease};
use tokio::time::interval;

use super::shared::{SharedStore, entropy};
use crate::catalogue::Release;
use crate::object::{Object, make_up_uid};
use crate::status::GroupResource;
use crate::store::Preconditions;
use crate::strategy::Part;

/// As kube-apiserver.
const RENEW_EVERY: Duration = Duration::from_secs(10);

const NAMESPACE: &str = "kube-system";

/// Keeps the Lease of one server.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    store: SharedStore,
    release: Release,
    hostname: String,
    identity: Identity,
    holder: String,
}

impl Keeper {
    pub(super) fn new(store: SharedStore, release: Release, hostname: &str) -> Self {
        let identity = Identity::of_hostname(hostname);
        let holder = format!("{identity}_{}", make_up_uid(&mut entropy));
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
        let mut ticks = interval(RENEW_EVERY);
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

    /// Takes it, or says once more that the server lives.
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
        // Servers before 1.35 go on with the holder that they find.
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

    /// Gives it up, as servers from 1.35 on do when they are told to end.
    pub(super) fn give_up(&self) {
        if self.release >= Release::V1_36 {
            let none = Preconditions::default();
            // Somebody else may have deleted it.
            let _ = self
                .store
                .delete(&leases(), NAMESPACE, self.identity.as_str(), &none);
        }
    }
}

fn leases() -> GroupResource {
    GroupResource::new("coordination.k8s.io", "leases")
}

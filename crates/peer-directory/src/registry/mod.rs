//! Registries in which servers publish their addresses.

mod etcd;
pub mod file;
mod fixed;
mod memory;
pub mod status;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

pub use etcd::{EtcdFiles, EtcdRegistry, TlsSource};
pub use file::FileRegistry;
pub use fixed::{FixedRegistry, FixedServer};
pub use memory::{MemoryRegistry, SharedMemoryRegistry};
pub use status::{Activity, RegistryStatus, StatusReporter};

use crate::identity::Identity;
use crate::served_record::{Records, ServedRecord};

/// The address of each server, or of its bridge.
pub type Addresses = BTreeMap<Identity, AdvertisedAddress>;

/// An address with its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdvertisedAddress {
    /// The address that peers connect to.
    pub address: SocketAddr,
    /// The component that has published it.
    pub origin: AddressOrigin,
}

/// The component that has published an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressOrigin {
    /// A bridge.
    Bridge,
    /// An administrator, in a file. The address is that of a bridge or of a kube-apiserver.
    File {
        /// The kube-apiserver behind that bridge, which is polled after the bridge
        /// has departed.
        server: Option<SocketAddr>,
    },
    /// A kube-apiserver. Since 1.36 it publishes its own address, which other hosts may
    /// not be able to reach. Or an administrator, for a kube-apiserver without a bridge.
    Server,
    /// A kube-apiserver, in the `EndpointSlices` of the Service `default/kubernetes`.
    Endpoints,
}

impl AddressOrigin {
    /// Whether the address is that of a kube-apiserver and not that of a bridge.
    pub fn is_server(self) -> bool {
        matches!(self, Self::Server | Self::Endpoints)
    }
}

impl AdvertisedAddress {
    /// An address that an administrator has written into a file, and that of the
    /// kube-apiserver behind it.
    pub fn by_file(address: SocketAddr, server: Option<SocketAddr>) -> Self {
        let origin = AddressOrigin::File { server };
        Self { address, origin }
    }

    /// An address that a bridge has published.
    pub fn by_bridge(address: SocketAddr) -> Self {
        let origin = AddressOrigin::Bridge;
        Self { address, origin }
    }

    /// An address that a kube-apiserver has published.
    pub fn by_server(address: SocketAddr) -> Self {
        let origin = AddressOrigin::Server;
        Self { address, origin }
    }

    /// An address in an `EndpointSlice`.
    pub fn by_endpoints(address: SocketAddr) -> Self {
        let origin = AddressOrigin::Endpoints;
        Self { address, origin }
    }
}

/// Publishes one address, and watches the addresses of all servers.
///
/// After a failure (etcd restarts, a file is temporarily invalid) it retries, and known addresses
/// are kept.
pub trait Registry: Send + Sync + 'static {
    /// Runs until the sender of `own` is dropped or sends `None`; then withdraws the published
    /// address and ends. The caller limits how long it waits for that.
    fn run(
        &self,
        own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Collects the outcomes of its activities.
    fn reporter(&self) -> Arc<StatusReporter>;

    /// Whether it can be read and written, as this changes.
    fn status(&self) -> watch::Receiver<RegistryStatus> {
        self.reporter().subscribe()
    }

    /// Publishes the served record of the local server, and watches the records
    /// of all servers. A record outlives its bridge: it is not withdrawn. Runs until the
    /// sender of `own` is dropped, or until a record with `left` has been written.
    ///
    /// By default the registry has no records.
    fn run_records(
        &self,
        mut channels: RecordChannels,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            channels.found.send_replace(Some(Records::new()));
            let is_last = |record: &Option<Arc<ServedRecord>>| {
                (record.as_ref()).is_some_and(|record| record.bridge_left_at.is_some())
            };
            let _ = channels.own.wait_for(is_last).await;
        })
    }
}

/// The channels of served records.
#[derive(Debug)]
pub struct RecordChannels {
    /// The record of the local server, once it is known.
    pub own: watch::Receiver<Option<Arc<ServedRecord>>>,
    /// The records of all servers. `None` until the registry has been read once.
    pub found: watch::Sender<Option<Records>>,
    /// Records that are to be removed, if they are still those.
    pub outdated: mpsc::Receiver<Arc<ServedRecord>>,
}

/// Waits until the published address is withdrawn.
async fn wait_until_withdrawn(own: &mut watch::Receiver<Option<(Identity, SocketAddr)>>) {
    // An error means that the sender was dropped, which is a withdrawal as well.
    let _ = own.wait_for(Option::is_none).await;
}

/// Sends addresses if they have changed.
fn send_if_changed(found: &watch::Sender<Addresses>, now: Addresses) {
    found.send_if_modified(|before| {
        let changed = *before != now;
        *before = now;
        changed
    });
}

//! The server identity under which this bridge takes part in peering, and whether it is plausible.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Serialize;
use skewbridge_peer_directory::{Identity, PeerName};

/// The identity of the local server and the address of its bridge.
#[derive(Debug)]
pub struct LocalIdentity {
    /// The identity of the local server, computed or from `--apiserver-identity`.
    pub identity: Identity,
    /// The host name of the bridge and its local server.
    pub host: Option<String>,
    /// The address at which peers reach the bridge.
    pub address: SocketAddr,
    lease: ArcSwap<LeaseState>,
}

/// The state of the identity Lease of that name.
#[derive(Debug, Clone, Default)]
struct LeaseState {
    renewed_by: LeaseRenewer,
    mismatch_reason: Option<String>,
}

/// The component that renews an identity Lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseRenewer {
    /// Not observed yet.
    #[default]
    Unknown,
    /// The server itself.
    KubeApiserver,
    /// The bridge, because the server does not.
    Skewbridge,
}

impl LocalIdentity {
    /// An identity whose Lease has not been observed yet.
    pub fn new(identity: Identity, address: SocketAddr) -> Self {
        Self {
            identity,
            host: None,
            address,
            lease: ArcSwap::default(),
        }
    }

    /// Host and identity, for error texts and log lines.
    pub fn name(&self) -> PeerName<'_> {
        PeerName::new(&self.identity, self.host.as_deref())
    }

    /// The component that renews the Lease of this identity.
    pub fn renewed_by(&self) -> LeaseRenewer {
        self.lease.load().renewed_by
    }

    /// Why the identity is probably not that of the local server.
    pub fn mismatch_reason(&self) -> Option<String> {
        self.lease.load().mismatch_reason.clone()
    }

    /// Sets the component that renews the Lease. If it is the server, the identity is correct.
    pub(crate) fn set_renewed_by(&self, renewed_by: LeaseRenewer) {
        self.update(|lease| {
            lease.renewed_by = renewed_by;
            if renewed_by == LeaseRenewer::KubeApiserver {
                lease.mismatch_reason = None;
            }
        });
    }

    /// Sets why the identity is probably wrong.
    pub(crate) fn set_mismatch_reason(&self, mismatch_reason: String) {
        self.update(|lease| lease.mismatch_reason = Some(mismatch_reason));
    }

    /// Only one thread updates the state, so no update is lost between load and store.
    fn update(&self, with: impl FnOnce(&mut LeaseState)) {
        let mut lease = LeaseState::clone(&self.lease.load());
        with(&mut lease);
        self.lease.store(Arc::new(lease));
    }
}

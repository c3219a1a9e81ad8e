//! As whom this bridge takes part among the servers, and whether that seems to
//! be right.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Serialize;
use skewbridge_peer_directory::{Identity, PeerName};

/// Whom the bridge speaks for, and where.
#[derive(Debug)]
pub struct LocalIdentity {
    /// Of the kube-apiserver behind the bridge, as computed or given.
    pub identity: Identity,
    /// The host that the bridge runs on, beside its kube-apiserver.
    pub host: Option<String>,
    /// Where peers reach the bridge.
    pub address: SocketAddr,
    lease: ArcSwap<Lease>,
}

/// What is known of the identity Lease of that name.
#[derive(Debug, Clone, Default)]
struct Lease {
    kept_by: KeptBy,
    doubt: Option<String>,
}

/// Who renews an identity Lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptBy {
    /// Nobody that we have seen, so far.
    #[default]
    Unknown,
    /// The server whose it is.
    KubeApiserver,
    /// The bridge, since the server does not.
    Skewbridge,
}

impl LocalIdentity {
    /// Nothing is known yet of its Lease.
    pub fn new(identity: Identity, address: SocketAddr) -> Self {
        Self {
            identity,
            host: None,
            address,
            lease: ArcSwap::default(),
        }
    }

    /// Host and identity, for texts.
    pub fn name(&self) -> PeerName<'_> {
        PeerName::new(&self.identity, self.host.as_deref())
    }

    /// Who keeps the Lease of this identity.
    pub fn kept_by(&self) -> KeptBy {
        self.lease.load().kept_by
    }

    /// Why the identity is probably not that of the server behind the bridge.
    pub fn doubt(&self) -> Option<String> {
        self.lease.load().doubt.clone()
    }

    /// Somebody keeps the Lease. If it is the server, the identity is right.
    pub(crate) fn is_kept_by(&self, kept_by: KeptBy) {
        self.change(|lease| {
            lease.kept_by = kept_by;
            if kept_by == KeptBy::KubeApiserver {
                lease.doubt = None;
            }
        });
    }

    /// The identity is probably wrong.
    pub(crate) fn doubted(&self, doubt: String) {
        self.change(|lease| lease.doubt = Some(doubt));
    }

    /// One thread changes it: nothing is lost between reading and writing.
    fn change(&self, with: impl FnOnce(&mut Lease)) {
        let mut lease = Lease::clone(&self.lease.load());
        with(&mut lease);
        self.lease.store(Arc::new(lease));
    }
}

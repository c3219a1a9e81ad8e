//! The configuration that changes while the bridge runs: certificates, keys and CA bundles.
//!
//! Files are checked once a second. This costs a few `stat` calls and, unlike notifications, detects
//! every way of replacing a file, including Kubernetes' symlink swaps and network file systems. If
//! a new file is not valid, the old one stays in use.

mod config_files;
mod egress_route;
mod watched_files;

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::CertificateDer;
use skewbridge_peer_directory::KeyDigest;

pub use self::config_files::ConfigFiles;
use crate::authn::TrustConfig;
use crate::config::UpstreamServer;
use crate::metrics::Metrics;
use crate::signatures::keys::SignatureKeys;
use crate::tls::ca_conflict::{CaConflict, Conflicts};
use crate::tls::ca_overlap;
use crate::tls::files::FileError;
use crate::tls::own_certificates::{FrontProxy, OwnCertificates};
use crate::upstream::{PresentedCertificates, UpstreamTargets};

/// A server behind the bridge, and how it is reached.
type ServerTargets = (UpstreamServer, Arc<ArcSwap<UpstreamTargets>>);

/// The configuration of the running bridge. Each field is replaced as a whole.
#[derive(Debug)]
pub struct LiveConfig {
    /// For new client connections; open connections keep theirs.
    pub server: ArcSwap<ServerConfig>,
    /// For authenticating requests.
    pub trust: ArcSwap<TrustConfig>,
    /// For new connections to upstream and to peers: one for each server behind the bridge.
    targets: Mutex<Vec<ServerTargets>>,
    /// For new connections to etcd, if they use TLS.
    pub etcd: ArcSwapOption<ClientConfig>,
    /// For signed requests, with `--http-signature-keys`.
    pub signature_keys: ArcSwapOption<SignatureKeys>,
    /// For the self-test.
    pub own: ArcSwap<OwnCertificates>,
    /// Digests of the serving keys of the bridge. The first one is the current key, or the next
    /// one.
    pub serving_keys: ArcSwap<Vec<KeyDigest>>,
    /// Why reloaded files are not used.
    pub conflicts: Conflicts,
    /// Until when the files are valid.
    pub(crate) expiries: ArcSwap<Vec<FileExpiry>>,
    /// Until when the certificates of other servers are valid.
    pub(crate) presented: PresentedCertificates,
}

/// Until when the certificates of a file are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileExpiry {
    pub(crate) flag: &'static str,
    /// Seconds since 1970.
    pub(crate) not_after: u64,
}

impl LiveConfig {
    /// The targets of a server behind the bridge. Those of a new one have the files of the others.
    pub(crate) fn targets_of(
        &self,
        server: &UpstreamServer,
    ) -> Option<Arc<ArcSwap<UpstreamTargets>>> {
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(known, _)| known == server) {
            return Some(known.clone());
        }
        let (_, template) = all.first()?;
        let targets = Arc::new(ArcSwap::from_pointee(template.load().at(server)));
        all.push((server.clone(), targets.clone()));
        Some(targets)
    }

    /// A server is not behind the bridge any more. The last entry stays as the template of later ones.
    pub(crate) fn remove_targets(&self, server: &UpstreamServer) {
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > 1 {
            all.retain(|(known, _)| known != server);
        }
    }
}

/// Checks the front-proxy certificate against the client CA that upstream publishes.
pub(crate) fn check_published_ca(
    live: &LiveConfig,
    front_proxy: &FrontProxy,
    client_ca: Option<&[CertificateDer<'static>]>,
    metrics: &Metrics,
) {
    let is_user = client_ca.is_some_and(|cas| ca_overlap::authenticates(cas, &front_proxy.chain));
    let conflict = is_user.then(|| CaConflict::FrontProxyIsUpstreamUser {
        front_proxy: front_proxy.path.clone(),
    });
    let before = live.conflicts.published.load_full();
    if before.as_deref() != conflict.as_ref() {
        log_peering_conflict(conflict.as_ref());
        live.conflicts.published.store(conflict.map(Arc::new));
        let metrics = metrics.peers();
        metrics.in_conflict(live.conflicts.of_peering().is_some());
    }
}

fn log_peering_conflict(conflict: Option<&CaConflict>) {
    if let Some(conflict) = conflict {
        tracing::error!(%conflict, "peering is disabled: requests for APIs of other servers get 503");
    } else {
        tracing::info!(
            "peering is enabled again: the front-proxy certificate does not authenticate as a user"
        );
    }
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is not valid.
    #[error("{flag} {problem}")]
    File {
        /// The flag of the file.
        flag: &'static str,
        /// What is wrong with it.
        problem: FileError,
    },
    /// rustls rejects the files.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Two files cannot be used together.
    #[error(transparent)]
    Conflict(#[from] CaConflict),
    /// A CA bundle has no usable trust anchor.
    #[error("CA bundle: {0}")]
    Ca(#[from] rustls::server::VerifierBuilderError),
}

//! Conflicts of CA files: CA files that cannot be used together, because a certificate would
//! authenticate in two roles.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::ca_overlap;
use super::files::{CaBundle, KeyPair};
use crate::config::{AuthenticationConfig, Config, Feature};

/// The current conflicts. The bridge does not start with one; a file that is replaced later can
/// cause one.
#[derive(Debug, Default)]
pub struct Conflicts {
    /// Why no request is sent to peers, by the files of the bridge.
    pub peering: ArcSwapOption<CaConflict>,
    /// The same by the client CA that upstream publishes.
    pub published: ArcSwapOption<CaConflict>,
    /// Why client certificates are verified by the CAs that were read before.
    pub callers: ArcSwapOption<CaConflict>,
}

impl Conflicts {
    /// Why no request is sent to peers.
    pub fn of_peering(&self) -> Option<Arc<CaConflict>> {
        (self.peering.load_full()).or_else(|| self.published.load_full())
    }
}

/// Two files that cannot be used together, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {}: {}", self.flag(), self.file().display(), self.message())]
pub enum CaConflict {
    /// The front-proxy certificate also authenticates as a user. A peer would treat every request
    /// with a bearer token as a request of that user.
    FrontProxyIsUser {
        /// `--proxy-client-cert-file`
        front_proxy: PathBuf,
        /// `--client-ca-file`
        client_ca: PathBuf,
    },
    /// The same, by the client CA that the local server publishes. Peers have the same CA.
    FrontProxyIsUpstreamUser {
        /// `--proxy-client-cert-file`
        front_proxy: PathBuf,
    },
    /// Every user is a front proxy. kube-apiserver rejects this too (1.36) if both files have the
    /// same certificate.
    UsersAreFrontProxies {
        /// `--requestheader-client-ca-file`
        request_header_ca: PathBuf,
        /// `--client-ca-file`
        client_ca: PathBuf,
    },
}

impl CaConflict {
    /// The flag of the file to replace.
    pub fn flag(&self) -> &'static str {
        match self {
            Self::FrontProxyIsUser { .. } | Self::FrontProxyIsUpstreamUser { .. } => {
                "--proxy-client-cert-file"
            }
            Self::UsersAreFrontProxies { .. } => "--requestheader-client-ca-file",
        }
    }

    /// The file to replace.
    pub fn file(&self) -> &Path {
        match self {
            Self::FrontProxyIsUser { front_proxy, .. }
            | Self::FrontProxyIsUpstreamUser { front_proxy } => front_proxy,
            Self::UsersAreFrontProxies {
                request_header_ca, ..
            } => request_header_ca,
        }
    }

    /// What is wrong, with the other file, and the remedy.
    pub fn message(&self) -> String {
        match self {
            Self::FrontProxyIsUser { client_ca, .. } => format!(
                "this certificate also authenticates as a user under --client-ca-file {}: a \
                 peer would treat every request with a bearer token as a request of that \
                 user; issue the front-proxy certificate from its own CA, or omit \
                 --peer-ca-file to run without peers",
                client_ca.display()
            ),
            Self::FrontProxyIsUpstreamUser { .. } => format!(
                "this certificate also authenticates as a user under the --client-ca-file of \
                 the kube-apiserver, which is published as {PUBLISHED_CLIENT_CA}: a peer would \
                 treat every request with a bearer token as a request of that user; issue the \
                 front-proxy certificate from its own CA, or omit --peer-ca-file to \
                 run without peers"
            ),
            Self::UsersAreFrontProxies { client_ca, .. } => format!(
                "has a CA in common with --client-ca-file {} while \
                 --requestheader-allowed-names is empty: every user with a client \
                 certificate could act as any other user; set \
                 --requestheader-allowed-names, or use a separate CA for front proxies",
                client_ca.display()
            ),
        }
    }
}

/// Where kube-apiserver publishes its `--client-ca-file`: namespace, `ConfigMap` and key.
const PUBLISHED_CLIENT_CA: &str =
    "client-ca-file of the ConfigMap kube-system/extension-apiserver-authentication";

/// The conflict between a front-proxy certificate and the CAs of users, for a bridge that
/// sends requests to peers.
pub fn front_proxy_conflict(
    config: &Config,
    front_proxy: &KeyPair,
    client_ca: &CaBundle,
) -> Option<CaConflict> {
    let wants_peers = (config.peers.ca.is_some() || config.upstream.is_balanced())
        && (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy);
    let cas = &client_ca.certificates;
    if !wants_peers || !ca_overlap::authenticates(cas, &front_proxy.certified.cert) {
        return None;
    }
    Some(CaConflict::FrontProxyIsUser {
        front_proxy: config.upstream.front_proxy.as_ref()?.cert.clone(),
        client_ca: config.callers.client_ca.clone()?,
    })
}

/// The conflict between the CAs of front proxies and those of users.
pub fn request_header_conflict(
    callers: &AuthenticationConfig,
    request_header_ca: &CaBundle,
    client_ca: &CaBundle,
) -> Option<CaConflict> {
    let request_header = callers.request_header.as_ref()?;
    if !request_header.allowed_names.is_empty()
        || !ca_overlap::overlap(request_header_ca, client_ca)
    {
        return None;
    }
    Some(CaConflict::UsersAreFrontProxies {
        request_header_ca: request_header.ca.clone(),
        client_ca: callers.client_ca.clone()?,
    })
}

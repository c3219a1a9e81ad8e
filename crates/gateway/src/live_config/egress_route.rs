//! How connections to peers are opened: directly or through the egress proxy, with the files that
//! its TLS needs.

use std::sync::Arc;

use rustls_pki_types::ServerName;

use super::LoadError;
use super::watched_files::WatchedFiles;
use crate::config::{Egress, ProxyTransport};
use crate::metrics::Metrics;
use crate::tls::client_config;
use crate::tls::files::{CaBundle, KeyPair};
use crate::upstream::{Dialer, Proxy};

/// How connections to peers are opened, with the files that this needs.
pub(super) enum EgressRoute {
    /// Needs no files.
    Plain(Dialer),
    /// Through a proxy that uses TLS.
    Tls(Box<TlsProxy>),
}

pub(super) struct TlsProxy {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    pub(super) ca: WatchedFiles<CaBundle>,
    pub(super) pair: WatchedFiles<KeyPair>,
}

impl EgressRoute {
    /// Reads the files of a proxy that uses TLS.
    pub(super) fn load(egress: &Egress) -> Result<Self, LoadError> {
        let proxy = match egress {
            Egress::Direct => return Ok(Self::Plain(Dialer::Direct)),
            Egress::HttpConnect(ProxyTransport::Tcp { host, port }) => Proxy::Tcp {
                host: host.clone(),
                port: *port,
            },
            Egress::HttpConnect(ProxyTransport::Uds(path)) => Proxy::Uds(path.clone()),
            Egress::HttpConnect(ProxyTransport::Tls {
                host,
                port,
                server_name,
                ca,
                key_pair,
            }) => {
                return Ok(Self::Tls(Box::new(TlsProxy {
                    host: host.clone(),
                    port: *port,
                    server_name: server_name.clone(),
                    ca: WatchedFiles::ca("--egress-selector-config-file caBundle", ca)?,
                    pair: WatchedFiles::key_pair(
                        "--egress-selector-config-file clientCert",
                        key_pair,
                    )?,
                })));
            }
        };
        Ok(Self::Plain(Dialer::HttpConnect(Arc::new(proxy))))
    }

    pub(super) fn dialer(&self) -> Result<Dialer, LoadError> {
        let proxy = match self {
            Self::Plain(dialer) => return Ok(dialer.clone()),
            Self::Tls(proxy) => proxy,
        };
        Ok(Dialer::HttpConnect(Arc::new(Proxy::Tls {
            host: proxy.host.clone(),
            port: proxy.port,
            server_name: proxy.server_name.clone(),
            tls: Arc::new(client_config(&proxy.ca.value, Some(&proxy.pair.value))?),
        })))
    }

    /// Reloads the files. Returns whether one has changed.
    pub(super) fn refresh(&mut self, metrics: &Metrics) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(proxy) => {
                let ca = proxy.ca.refresh(metrics);
                proxy.pair.refresh(metrics) || ca
            }
        }
    }

    pub(super) fn tls(&self) -> Option<&TlsProxy> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(proxy) => Some(proxy),
        }
    }
}

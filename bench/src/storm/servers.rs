//! The bridge, `HAProxy` and nginx, which verify the certificates of the same clients.

use std::path::Path;

use anyhow::Result;
use rustls::ClientConfig;
use skewbridge_testkit::Ca;

use crate::pki::{self, Pki, ServerKey};
use crate::proxies::{Clients, Proxy, backend, bridge, free_ports, haproxy, nginx};
use crate::scratch_dir::ScratchDir;

/// No request reaches it.
const ANSWER_BYTES: u32 = 100;

/// Connections besides those of the burst.
const FURTHER_CONNECTIONS: u32 = 200;

pub(super) struct Servers {
    /// The bridge comes first.
    pub(super) proxies: Vec<Proxy>,
    /// A client with a certificate.
    pub(super) client: ClientConfig,
    _backend: Proxy,
}

impl Servers {
    pub(super) async fn start(
        program: &Path,
        scratch: &ScratchDir,
        key: ServerKey,
        handshakes: u32,
    ) -> Result<Self> {
        let pki = Pki::with_key(scratch, key)?;
        let users = Ca::new("users");
        let user = users.client("system:node:storm", &[]);
        let users = scratch.write("users-ca.crt", users.pem())?;
        let front_proxies = Ca::new("front-proxies");
        let front_proxy = front_proxies.client("front-proxy-client", &[]);
        let certificate = scratch.write("front-proxy.crt", &front_proxy.cert_pem)?;
        let front_proxy_key = scratch.write("front-proxy.key", &front_proxy.key_pem)?;
        let front_proxies = scratch.write("front-proxy-ca.crt", front_proxies.pem())?;

        let [upstream, front, admin, haproxy, nginx] = free_ports()?;
        let backend = backend::start(scratch, &pki, upstream, ANSWER_BYTES)?;
        backend.process().until_listening(backend.address()).await?;
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let flags = [
            bridge::ONE_WORKER.to_owned(),
            flag("client-ca-file", &users),
            flag("proxy-client-cert-file", &certificate),
            flag("proxy-client-key-file", &front_proxy_key),
            flag("requestheader-client-ca-file", &front_proxies),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let ports = bridge::Ports {
            front,
            admin,
            upstream,
        };
        let clients = Clients {
            max_connections: handshakes + FURTHER_CONNECTIONS,
            ca: Some(&users),
        };
        let proxies = vec![
            bridge::start(bridge::NAME, program, scratch, &pki, ports, &flags)?,
            haproxy::start(scratch, &pki, haproxy, upstream, clients)?,
            nginx::start(scratch, &pki, nginx, upstream, clients)?,
        ];
        for proxy in &proxies {
            proxy.process().until_listening(proxy.address()).await?;
        }
        Ok(Self {
            proxies,
            client: pki::h1_client_of(&pki.ca, &user)?,
            _backend: backend,
        })
    }

    pub(super) fn bridge(&self) -> &Proxy {
        &self.proxies[0]
    }
}

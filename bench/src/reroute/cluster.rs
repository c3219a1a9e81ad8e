//! Two API servers of different versions with a bridge in front of each. The newer server's
//! response under load is a static file, so that the servers do not limit the measurement.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use skewbridge_peer_directory::Identity;
use tokio::process::Command;
use tokio::time::sleep;

use crate::pki::{CIPHER, Pki};
use crate::process::{self, OwnedProcess};
use crate::proxies::{Proxy, bridge, free_ports, loopback, nginx};
use crate::scratch_dir::ScratchDir;

/// An object of an API that only the newer server has.
pub(super) const ANSWER: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/answer";

const OLDER: &str = "1.28";
const NEWER: &str = "1.36";

const START_TIMEOUT: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The processes are stopped in this order.
pub(super) struct Cluster {
    /// In front of the server that does not serve the API.
    pub(super) entry: Proxy,
    /// In front of the server that does.
    pub(super) peer: Proxy,
    /// The server of the API.
    pub(super) server: Proxy,
    /// A bearer token of a user.
    pub(super) token: String,
    _playground: OwnedProcess,
}

impl Cluster {
    pub(super) async fn start(program: &Path, scratch: &ScratchDir, size: u32) -> Result<Self> {
        let directory = scratch.path("playground");
        let mut command = Command::new(program);
        command.arg("playground").arg("--directory").arg(&directory);
        let playground = OwnedProcess::server("playground", command, scratch)?;
        let kubeconfig = kubeconfig(&playground, &directory).await?;
        let address = |version: &str| {
            port_of(&kubeconfig, &format!("server-{version}"))
                .with_context(|| format!("no server {version} in the kubeconfig"))
        };
        let (older, newer) = (address(OLDER)?, address(NEWER)?);
        let token = value_of(&kubeconfig, "token:").context("no token in the kubeconfig")?;

        let pki = Pki::of_playground(&directory, scratch)?;
        let [origin, entry, entry_admin, peer, peer_admin] = free_ports()?;
        let server = server(scratch, &pki, &directory, origin, newer, size)?;
        server.process().until_listening(loopback(origin)).await?;
        let peers = [(OLDER, entry), (NEWER, peer)].map(|(version, port)| {
            let identity = identity(version);
            format!("- identity: {identity}\n  address: {}\n", loopback(port))
        });
        let registry = scratch.write("peers.yaml", format!("peers:\n{}", peers.concat()))?;
        let start = |name, version, front, admin, upstream| {
            let flags = flags(&directory, &registry, version);
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let ports = bridge::Ports {
                front,
                admin,
                upstream,
            };
            bridge::start(name, program, scratch, &pki, ports, &flags)
        };
        Ok(Self {
            entry: start("entry-bridge", OLDER, entry, entry_admin, older)?,
            peer: start("peer-bridge", NEWER, peer, peer_admin, origin)?,
            server,
            token: token.to_owned(),
            _playground: playground,
        })
    }
}

/// The identity of a server of the playground.
fn identity(version: &str) -> Identity {
    Identity::of_hostname(&format!("playground-{version}"))
}

fn flags(directory: &Path, registry: &Path, version: &str) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", directory.join(name).display());
    vec![
        bridge::ONE_WORKER.to_owned(),
        file("client-ca-file", "ca.crt"),
        file("peer-ca-file", "ca.crt"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        file("proxy-client-cert-file", "front-proxy.crt"),
        file("proxy-client-key-file", "front-proxy.key"),
        format!("--peer-registry=file:{}", registry.display()),
        format!("--apiserver-identity={}", identity(version)),
    ]
}

/// The kubeconfig of a playground, which contains the ports of its servers.
async fn kubeconfig(playground: &OwnedProcess, directory: &Path) -> Result<String> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Ok(text) = std::fs::read_to_string(directory.join("kubeconfig"))
            && text.contains("token:")
        {
            return Ok(text);
        }
        playground.ensure_running()?;
        if Instant::now() > deadline {
            bail!("the playground is not ready{}", playground.log_tail());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The port of a cluster in a kubeconfig of the playground.
fn port_of(kubeconfig: &str, cluster: &str) -> Option<u16> {
    let (_, after) = kubeconfig.split_once(&format!("- name: {cluster}\n"))?;
    let url = value_of(after, "server:")?;
    url.rsplit(':').next()?.parse().ok()
}

/// The text after the first such key.
fn value_of<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(word)?;
    Some(after.lines().next()?.trim().trim_matches('"'))
}

/// nginx with the static response; it forwards everything else to the newer server.
fn server(
    scratch: &ScratchDir,
    pki: &Pki,
    directory: &Path,
    port: u16,
    behind: u16,
    size: u32,
) -> Result<Proxy> {
    let file = |name: &str| -> PathBuf { directory.join(name) };
    scratch.write(&format!("static{ANSWER}"), vec![b'x'; size as usize])?;
    let config = format!(
        "{user}\
worker_processes 1;
pid {root}/server.pid;
error_log stderr warn;
events {{ worker_connections 1000; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    open_file_cache max=16;
    open_file_cache_valid 1h;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    default_type application/json;
{temporary}
    server {{
        listen 127.0.0.1:{port} ssl http2;
        server_name localhost;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols {protocols};
        ssl_conf_command Ciphersuites {CIPHER};
        root {root}/static;
        location = {ANSWER} {{ }}
        location / {{
            proxy_pass https://127.0.0.1:{behind};
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_read_timeout 1h;
            proxy_ssl_certificate {proxy_certificate};
            proxy_ssl_certificate_key {proxy_key};
        }}
    }}
}}
",
        user = nginx::user(scratch)?,
        temporary = nginx::temporary(scratch, "server"),
        protocols = nginx::PROTOCOLS,
        root = scratch.root().display(),
        certificate = pki.certificate.display(),
        key = pki.key.display(),
        proxy_certificate = file("front-proxy.crt").display(),
        proxy_key = file("front-proxy.key").display(),
    );
    let config = scratch.write("server.conf", config)?;
    let mut command = Command::new(process::tool("nginx", "nginx")?);
    command
        .args(["-e", "stderr", "-g", "daemon off;", "-c"])
        .arg(config);
    Ok(Proxy::new(
        OwnedProcess::server("server", command, scratch)?,
        port,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_token_are_read_from_the_kubeconfig() {
        let text = "clusters:\n- name: server-1.28\n  cluster:\n    server: \
                    https://127.0.0.1:21000\n- name: server-1.36\n  cluster:\n    server: \
                    https://127.0.0.1:21002\nusers:\n- name: visitor\n  user:\n    token: abc\n";
        assert_eq!(port_of(text, "server-1.28"), Some(21_000));
        assert_eq!(port_of(text, "server-1.36"), Some(21_002));
        assert_eq!(port_of(text, "server-1.30"), None);
        assert_eq!(value_of(text, "token:"), Some("abc"));
    }
}

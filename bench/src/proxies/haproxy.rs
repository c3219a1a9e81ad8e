//! `HAProxy`, with reuse of every idle connection to the backend.

use anyhow::Result;
use tokio::process::Command;

use super::{BACKLOG, Clients, Proxy};
use crate::pki::{Pki, SERVER_NAME};
use crate::process::{self, OwnedProcess};
use crate::scratch_dir::ScratchDir;

pub(crate) fn start(
    scratch: &ScratchDir,
    pki: &Pki,
    port: u16,
    backend: u16,
    clients: Clients<'_>,
) -> Result<Proxy> {
    let verification = match clients.ca {
        Some(ca) => format!(" ca-file {} verify optional", ca.display()),
        None => String::new(),
    };
    let config = format!(
        "\
global
    nbthread 1
    maxconn {connections}
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
    option forwardfor
frontend clients
    bind 127.0.0.1:{port} ssl crt {bundle} alpn h2,http/1.1 backlog {BACKLOG}{verification}
    http-request set-header X-Forwarded-Proto https
    default_backend answers
backend answers
    server one 127.0.0.1:{backend} ssl verify required ca-file {ca} \
sni str({SERVER_NAME}) verifyhost {SERVER_NAME}
",
        bundle = pki.bundle.display(),
        connections = clients.max_connections,
        ca = pki.ca.display(),
    );
    let config = scratch.write("haproxy.cfg", config)?;
    let mut command = Command::new(process::tool("haproxy", "haproxy")?);
    command.args(["-db", "-f"]).arg(config);
    Ok(Proxy::new(
        OwnedProcess::server("haproxy", command, scratch)?,
        port,
    ))
}

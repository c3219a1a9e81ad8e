//! nginx as a reverse proxy, configured as its manual advises for keep-alive
//! to a verified TLS upstream.

use anyhow::Result;
use tokio::process::Command;

use super::{BACKLOG, Clients, Proxy};
use crate::pki::{Pki, SERVER_NAME};
use crate::process::{self, OwnedProcess};
use crate::scratch_dir::ScratchDir;

/// The other proxies enable TLS 1.3 by default. nginx 1.22 needs this setting, which
/// Debian's own nginx.conf has too.
pub(crate) const PROTOCOLS: &str = "TLSv1.2 TLSv1.3";

pub(crate) fn start(
    scratch: &ScratchDir,
    pki: &Pki,
    port: u16,
    backend: u16,
    clients: Clients<'_>,
) -> Result<Proxy> {
    let verification = match clients.ca {
        Some(ca) => format!(
            "        ssl_client_certificate {};\n        ssl_verify_client optional;\n",
            ca.display()
        ),
        None => String::new(),
    };
    let config = format!(
        "{user}\
worker_processes 1;
pid {root}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
{temporary}
    upstream backend {{
        server 127.0.0.1:{backend};
        keepalive 128;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} ssl http2 backlog={BACKLOG};
        server_name {SERVER_NAME};
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols {PROTOCOLS};
{verification}\
        location / {{
            proxy_pass https://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_ssl_protocols {PROTOCOLS};
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate {ca};
            proxy_ssl_server_name on;
            proxy_ssl_name {SERVER_NAME};
        }}
    }}
}}
",
        user = user(scratch)?,
        temporary = temporary(scratch, "nginx"),
        // Those to the backend, and listeners.
        connections = 2 * clients.max_connections + 200,
        root = scratch.root().display(),
        certificate = pki.certificate.display(),
        key = pki.key.display(),
        ca = pki.ca.display(),
    );
    let config = scratch.write("nginx.conf", config)?;
    let mut command = Command::new(process::tool("nginx", "nginx")?);
    command
        .args(["-e", "stderr", "-g", "daemon off;", "-c"])
        .arg(config);
    Ok(Proxy::new(
        OwnedProcess::server("nginx", command, scratch)?,
        port,
    ))
}

/// Keeps root's nginx worker able to read the scratch directory.
pub(crate) fn user(scratch: &ScratchDir) -> Result<&'static str> {
    Ok(if scratch.owned_by_root()? {
        "user root;\n"
    } else {
        ""
    })
}

/// nginx creates these directories at start; the built-in ones are root's.
pub(crate) fn temporary(scratch: &ScratchDir, name: &str) -> String {
    ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| {
            let folder = scratch.path(&format!("{name}-{kind}"));
            format!("    {kind}_temp_path {};", folder.display())
        })
        .join("\n")
}

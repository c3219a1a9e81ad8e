//! The fast static backend behind every proxy: nginx with a small file.

use anyhow::Result;
use tokio::process::Command;

use super::Proxy;
use super::nginx::PROTOCOLS;
use crate::pki::{CIPHER, Pki};
use crate::process::{self, OwnedProcess};
use crate::scratch_dir::ScratchDir;

/// A path of the Kubernetes API, so that a proxy that parses paths does so.
pub(crate) const ANSWER: &str = "/api/v1/namespaces/bench/configmaps/answer";

pub(crate) fn start(scratch: &ScratchDir, pki: &Pki, port: u16, size: u32) -> Result<Proxy> {
    scratch.write(&format!("static{ANSWER}"), answer(size))?;
    start_nginx(scratch, pki, port, "1")
}

/// nginx with these bytes at one path, and a worker for each processor.
pub(crate) fn start_file(
    scratch: &ScratchDir,
    pki: &Pki,
    port: u16,
    path: &str,
    bytes: impl AsRef<[u8]>,
) -> Result<Proxy> {
    scratch.write(&format!("static{path}"), bytes)?;
    start_nginx(scratch, pki, port, "auto")
}

fn start_nginx(scratch: &ScratchDir, pki: &Pki, port: u16, workers: &str) -> Result<Proxy> {
    let user = super::nginx::user(scratch)?;
    let (root, certificate, key) = (scratch.root(), &pki.certificate, &pki.key);
    let config = format!(
        "{user}\
worker_processes {workers};
pid {root}/backend.pid;
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
        ssl_protocols {PROTOCOLS};
        ssl_conf_command Ciphersuites {CIPHER};
        root {root}/static;
        location = /readyz {{ return 200 ok; }}
    }}
}}
",
        root = root.display(),
        certificate = certificate.display(),
        key = key.display(),
        temporary = super::nginx::temporary(scratch, "backend"),
    );
    let config = scratch.write("backend.conf", config)?;
    let mut command = Command::new(process::tool("nginx", "nginx")?);
    command
        .args(["-e", "stderr", "-g", "daemon off;", "-c"])
        .arg(config);
    Ok(Proxy::new(
        OwnedProcess::server("backend", command, scratch)?,
        port,
    ))
}

fn answer(size: u32) -> Vec<u8> {
    const TEXT: &[u8] = b"{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"data\":\"answer\"},";
    TEXT.iter().copied().cycle().take(size as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_has_the_requested_size() {
        assert_eq!(answer(1).len(), 1);
        assert_eq!(answer(20_480).len(), 20_480);
    }
}

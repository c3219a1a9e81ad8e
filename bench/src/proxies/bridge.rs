//! The bridge, with the defaults that users get.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::{Proxy, loopback};
use crate::args::BridgeChoice;
use crate::pki::{Pki, SERVER_NAME};
use crate::process::OwnedProcess;
use crate::scratch_dir::ScratchDir;

const PACKAGE: &str = "skewbridge";

/// The name of the bridge in results.
pub(crate) const NAME: &str = "bridge";

/// The number of workers of the compared proxies.
pub(crate) const ONE_WORKER: &str = "--worker-threads=1";

/// The program to run, built first if requested; `None` to leave it out.
pub(crate) async fn program(choice: BridgeChoice) -> Result<Option<PathBuf>> {
    match choice {
        BridgeChoice::Skip => Ok(None),
        BridgeChoice::At(path) => {
            ensure!(path.is_file(), "--bridge: no file {}", path.display());
            Ok(Some(std::path::absolute(path)?))
        }
        BridgeChoice::Build => build().await.map(Some),
    }
}

/// The program whose client commands are run, built first unless one is named.
pub(crate) async fn client_program(named: Option<PathBuf>) -> Result<PathBuf> {
    match named {
        Some(path) => {
            ensure!(path.is_file(), "--program: no file {}", path.display());
            Ok(std::path::absolute(path)?)
        }
        None => build().await,
    }
}

/// The ports of a bridge and of its upstream, on loopback.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) front: u16,
    pub(crate) admin: u16,
    pub(crate) upstream: u16,
}

/// Starts a bridge in front of an upstream on loopback. Its log has this name too.
pub(crate) fn start(
    name: &'static str,
    program: &Path,
    scratch: &ScratchDir,
    pki: &Pki,
    ports: Ports,
    further: &[&str],
) -> Result<Proxy> {
    let Ports {
        front,
        admin,
        upstream,
    } = ports;
    let flag = |name: &str, path: &Path| {
        let mut flag = OsString::from(name);
        flag.push("=");
        flag.push(path);
        flag
    };
    let mut command = Command::new(program);
    command
        .arg("serve")
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={front}"))
        .arg(flag("--tls-cert-file", &pki.certificate))
        .arg(flag("--tls-private-key-file", &pki.key))
        .arg(format!("--upstream=https://{}", loopback(upstream)))
        .arg(flag("--upstream-ca-file", &pki.ca))
        .arg(format!("--upstream-server-name={SERVER_NAME}"))
        .arg(format!("--admin-address={}", loopback(admin)))
        .args(further);
    Ok(Proxy::new(
        OwnedProcess::server(name, command, scratch)?,
        front,
    ))
}

async fn build() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--package", PACKAGE])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the bridge does not build");
    executable(&String::from_utf8_lossy(&output.stdout)).context("cargo built no bridge")
}

/// The path of the program, from the messages of cargo, whatever the target directory is.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == PACKAGE)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_the_program_is_read_from_the_messages_of_cargo() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"build-script"},"executable":"/t/build-script"}
{"reason":"compiler-artifact","target":{"name":"skewbridge"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"skewbridge"},"executable":"/t/release/skewbridge"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some("/t/release/skewbridge".into()));
        assert_eq!(executable("not json"), None);
    }
}

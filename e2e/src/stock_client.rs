//! Unmodified clients under `skewbridge run`: they have no credential, and find their
//! server through `KUBECONFIG` only.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use skewbridge_testkit::ScratchDir;
use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::kubectl::Output;

/// For a client that takes seconds on an idle machine.
const CLIENT_TIMEOUT: Duration = Duration::from_mins(3);

/// Writes the value of `KUBECONFIG` to a file, and executes the command.
const REPORT_KUBECONFIG: &str = r#"printf %s "$KUBECONFIG" >"$0"; exec "$@""#;

/// A client program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockClient {
    /// The program of `e2e/client-go`.
    Go,
    /// The script in `e2e/python`, with the official Python client.
    Python,
    /// An example of skewbridge's client library.
    Rust,
    /// Helm.
    Helm,
    /// k9s, which needs a terminal.
    K9s,
}

/// The output of a client, and the kubeconfig that it used.
#[derive(Debug)]
pub struct StockClientRun {
    /// The output.
    pub output: Output,
    /// The path of the kubeconfig.
    pub kubeconfig: PathBuf,
}

impl StockClient {
    fn arguments(self) -> Vec<OsString> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py");
        match self {
            Self::Go => vec![binaries::client_go().into()],
            Self::Python => vec![binaries::python().into(), script.into()],
            Self::Rust => vec![binaries::example("run_a_command").into()],
            Self::Helm => vec![binaries::helm().into()],
            Self::K9s => vec![binaries::k9s().into()],
        }
    }
}

impl ControlPlane {
    /// The command that runs a client with these arguments at a terminal, under `skewbridge
    /// run`. kubectl, which some clients run, is on its `PATH`.
    pub fn stock_client_command(
        &self,
        server: SocketAddr,
        agent: &[String],
        client: StockClient,
        arguments: &[&str],
    ) -> Command {
        let path = self.pki.path().join("programs");
        let kubectl = path.join("kubectl");
        std::fs::create_dir_all(&path).expect("a directory");
        let _ = std::os::unix::fs::symlink(binaries::kubectl(&self.servers[0].version), kubectl);
        let paths = std::env::var("PATH").unwrap_or_default();
        let mut command: Command = self.skewbridge_run(server, agent);
        command
            .args(client.arguments())
            .args(arguments)
            .env("PATH", format!("{}:{paths}", path.display()));
        command
    }

    /// Runs a client with these arguments under `skewbridge run`, whose plugin is
    /// `skewbridge agent` with these flags.
    pub async fn stock_client(
        &self,
        server: SocketAddr,
        agent: &[String],
        client: StockClient,
        arguments: &[&str],
    ) -> StockClientRun {
        let scratch = ScratchDir::new();
        let report = scratch.path().join("kubeconfig");
        let mut command: Command = self.skewbridge_run(server, agent);
        command
            .args(["sh", "-c", REPORT_KUBECONFIG])
            .arg(&report)
            .args(client.arguments())
            .args(arguments)
            .current_dir(scratch.path());
        let output = tokio::time::timeout(CLIENT_TIMEOUT, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("{client:?} {arguments:?} hangs"));
        let kubeconfig = std::fs::read_to_string(report).unwrap_or_default();
        StockClientRun {
            output: Output::of(&output.expect("skewbridge run starts")),
            kubeconfig: kubeconfig.into(),
        }
    }
}

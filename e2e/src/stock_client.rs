//! Clients as they come, below `skewbridge run`: they have no credential, and are told
//! where to go by `KUBECONFIG` alone.

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
const BOUND: Duration = Duration::from_mins(3);

/// Tells which kubeconfig it finds, and becomes the command.
const TELL: &str = r#"printf %s "$KUBECONFIG" >"$0"; exec "$@""#;

/// Whose client it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockClient {
    /// The program of `e2e/client-go`.
    Go,
    /// The script of `e2e/python`, with the official client of Python.
    Python,
    /// An example of our own client library.
    Rust,
    /// Helm.
    Helm,
    /// k9s, which wants a terminal.
    K9s,
}

/// What a client has said, and the kubeconfig that it was given.
#[derive(Debug)]
pub struct StockClientRun {
    /// As that of any command.
    pub output: Output,
    /// Where it was.
    pub kubeconfig: PathBuf,
}

impl StockClient {
    fn words(self) -> Vec<OsString> {
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
    /// What runs a client with these words at a terminal, below `skewbridge run`. kubectl,
    /// which some of them run in turn, is on its path.
    pub fn stock_client_line(
        &self,
        server: SocketAddr,
        agent: &[String],
        client: StockClient,
        words: &[&str],
    ) -> Command {
        let path = self.pki.path().join("programs");
        let kubectl = path.join("kubectl");
        std::fs::create_dir_all(&path).expect("a directory");
        let _ = std::os::unix::fs::symlink(binaries::kubectl(&self.servers[0].version), kubectl);
        let paths = std::env::var("PATH").unwrap_or_default();
        let mut command: Command = self.below_run(server, agent);
        command
            .args(client.words())
            .args(words)
            .env("PATH", format!("{}:{paths}", path.display()));
        command
    }

    /// Runs a client with these words below `skewbridge run`, whose plugin is
    /// `skewbridge agent` with these flags.
    pub async fn stock_client(
        &self,
        server: SocketAddr,
        agent: &[String],
        client: StockClient,
        words: &[&str],
    ) -> StockClientRun {
        let scratch = ScratchDir::new();
        let told = scratch.path().join("kubeconfig");
        let mut command: Command = self.below_run(server, agent);
        command
            .args(["sh", "-c", TELL])
            .arg(&told)
            .args(client.words())
            .args(words)
            .current_dir(scratch.path());
        let ended = tokio::time::timeout(BOUND, command.output()).await;
        let ended = ended.unwrap_or_else(|_| panic!("{client:?} {words:?} hangs"));
        let kubeconfig = std::fs::read_to_string(told).unwrap_or_default();
        StockClientRun {
            output: Output::of(&ended.expect("skewbridge run starts")),
            kubeconfig: kubeconfig.into(),
        }
    }
}

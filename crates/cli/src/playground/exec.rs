//! `kubectl exec` as kubectl does it: by WebSocket, and by SPDY where that is refused.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use skewbridge_client::Endpoint;
use skewbridge_client::remote_command::{
    ExecRequest, Executor as _, ExitStatus, FallbackExecutor, ProcessOutput, Transport,
};
use tokio::time::timeout;

/// Time limit of a command of the tour.
const EXEC_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest output of a command of the tour, in bytes.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExecOutcome {
    /// Why WebSocket was not used, if it was not.
    pub(super) fallback: Option<String>,
    pub(super) stdout: String,
    pub(super) ended: ExitStatus,
}

/// Runs a command in a pod of `default`.
pub(super) async fn exec(endpoint: Endpoint, pod: &str, words: &[&str]) -> Result<ExecOutcome> {
    let request = ExecRequest {
        namespace: "default".to_owned(),
        pod: pod.to_owned(),
        command: words.iter().map(ToString::to_string).collect(),
        stdout: true,
        ..ExecRequest::default()
    };
    let running = async {
        let mut process = FallbackExecutor::new(endpoint).start(&request).await?;
        let fallback = match process.transport() {
            Transport::WebSocket => None,
            Transport::Spdy { fallback_reason } => {
                Some(fallback_reason.clone().unwrap_or_default())
            }
        };
        let stdout = match process.stdout.take() {
            Some(stdout) => read(stdout).await?,
            None => String::new(),
        };
        let ended = process.wait().await;
        Ok(ExecOutcome {
            fallback,
            stdout,
            ended,
        })
    };
    let ran = timeout(EXEC_TIMEOUT, running).await;
    ran.context("the command did not exit in time")?
}

async fn read(mut stdout: ProcessOutput) -> Result<String> {
    let mut bytes = Vec::new();
    while let Some(piece) = stdout.next_chunk().await? {
        let room = MAX_OUTPUT_BYTES.saturating_sub(bytes.len());
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

impl fmt::Display for ExecOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fallback {
            None => f.write_str("WebSocket: ")?,
            Some(reason) => write!(f, "WebSocket: {reason}; SPDY: ")?,
        }
        f.write_str(&self.stdout)?;
        match &self.ended {
            ExitStatus::Success => f.write_str(" (exit code 0)"),
            ExitStatus::Code(code) => write!(f, " (exit code {})", code.number()),
            ExitStatus::Failed(failure) => write!(f, " ({})", failure.message),
            ExitStatus::Disconnected(cut) => write!(f, " (cut off: {})", cut.cause),
        }
    }
}

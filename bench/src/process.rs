//! Child processes that end with their owner.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::sleep;

use crate::process_usage;
use crate::scratch_dir::ScratchDir;

/// A server that does not listen by then has failed.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Between SIGTERM and SIGKILL: long enough to close sockets, not to drain.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The number of log lines in the error of a failed child.
const LOG_TAIL_LINES: usize = 12;
/// The directories of servers in Debian, often not in a user's PATH.
const SYSTEM_BINARIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// A child in its own process group; the whole group ends on drop.
///
/// The child is reaped only on drop, so its process ID cannot be reused while it might still be
/// signalled.
#[derive(Debug)]
pub(crate) struct OwnedProcess {
    name: &'static str,
    pid: u32,
    child: Child,
    log: PathBuf,
}

impl OwnedProcess {
    /// A server without input, whose output goes to a log in `scratch`.
    pub(crate) fn server(
        name: &'static str,
        mut command: Command,
        scratch: &ScratchDir,
    ) -> Result<Self> {
        let log = scratch.path(&format!("{name}.log"));
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?);
        Self::start(name, command, log, out)
    }

    /// A child with pipes to its input and from its output.
    pub(crate) fn with_pipes(
        name: &'static str,
        mut command: Command,
        scratch: &ScratchDir,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let log = scratch.path(&format!("{name}.log"));
        let errors = File::create(&log)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut owned = Self::start(name, command, log, errors)?;
        let input = owned.child.stdin.take().context("no pipe to the child")?;
        let output = owned
            .child
            .stdout
            .take()
            .context("no pipe from the child")?;
        Ok((owned, input, output))
    }

    fn start(name: &'static str, mut command: Command, log: PathBuf, err: File) -> Result<Self> {
        let child = command
            .stderr(err)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = child.id().context("a fresh child has no pid")?;
        Ok(Self {
            name,
            pid,
            child,
            log,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn ensure_running(&self) -> Result<()> {
        if process_usage::is_running(self.pid) {
            return Ok(());
        }
        bail!("{} has ended{}", self.name, self.log_tail())
    }

    pub(crate) async fn until_listening(&self, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).await.is_err() {
            self.ensure_running()?;
            if Instant::now() > deadline {
                let words = self.log_tail();
                bail!("{} does not listen on {address}{words}", self.name);
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The end of the child's log, ready to be appended to an error.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.trim().lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        if tail.is_empty() {
            return String::new();
        }
        format!("; the end of its log:\n  {}", tail.join("\n  "))
    }

    fn signal_group(&self, signal: &str) {
        // The shell's own `kill`: procps may be missing, and a system call would need
        // unsafe code. The group may have exited already.
        let _ = std::process::Command::new("sh")
            .args(["-c", "kill -s \"$1\" -- \"-$2\"", "sh", signal])
            .arg(self.pid.to_string())
            .stderr(Stdio::null())
            .status();
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        self.signal_group("TERM");
        wait_until(|| !process_usage::is_running(self.pid));
        self.signal_group("KILL");
        wait_until(|| !matches!(self.child.try_wait(), Ok(None)));
    }
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + STOP_TIMEOUT;
    while !done() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The path of a tool, or an error that names the Debian package to install.
pub(crate) fn tool(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_BINARIES.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("{name} is missing: apt-get install {package}"))
}

/// Runs a short-lived tool until it exits and returns its output.
pub(crate) async fn output_of(command: &mut Command, limit: Duration) -> Result<String> {
    let name = format!("{}", Path::new(command.as_std().get_program()).display());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(limit, command.output())
        .await
        .with_context(|| format!("{name} did not end within {limit:?}"))?
        .with_context(|| format!("cannot run {name}"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}\n{out}{errors}", output.status);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_child_ends_with_its_own_children() {
        let scratch = ScratchDir::create().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; sleep 600 & echo $!; wait; wait"]);
        let owned = OwnedProcess::server("stubborn", command, &scratch).unwrap();
        let log = scratch.path("stubborn.log");
        let grandchild = loop {
            let text = fs::read_to_string(&log).unwrap();
            if let Some(line) = text.strip_suffix('\n') {
                break line.parse().unwrap();
            }
            sleep(POLL_INTERVAL).await;
        };
        let child = owned.pid();
        assert!(process_usage::is_running(child) && process_usage::is_running(grandchild));
        drop(owned);
        assert!(!process_usage::is_running(child));
        wait_until(|| !process_usage::is_running(grandchild));
        assert!(!process_usage::is_running(grandchild));
    }

    #[tokio::test]
    async fn a_server_that_exits_early_is_named_with_its_log() {
        let scratch = ScratchDir::create().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such option; exit 1"]);
        let owned = OwnedProcess::server("picky", command, &scratch).unwrap();
        // Port 0 is never listened on.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let error = owned
            .until_listening(nowhere)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("picky has ended"), "{error}");
        assert!(error.contains("no such option"), "{error}");
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        let error = tool("no-such-tool", "its-package").unwrap_err().to_string();
        assert_eq!(
            error,
            "no-such-tool is missing: apt-get install its-package"
        );
    }
}

//! A client that runs until it exits, and its cost: time, CPU and memory.
//!
//! The kernel reports the cost of a process to its parent, in `wait4`. Linux includes the
//! memory that it had before it executed the client, which is its parent's: so each client has
//! its own small parent, this program as `timed-child`.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;
use wait4::{ResourceUsage, Wait4 as _};

use crate::args;
use crate::pattern::Pattern;
use crate::process::OwnedProcess;
use crate::scratch_dir::ScratchDir;

/// A client that takes longer hangs.
const CLIENT_TIMEOUT: Duration = Duration::from_mins(10);
/// The read buffer for a client's output: more than a pipe holds.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// The cost of a client.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// From its start to its end, in seconds.
    pub(crate) seconds: f64,
    /// From its start to its first byte on stdout, if it wrote any.
    pub(crate) first_byte: Option<f64>,
    /// Seconds of CPU, in user mode and in the system.
    pub(crate) cpu: f64,
    /// Its maximum memory, in KiB.
    pub(crate) peak_kib: u32,
}

/// The input of a client and its expected output.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Streams<'a> {
    /// Its stdin; empty if not set.
    pub(crate) stdin: Option<&'a Path>,
    /// How many bytes of the pattern the client has to write; any output if not set.
    pub(crate) expected: Option<u64>,
}

/// Runs a client that has to succeed. It is killed with this future.
pub(crate) async fn run_timed(
    client: &Command,
    streams: Streams<'_>,
    scratch: &ScratchDir,
) -> Result<Cost> {
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command.arg("timed-child");
    if let Some(file) = streams.stdin {
        command.arg("--stdin").arg(file);
    }
    if let Some(bytes) = streams.expected {
        command.arg(format!("--expected={bytes}"));
    }
    command.arg("--").arg(client.get_program());
    command.args(client.get_args());
    for (name, value) in client.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (owned, input, mut output) = OwnedProcess::with_pipes("client", command, scratch)?;
    drop(input);
    let mut report = String::new();
    timeout(CLIENT_TIMEOUT, output.read_to_string(&mut report))
        .await
        .with_context(|| format!("a client has not ended within {CLIENT_TIMEOUT:?}"))??;
    serde_json::from_str(&report).map_err(|_| {
        let words = owned.log_tail();
        anyhow::anyhow!("a client has failed{words}\n{client:?}")
    })
}

/// The parent: runs the client, and prints its cost.
pub(crate) fn run(args: &args::TimedChild) -> Result<()> {
    let [program, words @ ..] = args.client.as_slice() else {
        bail!("no client");
    };
    let stdin = match &args.stdin {
        Some(path) => {
            let file = File::open(path);
            Stdio::from(file.with_context(|| path.display().to_string())?)
        }
        None => Stdio::null(),
    };
    let mut command = Command::new(program);
    command.args(words).stdin(stdin).stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().context("cannot start the client")?;
    let mut output = child.stdout.take().context("no pipe from the client")?;
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    let (mut first_byte, mut pattern) = (None, Pattern::default());
    loop {
        let read = output.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        first_byte = first_byte.or_else(|| Some(start.elapsed().as_secs_f64()));
        if args.expected.is_some() {
            pattern.check(&buffer[..read])?;
        }
    }
    let ended = child.wait4()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(ended.status.success(), "{}", ended.status);
    if let Some(expected) = args.expected {
        let passed = pattern.passed();
        ensure!(passed == expected, "{passed} bytes instead of {expected}");
    }
    let cost = Cost::new(seconds, first_byte, &ended.rusage)?;
    println!("{}", serde_json::to_string(&cost)?);
    Ok(())
}

impl Cost {
    fn new(seconds: f64, first_byte: Option<f64>, usage: &ResourceUsage) -> Result<Self> {
        Ok(Self {
            seconds,
            first_byte,
            cpu: (usage.utime + usage.stime).as_secs_f64(),
            peak_kib: u32::try_from(usage.maxrss >> 10)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added() {
        let usage = ResourceUsage {
            utime: Duration::from_millis(1500),
            stime: Duration::from_micros(250),
            maxrss: 5 << 20,
        };
        let cost = Cost::new(3.0, Some(1.0), &usage).unwrap();
        assert!((cost.cpu - 1.500_25).abs() < 1e-9, "{cost:?}");
        assert_eq!(cost.peak_kib, 5 << 10);
    }

    #[test]
    fn the_report_of_the_parent_is_parsed() {
        let cost = Cost {
            seconds: 1.5,
            first_byte: None,
            cpu: 0.25,
            peak_kib: 4096,
        };
        let report = format!("{}\n", serde_json::to_string(&cost).unwrap());
        assert_eq!(serde_json::from_str::<Cost>(&report).unwrap(), cost);
        // A client that failed: its parent has printed nothing.
        assert!(serde_json::from_str::<Cost>("").is_err());
    }
}

//! A fake container: a local directory with a real tar, behind a connection that can be lost at
//! any byte.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use skewbridge_client::copy::{Container, Process, RunFuture, Stdin};
use skewbridge_client::remote_command::{Disconnected, ExitStatus};
use skewbridge_remotecommand::{ExitCode, Failure};
use skewbridge_testkit::ScratchDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::process::Command;
use tokio::sync::Notify;

/// If set to a busybox, containers use its programs instead of the system's.
const BUSYBOX: &str = "SKEWBRIDGE_TEST_BUSYBOX";

/// Whether the programs are those of a busybox: its shell finds all of them regardless of $PATH,
/// and some builds have no cksum.
pub(crate) fn is_busybox() -> bool {
    std::env::var_os(BUSYBOX).is_some()
}

/// When and how a connection is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    Output(u64),
    Input(u64),
    /// After this much input, without the process noticing.
    Unnoticed(u64),
    /// After all input was sent; the process keeps running.
    Sent,
    /// After this much input no more input is accepted.
    Stall(u64),
    /// Before the start: the command is never started.
    Everything,
    /// Only the exit status: the command has completed.
    ExitStatus,
}

pub(crate) struct FakeContainer {
    scratch: ScratchDir,
    losses: Mutex<VecDeque<Option<Loss>>>,
    commands: Mutex<Vec<Vec<String>>>,
    refusal: Mutex<Option<String>>,
    /// How many processes run whose connections were lost.
    detached: Arc<AtomicUsize>,
}

impl FakeContainer {
    /// With all programs that copies use.
    pub(crate) fn new() -> Self {
        Self::with(&[
            "cat", "chmod", "chown", "cksum", "dd", "find", "id", "mv", "rm", "sh", "sleep",
            "stat", "tail", "tar", "test", "touch", "wc",
        ])
    }

    /// With these programs only.
    pub(crate) fn with(programs: &[&str]) -> Self {
        let scratch = ScratchDir::new();
        for directory in ["bin", "root"] {
            std::fs::create_dir(scratch.path().join(directory)).unwrap();
        }
        for program in programs {
            symlink(
                system_program(program),
                scratch.path().join("bin").join(program),
            )
            .unwrap();
        }
        Self {
            scratch,
            losses: Mutex::default(),
            commands: Mutex::default(),
            refusal: Mutex::default(),
            detached: Arc::default(),
        }
    }

    /// How many processes run whose connections were lost.
    pub(crate) fn detached(&self) -> usize {
        self.detached.load(Ordering::SeqCst)
    }

    /// Adds a script as a program. A separate process writes it: if we had it open for writing
    /// while another test starts a process, that process would inherit it, and the file could
    /// not be executed.
    pub(crate) fn add_script(&self, program: &str, script: &str) {
        use std::io::Write as _;
        let path = self.scratch.path().join("bin").join(program);
        let mut install = std::process::Command::new("install")
            .args(["-m755", "/dev/stdin"])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = install.stdin.take().unwrap();
        write!(stdin, "#!/bin/sh\n{script}\n").unwrap();
        drop(stdin);
        assert!(install.wait().unwrap().success());
    }

    /// Replaces a program by a script.
    pub(crate) fn replace_with_script(&self, program: &str, script: &str) {
        std::fs::remove_file(self.scratch.path().join("bin").join(program)).unwrap();
        self.add_script(program, script);
    }

    /// A link to the real tar.
    pub(crate) fn tar(&self) -> PathBuf {
        let link = self.scratch.path().join("real/tar");
        std::fs::create_dir_all(self.scratch.path().join("real")).unwrap();
        symlink(system_program("tar"), &link).unwrap();
        link
    }

    /// Makes the server answer all further commands with this error.
    pub(crate) fn refuse(&self, message: &str) {
        *self.refusal.lock().unwrap() = Some(message.to_owned());
    }

    /// The working directory of its commands.
    pub(crate) fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.root().join(name).display().to_string()
    }

    /// Loses the connections of the next commands, one after the other.
    pub(crate) fn lose_connections(&self, losses: &[Option<Loss>]) {
        self.losses.lock().unwrap().extend(losses);
    }

    /// The commands that were run.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        self.commands.lock().unwrap().clone()
    }

    fn start(&self, command: &[String], stdin: Stdin) -> Process {
        self.commands.lock().unwrap().push(command.to_vec());
        if let Some(message) = &*self.refusal.lock().unwrap() {
            return failed(message.clone());
        }
        let loss = self.losses.lock().unwrap().pop_front().flatten();
        if matches!(loss, Some(Loss::Everything)) {
            return unstarted_process(stdin);
        }
        let child = Command::new(&command[0])
            .args(&command[1..])
            .current_dir(self.root())
            .env("PATH", self.scratch.path().join("bin"))
            .env("LC_ALL", "C")
            .stdin(match stdin {
                Stdin::Piped => Stdio::piped(),
                Stdin::Null => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return program_not_found(&command[0], &error),
        };
        let signal = Arc::new(LossSignals::default());
        let of = |wanted: fn(Loss) -> Option<u64>| loss.and_then(wanted).unwrap_or(u64::MAX);
        let stdout = Output {
            inner: child.stdout.take().unwrap(),
            left: of(|loss| match loss {
                Loss::Output(bytes) => Some(bytes),
                _ => None,
            }),
            lost: signal.clone(),
        };
        let left = of(|loss| match loss {
            Loss::Input(bytes) | Loss::Unnoticed(bytes) | Loss::Stall(bytes) => Some(bytes),
            _ => None,
        });
        let keeps_running = matches!(loss, Some(Loss::Unnoticed(_) | Loss::Sent));
        let stdin = child.stdin.take().map(|inner| Input {
            inner: Some(inner),
            left,
            stalls: matches!(loss, Some(Loss::Stall(_))),
            sent: matches!(loss, Some(Loss::Sent)),
            kept: keeps_running.then(|| signal.clone()),
            lost: signal.clone(),
        });
        let stderr = child.stderr.take().unwrap();
        let detached = self.detached.clone();
        let mut outputs: [Box<dyn AsyncRead + Send + Unpin>; 2] =
            [Box::new(stdout), Box::new(stderr)];
        if keeps_running {
            outputs = outputs.map(|output| forward_until_lost(output, signal.clone()));
        }
        let [stdout, stderr] = outputs;
        Process {
            stdin: stdin.map(|stdin| Box::new(stdin) as _),
            stdout,
            stderr,
            exit: Box::pin(async move {
                // The loss takes effect even if the process has ended before.
                let waited = async {
                    if matches!(loss, Some(Loss::Output(_))) {
                        signal.read.notified().await;
                    }
                    child.wait().await.unwrap()
                };
                let ended = tokio::select! {
                    biased;
                    () = signal.notify.notified() => None,
                    ended = waited => Some(ended),
                };
                let Some(ended) = ended else {
                    if keeps_running {
                        detached.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(async move {
                            let _ = child.wait().await;
                            drop(signal);
                            detached.fetch_sub(1, Ordering::SeqCst);
                        });
                        return connection_lost();
                    }
                    // The process gets end-of-file, as in a pod, and its exit status is lost.
                    let _ = child.wait().await;
                    return connection_lost();
                };
                if matches!(loss, Some(Loss::ExitStatus)) {
                    return connection_lost();
                }
                match ended.code() {
                    Some(0) => ExitStatus::Success,
                    Some(code) => {
                        ExitStatus::Code(ExitCode::new(u8::try_from(code).unwrap()).unwrap())
                    }
                    None => connection_lost(),
                }
            }),
        }
    }
}

/// The path of a system program.
fn system_program(program: &str) -> PathBuf {
    if let Some(busybox) = std::env::var_os(BUSYBOX) {
        return PathBuf::from(busybox);
    }
    ["/usr/bin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("this machine has no {program}"))
}

impl Container for FakeContainer {
    fn run(&self, command: Vec<String>, stdin: Stdin) -> RunFuture<'_> {
        Box::pin(async move { Ok(self.start(&command, stdin)) })
    }
}

fn connection_lost() -> ExitStatus {
    ExitStatus::Disconnected(Disconnected {
        cause: "connection reset by peer".to_owned(),
        sent: 0,
        unsent: 0,
        received: 0,
    })
}

fn unstarted_process(stdin: Stdin) -> Process {
    Process {
        stdin: match stdin {
            Stdin::Piped => Some(Box::new(tokio::io::sink())),
            Stdin::Null => None,
        },
        stdout: Box::new(tokio::io::empty()),
        stderr: Box::new(tokio::io::empty()),
        exit: Box::pin(async { connection_lost() }),
    }
}

fn program_not_found(program: &str, error: &io::Error) -> Process {
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    failed(format!(
        "exec: \"{program}\": executable file not found in $PATH"
    ))
}

fn failed(message: String) -> Process {
    Process {
        stdin: None,
        stdout: Box::new(tokio::io::empty()),
        stderr: Box::new(tokio::io::empty()),
        exit: Box::pin(async move {
            ExitStatus::Failed(Failure {
                code: Some(500),
                reason: "InternalError".to_owned(),
                message,
            })
        }),
    }
}

/// Forwards output until the connection is lost.
fn forward_until_lost(
    mut output: Box<dyn AsyncRead + Send + Unpin>,
    lost: Arc<LossSignals>,
) -> Box<dyn AsyncRead + Send + Unpin> {
    let (mut into, from) = tokio::io::duplex(1 << 10);
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy(&mut output, &mut into) => {}
            () = lost.outputs.notified() => {}
        }
    });
    Box::new(from)
}

#[derive(Default)]
struct LossSignals {
    notify: Notify,
    /// Ends the outputs of a process that keeps running.
    outputs: Notify,
    /// All output was read or discarded.
    read: Notify,
    /// Keeps the stdin of a process open whose connection is lost without an end-of-file.
    input: Mutex<Option<tokio::process::ChildStdin>>,
}

struct Output {
    inner: tokio::process::ChildStdout,
    left: u64,
    lost: Arc<LossSignals>,
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            self.lost.notify.notify_one();
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        let room = usize::try_from(self.left).map_or(buf.remaining(), |it| it.min(buf.remaining()));
        let mut part = buf.take(room);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        if read == 0 {
            self.lost.read.notify_one();
        }
        // `part` was read into the memory of `buf`.
        let filled = part.filled().to_vec();
        buf.put_slice(&filled);
        self.left -= read as u64;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.lost.read.notify_one();
    }
}

struct Input {
    inner: Option<tokio::process::ChildStdin>,
    left: u64,
    stalls: bool,
    /// The connection is lost at the end of the input.
    sent: bool,
    /// Keeps stdin open when the connection is lost.
    kept: Option<Arc<LossSignals>>,
    lost: Arc<LossSignals>,
}

impl AsyncWrite for Input {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.left == 0 && self.stalls {
            return Poll::Pending;
        }
        if self.left == 0 {
            // First, because the process ends with its input.
            self.lost.notify.notify_one();
            let inner = self.inner.take();
            if let Some(kept) = &self.kept {
                *kept.input.lock().unwrap() = inner;
                kept.outputs.notify_waiters();
            }
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = usize::try_from(self.left).map_or(bytes.len(), |it| it.min(bytes.len()));
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let written = ready!(Pin::new(inner).poll_write(cx, &bytes[..length]))?;
        self.left -= written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner = None;
        if self.sent {
            self.lost.notify.notify_one();
            self.lost.outputs.notify_waiters();
        }
        Poll::Ready(Ok(()))
    }
}

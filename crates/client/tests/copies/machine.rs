//! A container that is a directory of this machine, with its real tar, behind a
//! connection that can be cut at any byte.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use skewbridge_client::copy::{Container, Process, Running, Stdin};
use skewbridge_client::streams::{Cut, ExitStatus};
use skewbridge_remotecommand::{ExitCode, Failure};
use skewbridge_testkit::ScratchDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::process::Command;
use tokio::sync::Notify;

/// Where this is set, to a busybox, containers have its programs instead of those of
/// this machine.
const BUSYBOX: &str = "SKEWBRIDGE_TEST_BUSYBOX";

/// Its shell finds all of its programs, wherever they are, and some builds of it have
/// no cksum.
pub(crate) fn is_busybox() -> bool {
    std::env::var_os(BUSYBOX).is_some()
}

/// After how many bytes a connection is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    Output(u64),
    Input(u64),
    /// And the process there does not learn of it.
    Unnoticed(u64),
    /// All was sent, and the process goes on.
    Sent,
    /// No more than this is taken, for ever.
    Stall(u64),
    /// Whatever is sent is on its way for ever: nothing has begun there.
    Everything,
    /// All is done there, and nobody hears of it.
    Answer,
}

pub(crate) struct Machine {
    scratch: ScratchDir,
    losses: Mutex<VecDeque<Option<Loss>>>,
    commands: Mutex<Vec<Vec<String>>>,
    refusal: Mutex<Option<String>>,
    /// Processes that have not learnt that their connections were lost.
    unaware: Arc<AtomicUsize>,
}

impl Machine {
    /// With all the programs that copies know of.
    pub(crate) fn new() -> Self {
        Self::with(&[
            "cat", "chmod", "chown", "cksum", "dd", "find", "id", "mv", "rm", "sh", "sleep",
            "stat", "tail", "tar", "test", "touch", "wc",
        ])
    }

    /// With these programs alone.
    pub(crate) fn with(programs: &[&str]) -> Self {
        let scratch = ScratchDir::new();
        for directory in ["bin", "root"] {
            std::fs::create_dir(scratch.path().join(directory)).unwrap();
        }
        for program in programs {
            symlink(found(program), scratch.path().join("bin").join(program)).unwrap();
        }
        Self {
            scratch,
            losses: Mutex::default(),
            commands: Mutex::default(),
            refusal: Mutex::default(),
            unaware: Arc::default(),
        }
    }

    /// How many processes are at work whose connections were lost.
    pub(crate) fn unaware(&self) -> usize {
        self.unaware.load(Ordering::SeqCst)
    }

    /// Gives it a program that is none of this machine's. It is written by a process of
    /// its own: had we it open for writing while another test starts a process, that
    /// would inherit it, and the file could not be executed.
    pub(crate) fn pretend(&self, program: &str, script: &str) {
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

    /// The same for one that it has.
    pub(crate) fn replace(&self, program: &str, script: &str) {
        std::fs::remove_file(self.scratch.path().join("bin").join(program)).unwrap();
        self.pretend(program, script);
    }

    /// Where the real tar is.
    pub(crate) fn tar(&self) -> PathBuf {
        let link = self.scratch.path().join("real/tar");
        std::fs::create_dir_all(self.scratch.path().join("real")).unwrap();
        symlink(found("tar"), &link).unwrap();
        link
    }

    /// From now on a server says this of whatever is to be run.
    pub(crate) fn refuse(&self, message: &str) {
        *self.refusal.lock().unwrap() = Some(message.to_owned());
    }

    /// Where its commands begin.
    pub(crate) fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.root().join(name).display().to_string()
    }

    /// Loses the connections of the next commands, one after the other.
    pub(crate) fn lose(&self, losses: &[Option<Loss>]) {
        self.losses.lock().unwrap().extend(losses);
    }

    /// What was run, with scripts left out.
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
            return into_nowhere(stdin);
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
            Err(error) => return absent(&command[0], &error),
        };
        let signal = Arc::new(Lost::default());
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
        let goes_on = matches!(loss, Some(Loss::Unnoticed(_) | Loss::Sent));
        let stdin = child.stdin.take().map(|inner| Input {
            inner: Some(inner),
            left,
            stalls: matches!(loss, Some(Loss::Stall(_))),
            sent: matches!(loss, Some(Loss::Sent)),
            kept: goes_on.then(|| signal.clone()),
            lost: signal.clone(),
        });
        let stderr = child.stderr.take().unwrap();
        let unaware = self.unaware.clone();
        let mut outputs: [Box<dyn AsyncRead + Send + Unpin>; 2] =
            [Box::new(stdout), Box::new(stderr)];
        if goes_on {
            outputs = outputs.map(|output| until_lost(output, signal.clone()));
        }
        let [stdout, stderr] = outputs;
        Process {
            stdin: stdin.map(|stdin| Box::new(stdin) as _),
            stdout,
            stderr,
            ended: Box::pin(async move {
                // What was lost is lost, however soon the process has ended.
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
                    if goes_on {
                        unaware.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(async move {
                            let _ = child.wait().await;
                            drop(signal);
                            unaware.fetch_sub(1, Ordering::SeqCst);
                        });
                        return cut();
                    }
                    // What it was sent has an end now, as it would in a pod; and nobody
                    // hears it any more.
                    let _ = child.wait().await;
                    return cut();
                };
                if matches!(loss, Some(Loss::Answer)) {
                    return cut();
                }
                match ended.code() {
                    Some(0) => ExitStatus::Success,
                    Some(code) => {
                        ExitStatus::Code(ExitCode::new(u8::try_from(code).unwrap()).unwrap())
                    }
                    None => cut(),
                }
            }),
        }
    }
}

/// Where a program is.
fn found(program: &str) -> PathBuf {
    if let Some(busybox) = std::env::var_os(BUSYBOX) {
        return PathBuf::from(busybox);
    }
    ["/usr/bin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("this machine has no {program}"))
}

impl Container for Machine {
    fn run(&self, command: Vec<String>, stdin: Stdin) -> Running<'_> {
        Box::pin(async move { Ok(self.start(&command, stdin)) })
    }
}

fn cut() -> ExitStatus {
    ExitStatus::Cut(Cut {
        cause: "connection reset by peer".to_owned(),
        sent: 0,
        unsent: 0,
        received: 0,
    })
}

fn into_nowhere(stdin: Stdin) -> Process {
    Process {
        stdin: match stdin {
            Stdin::Piped => Some(Box::new(tokio::io::sink())),
            Stdin::Null => None,
        },
        stdout: Box::new(tokio::io::empty()),
        stderr: Box::new(tokio::io::empty()),
        ended: Box::pin(async { cut() }),
    }
}

fn absent(program: &str, error: &io::Error) -> Process {
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
        ended: Box::pin(async move {
            ExitStatus::Failed(Failure {
                code: Some(500),
                reason: "InternalError".to_owned(),
                message,
            })
        }),
    }
}

/// What comes as long as there is a connection.
fn until_lost(
    mut output: Box<dyn AsyncRead + Send + Unpin>,
    lost: Arc<Lost>,
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
struct Lost {
    notify: Notify,
    /// Ends outputs of a process that goes on.
    outputs: Notify,
    /// All output was read, or is wanted no more.
    read: Notify,
    /// The input of a process that does not learn that it is over.
    input: Mutex<Option<tokio::process::ChildStdin>>,
}

struct Output {
    inner: tokio::process::ChildStdout,
    left: u64,
    lost: Arc<Lost>,
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
        // It was read into the memory of the buffer that it is a part of.
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
    /// It is lost at its end.
    sent: bool,
    /// Who keeps it when the connection is lost.
    kept: Option<Arc<Lost>>,
    lost: Arc<Lost>,
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
            // First of all: the process ends when its input does.
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

//! Processes of pods. Each leads a session of its own, so that it has no terminal
//! but the one it is given, and can be ended with all that it has started.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::terminal::{Terminal, Window};

/// Where commands without a slash are looked for.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long is waited in all for output of a process that has ended: what it has left
/// running may hold it open.
const DRAIN: Duration = Duration::from_secs(2);

/// How much is read of a process that has ended: the most that a pipe holds, unless root
/// has said otherwise. What comes then is another's, who got away.
const REST: usize = 1024 * 1024;

/// The program that begins every process of a pod: what is to be run with
/// [`attend`](super::program::attend), and the words that lead it there.
#[derive(Debug, Clone)]
pub struct Program {
    /// The file.
    pub file: PathBuf,
    /// What it is told before anything else.
    pub words: Vec<OsString>,
}

/// What to run.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) task: Task<'a>,
    pub(super) directory: &'a Path,
    pub(super) environment: &'a [(String, String)],
    pub(super) input: Input,
}

/// What is run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task<'a> {
    /// A program and its arguments.
    Command(&'a [String]),
    /// The sample that is part of this program.
    Sample,
}

/// What a process reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing.
    None,
    /// What somebody writes.
    Pipe,
    /// A terminal, which is also what it writes to.
    Terminal,
}

/// A byte stream out of a process.
pub(super) struct Outlet {
    bytes: Pin<Box<dyn AsyncRead + Send>>,
    ended: watch::Receiver<bool>,
    /// What is left of [`DRAIN`] and [`REST`]. How long readers take with what they have
    /// read does not count.
    patience: Duration,
    rest: usize,
}

/// A byte stream into a process.
pub(super) type Inlet = Pin<Box<dyn AsyncWrite + Send>>;

/// A process that runs, and the ends of what it reads and writes.
pub(super) struct Process {
    pub(super) life: Life,
    pub(super) stdin: Option<Inlet>,
    pub(super) stdout: Option<Outlet>,
    pub(super) stderr: Option<Outlet>,
    pub(super) window: Option<Window>,
}

/// Why nothing runs.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    #[error("no command was given")]
    NoCommand,
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotFound(String),
    #[error("exec: {0:?}: stat {0}: no such file or directory")]
    NoFile(String),
    #[error("exec: {0:?}: permission denied")]
    NotExecutable(String),
    #[error("cannot start a process: {0}")]
    System(#[from] io::Error),
}

impl Launch<'_> {
    /// Runs it. Must be called within a runtime.
    pub(super) fn start(&self, program: &Program) -> Result<Process, LaunchError> {
        let mut command = Command::new(&program.file);
        command.args(&program.words);
        match self.task {
            Task::Command(argv) => {
                self.find(argv)?;
                command.arg(match self.input {
                    Input::Terminal => super::program::TERMINAL,
                    Input::None | Input::Pipe => super::program::SESSION,
                });
                command.args(argv)
            }
            Task::Sample => command.arg(super::program::SAMPLE),
        };
        command
            .env_clear()
            .env("PATH", PATH)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.directory)
            .kill_on_drop(true);
        if self.input == Input::Terminal {
            let Terminal {
                output,
                input,
                window,
                theirs,
            } = Terminal::open()?;
            command
                .stdin(theirs.try_clone()?)
                .stdout(theirs.try_clone()?)
                .stderr(theirs);
            let life = Life::new(command.spawn()?);
            // It has its own ends; the terminal is over when nobody else has them.
            drop(command);
            return Ok(Process {
                stdin: Some(Box::pin(input)),
                stdout: Some(life.outlet(output)),
                stderr: None,
                window: Some(window),
                life,
            });
        }
        command
            .stdin(match self.input {
                Input::Pipe => Stdio::piped(),
                Input::None | Input::Terminal => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut life = Life::new(command.spawn()?);
        let (stdout, stderr) = (life.child.stdout.take(), life.child.stderr.take());
        Ok(Process {
            stdin: life.child.stdin.take().map(|it| Box::pin(it) as Inlet),
            stdout: stdout.map(|it| life.outlet(it)),
            stderr: stderr.map(|it| life.outlet(it)),
            window: None,
            life,
        })
    }

    fn find(&self, argv: &[String]) -> Result<(), LaunchError> {
        let first = argv.first().ok_or(LaunchError::NoCommand)?;
        let path = self.environment.iter().rfind(|(name, _)| name == "PATH");
        let path = path.map_or(PATH, |(_, value)| value);
        find(first, path, self.directory)
    }
}

/// Whether there is such a program: who asks is told before anything is started.
fn find(word: &str, path: &str, directory: &Path) -> Result<(), LaunchError> {
    let is_executable = |file: &Path| {
        let found = file.metadata();
        found.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if word.contains('/') {
        let file = directory.join(word);
        return match file.exists() {
            true if is_executable(&file) => Ok(()),
            true => Err(LaunchError::NotExecutable(word.to_owned())),
            false => Err(LaunchError::NoFile(word.to_owned())),
        };
    }
    let mut folders = path.split(':').filter(|it| !it.is_empty());
    if !word.is_empty() && folders.any(|folder| is_executable(&Path::new(folder).join(word))) {
        return Ok(());
    }
    Err(LaunchError::NotFound(word.to_owned()))
}

impl Outlet {
    /// Reads something; `false` if nothing more comes.
    pub(super) async fn read(&mut self, into: &mut BytesMut) -> bool {
        if !*self.ended.borrow() {
            tokio::select! {
                biased;
                read = self.bytes.read_buf(into) => return matches!(read, Ok(1..)),
                // Nobody is left who waits for it: that is an end, too.
                _ = self.ended.wait_for(|ended| *ended) => {}
            }
        }
        if self.rest == 0 {
            return false;
        }
        let begun = Instant::now();
        let read = timeout(self.patience, self.bytes.read_buf(into)).await;
        self.patience = self.patience.saturating_sub(begun.elapsed());
        let Ok(Ok(read @ 1..)) = read else {
            return false;
        };
        self.rest = self.rest.saturating_sub(read);
        true
    }
}

/// Waits for the end of a process while it is fed and heard, and then until the rest of
/// what it has written is heard: by whoever is slow, as late as that may be.
pub(super) async fn accompany(
    end: impl Future<Output = Ended>,
    outputs: impl Future<Output = ()>,
    inputs: impl Future<Output = ()>,
) -> Ended {
    let (mut end, mut outputs, mut inputs) = (pin!(end), pin!(outputs), pin!(inputs));
    let (mut heard, mut fed) = (false, false);
    let ended = loop {
        tokio::select! {
            ended = &mut end => break ended,
            () = &mut outputs, if !heard => heard = true,
            () = &mut inputs, if !fed => fed = true,
        }
    };
    while !heard {
        // Whoever still writes to it is not to be kept waiting.
        tokio::select! {
            () = &mut outputs => heard = true,
            () = &mut inputs, if !fed => fed = true,
        }
    }
    ended
}

/// A process and all of its session's first group. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Life {
    child: Child,
    leader: Option<Pid>,
    ended: watch::Sender<bool>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// As shells tell it: 128 and the signal if there was one.
    pub(super) code: u8,
    pub(super) signal: Option<i32>,
}

impl Life {
    fn new(child: Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            leader: id.and_then(Pid::from_raw),
            child,
            ended: watch::Sender::new(false),
        }
    }

    fn outlet(&self, bytes: impl AsyncRead + Send + 'static) -> Outlet {
        Outlet {
            bytes: Box::pin(bytes),
            ended: self.ended.subscribe(),
            patience: DRAIN,
            rest: REST,
        }
    }

    /// Waits for its end. What it has left running ends then too: a container of the
    /// playground is no more than its process.
    pub(super) async fn wait(&mut self) -> Ended {
        let status = self.child.wait().await;
        self.signal(Signal::KILL);
        self.leader = None;
        self.ended.send_replace(true);
        // That a child cannot be waited for does not happen; if it does, it is gone.
        status.map_or(Ended::FAILED, Ended::of)
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Has it end.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        let Some(leader) = self.leader else { return };
        // One that has just begun may not lead a group yet.
        let _ = kill_process_group(leader, signal);
        if self.child.id().is_some() {
            let _ = kill_process(leader, signal);
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // The child itself is killed, and waited for, by tokio.
        self.kill();
    }
}

impl Ended {
    const FAILED: Self = Self {
        code: 255,
        signal: None,
    };

    fn of(status: ExitStatus) -> Self {
        let signal = status.signal();
        let code = status.code().or(signal.map(|signal| 128 + signal));
        Self {
            code: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255),
            signal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_told_in_the_words_of_runtimes() {
        let scratch = std::env::temp_dir();
        let said = |word: &str| {
            let found = find(word, PATH, &scratch);
            found.map_err(|error| error.to_string())
        };
        assert_eq!(said("sh"), Ok(()));
        assert_eq!(said("/bin/sh"), Ok(()));
        let rows = [
            (
                "nope-1",
                "exec: \"nope-1\": executable file not found in $PATH",
            ),
            ("", "exec: \"\": executable file not found in $PATH"),
            (
                "./nope-1",
                "exec: \"./nope-1\": stat ./nope-1: no such file or directory",
            ),
            ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
        ];
        for (word, message) in rows {
            assert_eq!(said(word), Err(message.to_owned()));
        }
    }
}

//! Processes of pods. Each leads its own session, so that it has only its own terminal, below an
//! [`init`](super::init) that ends its descendants.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::terminal::{Terminal, Window};

/// The search path of commands.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Total time to read the output of a process that has exited: background processes may hold it
/// open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes that are read after a process has exited: the default limit of a
/// pipe. Further bytes come from a background process.
const MAX_REMAINING_OUTPUT_BYTES: usize = 1024 * 1024;

/// Time for a process and its descendants to exit after a kill: longer than the timeout of init.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval between checks whether processes have exited.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The program that starts every process of a pod: it calls
/// [`run_in_pod`](super::process_entry::run_in_pod). With its first arguments.
#[derive(Debug, Clone)]
pub struct Program {
    /// The file.
    pub file: PathBuf,
    /// Its first arguments.
    pub arguments: Vec<OsString>,
}

/// Starts the processes of pods, and tracks them. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    program: Program,
    running: Arc<Mutex<HashMap<Pid, Running>>>,
}

/// A running process.
#[derive(Debug, Clone)]
struct Running {
    /// The uid of its pod.
    pod: String,
    /// The signal that ends the process at once.
    end: Signal,
}

/// A process to start.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    /// The uid of the pod that it is a part of.
    pub(super) pod: &'a str,
    pub(super) task: Task<'a>,
    pub(super) directory: &'a Path,
    pub(super) environment: &'a [(String, String)],
    pub(super) input: Input,
}

/// The program of a process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task<'a> {
    /// A program and its arguments.
    Command(&'a [String]),
    /// The sample that is part of this program.
    Sample,
}

/// The standard input of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// No input.
    None,
    /// A pipe.
    Pipe,
    /// A terminal, for input and output.
    Terminal,
}

/// A byte stream out of a process.
pub(super) struct OutputReader {
    bytes: Pin<Box<dyn AsyncRead + Send>>,
    ended: watch::Receiver<bool>,
    /// The rest of [`OUTPUT_DRAIN_TIMEOUT`] and [`MAX_REMAINING_OUTPUT_BYTES`]. Time that
    /// readers spend between reads does not count.
    max_wait: Duration,
    rest: usize,
}

/// A byte stream into a process.
pub(super) type InputWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// A running process, and its streams.
pub(super) struct Process {
    pub(super) handle: ProcessHandle,
    pub(super) stdin: Option<InputWriter>,
    pub(super) stdout: Option<OutputReader>,
    pub(super) stderr: Option<OutputReader>,
    pub(super) window: Option<Window>,
}

/// Why a process could not be started.
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

impl Launcher {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            running: Arc::default(),
        }
    }

    /// The running processes of a pod. The ids of exited ones may be reused.
    pub(super) fn running(&self, pod: &str) -> Vec<Pid> {
        let mut running = self.lock();
        running.retain(|id, _| is_running(*id));
        let its = running.iter().filter(|(_, it)| it.pod == pod);
        its.map(|(id, _)| *id).collect()
    }

    /// Ends all processes, and waits until they have exited.
    pub(super) fn end_all(&self, limit: Duration) {
        let started = std::time::Instant::now();
        while started.elapsed() < limit {
            let mut running = self.lock();
            running.retain(|id, _| is_running(*id));
            if running.is_empty() {
                return;
            }
            for (id, it) in running.iter() {
                request_end(*id, it.end);
            }
            drop(running);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pid, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, command: &mut Command, launch: &Launch<'_>) -> io::Result<ProcessHandle> {
        // Locked meanwhile, so that readers see this process too.
        let mut running = self.lock();
        running.retain(|id, _| is_running(*id));
        let child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw);
        let end = match launch.task {
            Task::Command(_) => super::init::END_SIGNAL,
            Task::Sample => Signal::KILL,
        };
        if let Some(id) = id {
            let pod = launch.pod.to_owned();
            running.insert(id, Running { pod, end });
        }
        Ok(ProcessHandle {
            child,
            id,
            end,
            ended: watch::Sender::new(false),
        })
    }

    /// Starts a process. Must be called within a runtime.
    pub(super) fn start(&self, launch: &Launch<'_>) -> Result<Process, LaunchError> {
        let Program { file, arguments } = &self.program;
        let mut command = Command::new(file);
        command.args(arguments);
        match launch.task {
            Task::Command(argv) => {
                launch.find(argv)?;
                command
                    .arg(super::process_entry::INIT)
                    .arg(file)
                    .args(arguments);
                command.arg(match launch.input {
                    Input::Terminal => super::process_entry::TERMINAL,
                    Input::None | Input::Pipe => super::process_entry::SESSION,
                });
                command.args(argv)
            }
            Task::Sample => command.arg(super::process_entry::SAMPLE),
        };
        let environment = launch.environment.iter();
        command
            .env_clear()
            .env("PATH", PATH)
            .envs(environment.map(|(name, value)| (name, value)))
            .env(super::process_start::PARENT, std::process::id().to_string())
            .current_dir(launch.directory)
            // Ctrl-C at the terminal of the playground must not reach it.
            .process_group(0);
        if launch.input == Input::Terminal {
            let Terminal {
                output,
                input,
                window,
                process_side,
            } = Terminal::open()?;
            command
                .stdin(process_side.try_clone()?)
                .stdout(process_side.try_clone()?)
                .stderr(process_side);
            let handle = self.spawn(&mut command, launch)?;
            // The process has its own descriptors; the terminal is closed when all are.
            drop(command);
            return Ok(Process {
                stdin: Some(Box::pin(input)),
                stdout: Some(handle.output_reader(output)),
                stderr: None,
                window: Some(window),
                handle,
            });
        }
        command
            .stdin(match launch.input {
                Input::Pipe => Stdio::piped(),
                Input::None | Input::Terminal => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut handle = self.spawn(&mut command, launch)?;
        let (stdout, stderr) = (handle.child.stdout.take(), handle.child.stderr.take());
        Ok(Process {
            stdin: handle
                .child
                .stdin
                .take()
                .map(|it| Box::pin(it) as InputWriter),
            stdout: stdout.map(|it| handle.output_reader(it)),
            stderr: stderr.map(|it| handle.output_reader(it)),
            window: None,
            handle,
        })
    }
}

/// Whether a child process still runs. It is not reaped.
fn is_running(id: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(id), look), Ok(None))
}

/// Sends a signal, and continues a stopped process.
fn request_end(id: Pid, signal: Signal) {
    let _ = kill_process(id, signal);
    let _ = kill_process(id, Signal::CONT);
}

impl Launch<'_> {
    fn find(&self, argv: &[String]) -> Result<(), LaunchError> {
        let first = argv.first().ok_or(LaunchError::NoCommand)?;
        let path = self.environment.iter().rfind(|(name, _)| name == "PATH");
        let path = path.map_or(PATH, |(_, value)| value);
        find(first, path, self.directory)
    }
}

/// Checks whether the program exists, before a process is started.
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

impl OutputReader {
    /// Reads some bytes; `false` at the end.
    pub(super) async fn read(&mut self, into: &mut BytesMut) -> bool {
        if !*self.ended.borrow() {
            tokio::select! {
                biased;
                read = self.bytes.read_buf(into) => return matches!(read, Ok(1..)),
                // A dropped sender is the end too.
                _ = self.ended.wait_for(|ended| *ended) => {}
            }
        }
        if self.rest == 0 {
            return false;
        }
        let started = Instant::now();
        let read = timeout(self.max_wait, self.bytes.read_buf(into)).await;
        self.max_wait = self.max_wait.saturating_sub(started.elapsed());
        let Ok(Ok(read @ 1..)) = read else {
            return false;
        };
        self.rest = self.rest.saturating_sub(read);
        true
    }
}

/// Waits for a process to exit while its streams are forwarded, and then until its remaining
/// output is read, however slow the reader is.
pub(super) async fn wait_and_drain(
    end: impl Future<Output = ExitInfo>,
    outputs: impl Future<Output = ()>,
    inputs: impl Future<Output = ()>,
) -> ExitInfo {
    let (mut end, mut outputs, mut inputs) = (pin!(end), pin!(outputs), pin!(inputs));
    let (mut outputs_ended, mut inputs_ended) = (false, false);
    let ended = loop {
        tokio::select! {
            ended = &mut end => break ended,
            () = &mut outputs, if !outputs_ended => outputs_ended = true,
            () = &mut inputs, if !inputs_ended => inputs_ended = true,
        }
    };
    while !outputs_ended {
        // Writers to the process must not block any more.
        tokio::select! {
            () = &mut outputs => outputs_ended = true,
            () = &mut inputs, if !inputs_ended => inputs_ended = true,
        }
    }
    ended
}

/// A process and its descendants. Dropping this kills them.
#[derive(Debug)]
pub(super) struct ProcessHandle {
    child: Child,
    /// `Some` while it runs.
    id: Option<Pid>,
    /// The signal that ends the process at once.
    end: Signal,
    ended: watch::Sender<bool>,
}

/// The result of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExitInfo {
    /// As shells report it: 128 + signal.
    pub(super) code: u8,
}

impl ProcessHandle {
    fn output_reader(&self, bytes: impl AsyncRead + Send + 'static) -> OutputReader {
        OutputReader {
            bytes: Box::pin(bytes),
            ended: self.ended.subscribe(),
            max_wait: OUTPUT_DRAIN_TIMEOUT,
            rest: MAX_REMAINING_OUTPUT_BYTES,
        }
    }

    /// Becomes true when the process has exited.
    pub(super) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Waits until the process exits. Its background processes end with it: a container of the
    /// playground is only its main process.
    pub(super) async fn wait(&mut self) -> ExitInfo {
        let status = self.child.wait().await;
        self.id = None;
        self.ended.send_replace(true);
        // Waiting for a child does not fail; if it does, the child does not exist any more.
        status.map_or(ExitInfo { code: 255 }, ExitInfo::of)
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the process, and waits until it has exited.
    pub(super) async fn kill(&mut self) -> ExitInfo {
        self.request_end();
        if let Ok(ended) = timeout(KILL_TIMEOUT, self.wait()).await {
            return ended;
        }
        // Init was stopped and cannot kill its descendants.
        self.signal(Signal::KILL);
        self.wait().await
    }

    fn request_end(&self) {
        if let Some(id) = self.id {
            request_end(id, self.end);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            let _ = kill_process(id, signal);
        }
    }
}

impl Drop for ProcessHandle {
    fn drop(&mut self) {
        // tokio reaps it.
        self.request_end();
    }
}

impl ExitInfo {
    fn of(status: ExitStatus) -> Self {
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Self {
            code: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_errors_have_the_messages_of_runtimes() {
        let scratch = std::env::temp_dir();
        let launch_result = |word: &str| {
            let found = find(word, PATH, &scratch);
            found.map_err(|error| error.to_string())
        };
        assert_eq!(launch_result("sh"), Ok(()));
        assert_eq!(launch_result("/bin/sh"), Ok(()));
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
            assert_eq!(launch_result(word), Err(message.to_owned()));
        }
    }
}

//! One run of a plugin: from its start to its output and, if it serves as a proxy, to its end.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use skewbridge_k8s_api::exec_credential::{EXEC_INFO, ExecCredential, ParseError};
use skewbridge_k8s_api::secret::SecretString;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::deadline::Deadline;
use super::metrics::CallStatus;
use super::stderr_capture::StderrCapture;
use super::terminal_guard::TerminalGuard;
use crate::Secret;
use crate::kubeconfig::Exec;

/// How long a plugin may take: some wait for the user to log in with a browser.
pub const PLUGIN_TIMEOUT: Duration = Duration::from_mins(5);

/// More than any credential takes; a plugin that prints more is broken.
const MAX_OUTPUT_BYTES: usize = 1024 * 1024;

/// Enough for most credentials.
const OUTPUT_CAPACITY_BYTES: usize = 64 * 1024;

/// How much is read from a pipe at once.
const READ_CHUNK_BYTES: usize = 8 * 1024;

/// After this delay a plugin's stderr is shown as it is printed: the plugin may be prompting the
/// user.
const STDERR_DISPLAY_DELAY: Duration = Duration::from_secs(2);

/// How long to read a plugin's output after it has exited, while a child process keeps the pipe
/// open; and how long a plugin that printed no credential has to exit with an error code.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// How often the pipes and the process are polled after that, for output that has already been
/// written: on a busy machine the timer of the client may fire first. Two full pipes are 16 chunks.
const FINAL_POLLS: usize = 24;

/// A plugin that returned its predecessor's URL and still runs after this time has replaced it.
/// Until then it may be about to exit because it found the predecessor running.
const TAKEOVER_DELAY: Duration = Duration::from_mins(1);

/// A plugin and its input.
pub(super) struct Call<'a> {
    pub(super) plugin: &'a Exec,
    pub(super) exec_info: &'a SecretString,
    pub(super) interactive: bool,
    pub(super) deadline: &'a Deadline,
}

/// The result of a call.
pub(super) struct CallOutput {
    pub(super) credential: ExecCredential,
    /// The process of a plugin that returned a proxy: it may be the proxy itself.
    pub(super) running: Option<RunningPlugin>,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) struct CallFailure {
    /// The cause, for people.
    pub(super) cause: String,
    /// The exit code, for the metric.
    pub(super) code: i32,
    /// The status, for the metric.
    pub(super) status: CallStatus,
}

impl CallFailure {
    /// The plugin's output is unusable.
    pub(super) fn bad_output(cause: String) -> Self {
        Self {
            cause,
            code: 1,
            status: CallStatus::ClientInternalError,
        }
    }

    /// Whether the plugin could not be run successfully: then the kubeconfig's install hint may
    /// help.
    pub(super) fn is_plugin_failure(&self) -> bool {
        self.status != CallStatus::ClientInternalError
    }
}

impl Call<'_> {
    /// Starts the plugin and waits for its output.
    pub(super) async fn run(&self) -> Result<CallOutput, CallFailure> {
        // Dropped last: a killed plugin cannot restore the terminal itself.
        let _terminal = self.interactive.then(TerminalGuard::save);
        let mut process = self.start()?;
        let result = tokio::select! {
            biased;
            result = process.read_credential() => Some(result),
            () = self.deadline.expired() => None,
        };
        match result {
            Some(Ok(credential)) => {
                let running = process.finish(&credential);
                Ok(CallOutput {
                    credential,
                    running,
                })
            }
            Some(Err(mut failure)) => {
                failure.cause.push_str(&process.stderr_capture.for_error());
                Err(failure)
            }
            None => {
                let what = match process.credential {
                    Some(_) => "printed a credential, but did not end",
                    None => "did not give a credential",
                };
                Err(CallFailure::bad_output(format!(
                    "{what} within {} s{}",
                    self.deadline.total_seconds(),
                    process.stderr_capture.for_error()
                )))
            }
        }
    }

    fn start(&self) -> Result<PluginProcess, CallFailure> {
        let mut command = Command::new(&self.plugin.command);
        command
            .args(self.plugin.args.iter().map(lossy_text))
            .env(EXEC_INFO, self.exec_info.expose())
            .stdout(Stdio::piped());
        if self.interactive {
            // The plugin uses the user's terminal, as if started by hand.
            command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
        } else {
            // The plugin gets a process group of its own: Ctrl-C for a foreground command must
            // not end its proxy.
            command.stdin(Stdio::null()).stderr(Stdio::piped());
            command.process_group(0);
        }
        for (name, value) in &self.plugin.env {
            command.env(name, lossy_text(value));
        }
        let mut child = command.spawn().map_err(|error| CallFailure {
            cause: match error.kind() {
                std::io::ErrorKind::NotFound => "executable not found".to_owned(),
                _ => error.to_string(),
            },
            code: 1,
            status: CallStatus::PluginNotFoundError,
        })?;
        Ok(PluginProcess {
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            guard: ProcessGuard {
                child,
                kill_target: if self.interactive {
                    KillTarget::Process
                } else {
                    KillTarget::Group
                },
                signal: Signal::KILL,
            },
            // Large enough for most outputs: a buffer that grows leaves copies of secrets
            // behind.
            stdout_bytes: Zeroizing::new(Vec::with_capacity(OUTPUT_CAPACITY_BYTES)),
            credential: None,
            stderr_capture: StderrCapture::default(),
        })
    }
}

/// Kills the process on drop.
struct ProcessGuard {
    child: Child,
    kill_target: KillTarget,
    signal: Signal,
}

#[derive(Clone, Copy)]
enum KillTarget {
    /// The process alone.
    Process,
    /// The process and its children.
    Group,
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        // Without an ID the process has been reaped, and its ID may have been reused.
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = match self.kill_target {
                KillTarget::Process => kill_process(pid, self.signal),
                KillTarget::Group => kill_process_group(pid, self.signal),
            };
        }
    }
}

struct PluginProcess {
    guard: ProcessGuard,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// May contain a private key.
    stdout_bytes: Zeroizing<Vec<u8>>,
    /// The first document, once it is complete.
    credential: Option<ExecCredential>,
    stderr_capture: StderrCapture,
}

impl PluginProcess {
    /// Reads until the plugin returns a proxy or exits.
    async fn read_credential(&mut self) -> Result<ExecCredential, CallFailure> {
        let display_timer = tokio::time::sleep(STDERR_DISPLAY_DELAY);
        tokio::pin!(display_timer);
        let mut stderr_chunk = Vec::new();
        let mut parse_error: Option<ParseError> = None;
        let mut exit_status: Option<ExitStatus> = None;
        let mut give_up_at: Option<Instant> = None;
        let mut polls_left: Option<usize> = None;
        while polls_left != Some(0)
            && (exit_status.is_none() || self.stdout.is_some() || self.stderr.is_some())
        {
            polls_left = polls_left.map(|left| left - 1);
            tokio::select! {
                biased;
                // The deadline comes first, for a plugin that never stops printing. Then
                // pending output is read.
                () = sleep_until(give_up_at), if polls_left.is_none() => polls_left = Some(FINAL_POLLS),
                read = read(&mut self.stdout, &mut self.stdout_bytes), if self.stdout.is_some() => {
                    if read == 0 {
                        self.stdout = None;
                    }
                    if self.stdout_bytes.len() > MAX_OUTPUT_BYTES {
                        let cause = "prints more than a credential".to_owned();
                        return Err(CallFailure::bad_output(cause));
                    }
                    let from = self.stdout_bytes.len() - read;
                    let has_closing_brace = self.stdout_bytes[from..].contains(&b'}');
                    if parse_error.is_some() {
                        self.stdout_bytes.clear();
                    } else if self.credential.is_none() {
                        match ExecCredential::parse_first(&self.stdout_bytes) {
                            Ok(Some((credential, _))) if has_closing_brace => {
                                if offers_proxy(&credential) {
                                    return Ok(credential);
                                }
                                self.credential = Some(credential);
                            }
                            Ok(_) => {}
                            Err(error) => {
                                parse_error = Some(error);
                                self.stdout_bytes.clear();
                                give_up_at.get_or_insert(Instant::now() + EXIT_GRACE);
                            }
                        }
                    }
                }
                read = read(&mut self.stderr, &mut stderr_chunk), if self.stderr.is_some() => {
                    if read == 0 {
                        self.stderr = None;
                    }
                    self.stderr_capture.push(&stderr_chunk);
                    stderr_chunk.clear();
                }
                status = self.guard.child.wait(), if exit_status.is_none() => {
                    exit_status = Some(status.map_err(|error| CallFailure::bad_output(error.to_string()))?);
                    give_up_at.get_or_insert(Instant::now() + EXIT_GRACE);
                }
                () = &mut display_timer, if !display_timer.is_elapsed() => self.stderr_capture.show_immediately(),
                () = std::future::ready(()), if polls_left.is_some() => break,
            }
        }
        match (exit_status, parse_error) {
            (Some(status), _) if !status.success() => Err(CallFailure {
                cause: format!("failed with {status}"),
                code: status.code().unwrap_or(-1),
                status: CallStatus::PluginExecutionError,
            }),
            (_, Some(error)) => Err(parse_failure(&error)),
            (_, None) => {
                ExecCredential::parse(&self.stdout_bytes).map_err(|error| parse_failure(&error))
            }
        }
    }

    /// Keeps the process running if it is a proxy or has started one.
    fn finish(mut self, credential: &ExecCredential) -> Option<RunningPlugin> {
        self.stderr_capture.suppress();
        offers_proxy(credential).then(|| RunningPlugin::new(self))
    }
}

fn parse_failure(error: &ParseError) -> CallFailure {
    CallFailure::bad_output(match error {
        ParseError::Empty => "ended without printing an ExecCredential".to_owned(),
        error => format!("does not print an ExecCredential: {error}"),
    })
}

fn offers_proxy(credential: &ExecCredential) -> bool {
    let status = credential.status.as_ref();
    status.is_some_and(|status| status.proxy_config.is_some())
}

/// The number of bytes read. No more follow after 0 or an error.
async fn read(from: &mut Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> usize {
    match from {
        Some(pipe) => {
            into.reserve(READ_CHUNK_BYTES);
            pipe.read_buf(into).await.unwrap_or(0)
        }
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A plugin that returned a proxy. Dropping it sends SIGTERM unless it has exited.
#[derive(Debug)]
pub(super) struct RunningPlugin {
    task: JoinHandle<()>,
    stderr_capture: Arc<Mutex<StderrCapture>>,
    predecessor: Predecessor,
}

/// The plugin process that returned the same proxy before, and may be the proxy of both.
type Predecessor = Arc<Mutex<Option<Arc<RunningPlugin>>>>;

impl RunningPlugin {
    fn new(process: PluginProcess) -> Self {
        let PluginProcess {
            mut guard,
            mut stdout,
            mut stderr,
            stderr_capture,
            ..
        } = process;
        let stderr_capture = Arc::new(Mutex::new(stderr_capture));
        let stderr_sink = stderr_capture.clone();
        let predecessor = Predecessor::default();
        let replaced = predecessor.clone();
        // SIGTERM lets the proxy remove its sockets.
        guard.signal = Signal::TERM;
        let task = tokio::spawn(async move {
            let mut stderr_chunk = Vec::new();
            let mut ignored = Vec::new();
            let mut has_ended = false;
            let takeover = tokio::time::sleep(TAKEOVER_DELAY);
            tokio::pin!(takeover);
            while !has_ended || stdout.is_some() || stderr.is_some() {
                tokio::select! {
                    // An unread pipe would block a plugin that logs.
                    read = read(&mut stdout, &mut ignored), if stdout.is_some() => {
                        if read == 0 {
                            stdout = None;
                        }
                        ignored.clear();
                    }
                    read = read(&mut stderr, &mut stderr_chunk), if stderr.is_some() => {
                        if read == 0 {
                            stderr = None;
                        }
                        stderr_sink.lock().unwrap_or_else(PoisonError::into_inner).push(&stderr_chunk);
                        stderr_chunk.clear();
                    }
                    _ = guard.child.wait(), if !has_ended => has_ended = true,
                    () = &mut takeover, if !takeover.is_elapsed() => {
                        let _ = replaced.lock().unwrap_or_else(PoisonError::into_inner).take();
                    }
                }
            }
        });
        Self {
            task,
            stderr_capture,
            predecessor,
        }
    }

    /// Keeps the previous process, which returned the same proxy, unless it has exited.
    pub(super) fn set_predecessor(&self, previous: Arc<Self>) {
        // Skips processes that have exited, so that the chain stays short.
        previous.replace_predecessor(Self::first_running(previous.predecessor()));
        self.replace_predecessor(Self::first_running(Some(previous)));
    }

    /// The first process of the chain that has not exited.
    fn first_running(mut predecessor: Option<Arc<Self>>) -> Option<Arc<Self>> {
        while let Some(exited) = predecessor.take_if(|it| it.task.is_finished()) {
            predecessor = exited.predecessor();
        }
        predecessor
    }

    fn replace_predecessor(&self, predecessor: Option<Arc<Self>>) {
        *self
            .predecessor
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = predecessor;
    }

    fn predecessor(&self) -> Option<Arc<Self>> {
        let predecessor = self.predecessor.lock();
        predecessor.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The process's stderr since it became a proxy, as a suffix of an error message.
    pub(super) fn stderr_suffix(&self) -> String {
        let stderr_capture = self
            .stderr_capture
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let suffix = stderr_capture.for_error();
        drop(stderr_capture);
        match self.predecessor() {
            Some(predecessor) if suffix.is_empty() => predecessor.stderr_suffix(),
            _ => suffix,
        }
    }
}

impl Drop for RunningPlugin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A secret that was text when it was parsed, as text.
pub(super) fn lossy_text(secret: &Secret) -> String {
    String::from_utf8_lossy(secret.expose()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A running plugin process and its ID.
    fn running() -> (Arc<RunningPlugin>, u32) {
        let child = Command::new("sleep")
            .arg("300")
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let number = child.id().unwrap();
        let process = PluginProcess {
            guard: ProcessGuard {
                child,
                kill_target: KillTarget::Group,
                signal: Signal::KILL,
            },
            stdout: None,
            stderr: None,
            stdout_bytes: Zeroizing::default(),
            credential: None,
            stderr_capture: StderrCapture::default(),
        };
        (Arc::new(RunningPlugin::new(process)), number)
    }

    fn is_running(process: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    }

    /// Uses the system clock: tokio's clock is paused while the processes exit.
    async fn wait_for_exit(process: u32) {
        let deadline = std::time::Instant::now() + skewbridge_testkit::TEST_TIMEOUT;
        while is_running(process) {
            assert!(std::time::Instant::now() < deadline, "{process} still runs");
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_keeps_running_with_the_same_url_replaces_its_predecessor() {
        let (previous, first) = running();
        let (now, second) = running();
        now.set_predecessor(previous);
        tokio::time::sleep(TAKEOVER_DELAY / 2).await;
        assert!(is_running(first), "the later one may be using it");
        tokio::time::sleep(TAKEOVER_DELAY).await;
        wait_for_exit(first).await;
        assert!(is_running(second));
        drop(now);
        wait_for_exit(second).await;
    }
}

//! A call of a plugin: from its start to what it prints, and on for as long as it is a
//! proxy.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use skewbridge_api::exec_credential::{EXEC_INFO, ExecCredential, ParseError, Sensitive};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::calls::CallStatus;
use super::deadline::Deadline;
use super::lent_terminal::LentTerminal;
use super::said::Said;
use crate::kubeconfig::Exec;
use crate::secret::Secret;

/// How long a plugin may take: some have the user log in with a browser.
pub const PLUGIN_PATIENCE: Duration = Duration::from_mins(5);

/// More than any credential; a plugin that prints more is not one.
const MAX_OUTPUT: usize = 1024 * 1024;

/// More than most credentials.
const ROOM: usize = 64 * 1024;

/// What is asked of a pipe at once.
const CHUNK: usize = 8 * 1024;

/// After this what a plugin says is shown at once: it may be asking for something.
const SHOW_AFTER: Duration = Duration::from_secs(2);

/// How long what a plugin has printed may take to arrive when it has ended, while a
/// process that it left behind keeps the pipe open; and how long a plugin that prints
/// no credential has to tell by its exit code what is wrong.
const GRACE: Duration = Duration::from_secs(1);

/// How often pipes and process are looked at when that time is over, for what is there
/// already: on a busy machine we may be later than they. Two full pipes are 16 chunks.
const LAST_LOOKS: usize = 24;

/// A plugin that still runs so long after it has answered with the URL of the one before
/// has taken its place. Until then it may be about to end, for it has found that one.
const SETTLED: Duration = Duration::from_mins(1);

/// A plugin and what it is asked.
pub(super) struct Call<'a> {
    pub(super) plugin: &'a Exec,
    pub(super) question: &'a Sensitive,
    pub(super) interactive: bool,
    pub(super) deadline: &'a Deadline,
}

/// What came of it.
pub(super) struct Answered {
    pub(super) credential: ExecCredential,
    /// Of a plugin that answered with a proxy, which it may be itself.
    pub(super) staying: Option<Staying>,
}

/// Why nothing came of it.
#[derive(Debug)]
pub(super) struct Failure {
    /// In words.
    pub(super) cause: String,
    /// For the metric.
    pub(super) code: i32,
    /// For the metric.
    pub(super) status: CallStatus,
}

impl Failure {
    /// Whatever is wrong with what a plugin gave.
    pub(super) fn of_answer(cause: String) -> Self {
        Self {
            cause,
            code: 1,
            status: CallStatus::ClientInternalError,
        }
    }

    /// Whether the plugin itself could not be run to its end: then the kubeconfig's
    /// hint may help.
    pub(super) fn is_of_plugin(&self) -> bool {
        self.status != CallStatus::ClientInternalError
    }
}

impl Call<'_> {
    /// Starts the plugin and waits for its answer.
    pub(super) async fn make(&self) -> Result<Answered, Failure> {
        // Dropped last: a plugin that is killed cannot do it itself.
        let _terminal = self.interactive.then(LentTerminal::lend);
        let mut dialogue = self.start()?;
        let listened = tokio::select! {
            biased;
            listened = dialogue.listen() => Some(listened),
            () = self.deadline.passed() => None,
        };
        match listened {
            Some(Ok(credential)) => {
                let staying = dialogue.end(&credential);
                Ok(Answered {
                    credential,
                    staying,
                })
            }
            Some(Err(mut failure)) => {
                failure.cause.push_str(&dialogue.said.for_error());
                Err(failure)
            }
            None => {
                let what = match dialogue.credential {
                    Some(_) => "printed a credential, but did not end",
                    None => "did not give a credential",
                };
                Err(Failure::of_answer(format!(
                    "{what} within {} s{}",
                    self.deadline.seconds(),
                    dialogue.said.for_error()
                )))
            }
        }
    }

    fn start(&self) -> Result<Dialogue, Failure> {
        let mut command = Command::new(&self.plugin.command);
        command
            .args(self.plugin.args.iter().map(Secret::to_text))
            .env(EXEC_INFO, self.question.expose())
            .stdout(Stdio::piped());
        if self.interactive {
            // The user's terminal, as if it had been started by hand.
            command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
        } else {
            // In a group of its own: the keys that interrupt a command in the
            // foreground do not take its proxy away.
            command.stdin(Stdio::null()).stderr(Stdio::piped());
            command.process_group(0);
        }
        for (name, value) in &self.plugin.env {
            command.env(name, value.to_text());
        }
        let mut child = command.spawn().map_err(|error| Failure {
            cause: match error.kind() {
                std::io::ErrorKind::NotFound => "executable not found".to_owned(),
                _ => error.to_string(),
            },
            code: 1,
            status: CallStatus::PluginNotFoundError,
        })?;
        Ok(Dialogue {
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            running: Running {
                child,
                whom: if self.interactive {
                    Whom::Process
                } else {
                    Whom::Group
                },
                by: Signal::KILL,
            },
            // Room for most of what is printed: a buffer that grows leaves copies behind.
            printed: Zeroizing::new(Vec::with_capacity(ROOM)),
            credential: None,
            said: Said::default(),
        })
    }
}

/// A process that is ended when nobody needs it any more.
struct Running {
    child: Child,
    whom: Whom,
    by: Signal,
}

#[derive(Clone, Copy)]
enum Whom {
    /// It alone.
    Process,
    /// What it has started, too.
    Group,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Without a number it has ended and been waited for, and the number may be
        // another's.
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = match self.whom {
                Whom::Process => kill_process(pid, self.by),
                Whom::Group => kill_process_group(pid, self.by),
            };
        }
    }
}

struct Dialogue {
    running: Running,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// There may be a key in it.
    printed: Zeroizing<Vec<u8>>,
    /// The first document, when it is whole.
    credential: Option<ExecCredential>,
    said: Said,
}

impl Dialogue {
    /// Until there is a proxy, or the process has ended.
    async fn listen(&mut self) -> Result<ExecCredential, Failure> {
        let show = tokio::time::sleep(SHOW_AFTER);
        tokio::pin!(show);
        let mut heard = Vec::new();
        let mut wrong: Option<ParseError> = None;
        let mut ended: Option<ExitStatus> = None;
        let mut give_up: Option<Instant> = None;
        let mut looks: Option<usize> = None;
        while looks != Some(0)
            && (ended.is_none() || self.stdout.is_some() || self.stderr.is_some())
        {
            looks = looks.map(|left| left - 1);
            tokio::select! {
                biased;
                // First, for a plugin that never stops printing; then comes what is
                // there already.
                () = until(give_up), if looks.is_none() => looks = Some(LAST_LOOKS),
                read = read(&mut self.stdout, &mut self.printed), if self.stdout.is_some() => {
                    if read == 0 {
                        self.stdout = None;
                    }
                    if self.printed.len() > MAX_OUTPUT {
                        let cause = "prints more than a credential".to_owned();
                        return Err(Failure::of_answer(cause));
                    }
                    let from = self.printed.len() - read;
                    let complete = self.printed[from..].contains(&b'}');
                    if wrong.is_some() {
                        self.printed.clear();
                    } else if self.credential.is_none() {
                        match ExecCredential::parse_first(&self.printed) {
                            Ok(Some((credential, _))) if complete => {
                                if offers_proxy(&credential) {
                                    return Ok(credential);
                                }
                                self.credential = Some(credential);
                            }
                            Ok(_) => {}
                            Err(error) => {
                                wrong = Some(error);
                                self.printed.clear();
                                give_up.get_or_insert(Instant::now() + GRACE);
                            }
                        }
                    }
                }
                read = read(&mut self.stderr, &mut heard), if self.stderr.is_some() => {
                    if read == 0 {
                        self.stderr = None;
                    }
                    self.said.hear(&heard);
                    heard.clear();
                }
                status = self.running.child.wait(), if ended.is_none() => {
                    ended = Some(status.map_err(|error| Failure::of_answer(error.to_string()))?);
                    give_up.get_or_insert(Instant::now() + GRACE);
                }
                () = &mut show, if !show.is_elapsed() => self.said.show_at_once(),
                () = std::future::ready(()), if looks.is_some() => break,
            }
        }
        match (ended, wrong) {
            (Some(status), _) if !status.success() => Err(Failure {
                cause: format!("failed with {status}"),
                code: status.code().unwrap_or(-1),
                status: CallStatus::PluginExecutionError,
            }),
            (_, Some(error)) => Err(no_credential(&error)),
            (_, None) => {
                ExecCredential::parse(&self.printed).map_err(|error| no_credential(&error))
            }
        }
    }

    /// Lets the process go on if it is a proxy, or has started one.
    fn end(mut self, credential: &ExecCredential) -> Option<Staying> {
        self.said.fall_silent();
        offers_proxy(credential).then(|| Staying::new(self))
    }
}

fn no_credential(error: &ParseError) -> Failure {
    Failure::of_answer(match error {
        ParseError::Empty => "ended without printing an ExecCredential".to_owned(),
        error => format!("does not print an ExecCredential: {error}"),
    })
}

fn offers_proxy(credential: &ExecCredential) -> bool {
    let status = credential.status.as_ref();
    status.is_some_and(|status| status.proxy_config.is_some())
}

/// How much came; nothing more will after 0, or after an error.
async fn read(from: &mut Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> usize {
    match from {
        Some(pipe) => {
            into.reserve(CHUNK);
            pipe.read_buf(into).await.unwrap_or(0)
        }
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A plugin that has answered with a proxy. It is asked to end when this is dropped, if
/// it has not ended by itself.
#[derive(Debug)]
pub(super) struct Staying {
    task: JoinHandle<()>,
    said: Arc<Mutex<Said>>,
    found: Found,
}

/// The one before that answered with the same, and may be the proxy of both.
type Found = Arc<Mutex<Option<Arc<Staying>>>>;

impl Staying {
    fn new(dialogue: Dialogue) -> Self {
        let Dialogue {
            mut running,
            mut stdout,
            mut stderr,
            said,
            ..
        } = dialogue;
        let said = Arc::new(Mutex::new(said));
        let ear = said.clone();
        let found = Found::default();
        let replaced = found.clone();
        // It has sockets to remove.
        running.by = Signal::TERM;
        let task = tokio::spawn(async move {
            let mut heard = Vec::new();
            let mut ignored = Vec::new();
            let mut has_ended = false;
            let settled = tokio::time::sleep(SETTLED);
            tokio::pin!(settled);
            while !has_ended || stdout.is_some() || stderr.is_some() {
                tokio::select! {
                    // A pipe that nobody reads would hold up a plugin that logs.
                    read = read(&mut stdout, &mut ignored), if stdout.is_some() => {
                        if read == 0 {
                            stdout = None;
                        }
                        ignored.clear();
                    }
                    read = read(&mut stderr, &mut heard), if stderr.is_some() => {
                        if read == 0 {
                            stderr = None;
                        }
                        ear.lock().unwrap_or_else(PoisonError::into_inner).hear(&heard);
                        heard.clear();
                    }
                    _ = running.child.wait(), if !has_ended => has_ended = true,
                    () = &mut settled, if !settled.is_elapsed() => {
                        let _ = replaced.lock().unwrap_or_else(PoisonError::into_inner).take();
                    }
                }
            }
        });
        Self { task, said, found }
    }

    /// The one before has answered with the same: it stays, too, unless it is of no use.
    pub(super) fn may_have_found(&self, before: Arc<Self>) {
        // No chain of those that have only told of another.
        before.keep(Self::alive(before.found()));
        self.keep(Self::alive(Some(before)));
    }

    /// The first, from this one backwards, that has not ended.
    fn alive(mut found: Option<Arc<Self>>) -> Option<Arc<Self>> {
        while let Some(ended) = found.take_if(|it| it.task.is_finished()) {
            found = ended.found();
        }
        found
    }

    fn keep(&self, found: Option<Arc<Self>>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    fn found(&self) -> Option<Arc<Self>> {
        let found = self.found.lock();
        found.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it has said since it is a proxy, for an error.
    pub(super) fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let words = said.for_error();
        drop(said);
        match self.found() {
            Some(found) if words.is_empty() => found.said(),
            _ => words,
        }
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has answered and goes on, with its number.
    fn staying() -> (Arc<Staying>, u32) {
        let child = Command::new("sleep")
            .arg("300")
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let number = child.id().unwrap();
        let dialogue = Dialogue {
            running: Running {
                child,
                whom: Whom::Group,
                by: Signal::KILL,
            },
            stdout: None,
            stderr: None,
            printed: Zeroizing::default(),
            credential: None,
            said: Said::default(),
        };
        (Arc::new(Staying::new(dialogue)), number)
    }

    fn is_running(process: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    }

    /// The clock of the runtime stands still while processes end in their own time.
    async fn ends(process: u32) {
        let deadline = std::time::Instant::now() + skewbridge_testkit::PATIENCE;
        while is_running(process) {
            assert!(std::time::Instant::now() < deadline, "{process} goes on");
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_stays_for_a_while_with_the_same_url_has_taken_the_place_of_the_one_before() {
        let (before, first) = staying();
        let (now, second) = staying();
        now.may_have_found(before);
        tokio::time::sleep(SETTLED / 2).await;
        assert!(is_running(first), "the later one may have found it");
        tokio::time::sleep(SETTLED).await;
        ends(first).await;
        assert!(is_running(second));
        drop(now);
        ends(second).await;
    }
}

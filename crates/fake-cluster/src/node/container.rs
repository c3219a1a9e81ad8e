//! A running container: its process, restarted by the restart policy, its log, and attached
//! clients.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::{Output, TerminalSize};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::command_pipes::READ_BUFFER_BYTES;
use super::container_log::{ContainerLog, LineSplitter};
use super::pod_plan::{ContainerPlan, PodPlacement, RestartPolicy};
use super::process::{
    ExitInfo, Input, InputWriter, Launch, LaunchError, Launcher, OutputReader, Process,
    ProcessHandle, Task, wait_and_drain,
};
use crate::time::Time;

/// Output chunks that are buffered for a slow attached client; beyond it, some are dropped.
const MAX_ATTACH_BACKLOG: usize = 256;

/// Chunks of input that wait for the process.
const QUEUE_LENGTH: usize = 4;

/// The first restart delay; it doubles each time.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// The longest restart delay: shorter than a kubelet's, for interactive use.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A process that has run for this long resets the delay.
const BACKOFF_RESET_AFTER: Duration = Duration::from_mins(1);

/// The exit code of container runtimes for a process that cannot be started.
const EXIT_START_ERROR: u8 = 128;

/// A container of a running pod.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) plan: ContainerPlan,
    state: Mutex<State>,
}

/// Its state.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) last: Option<Termination>,
    pub(super) restarts: u32,
    container_log: Option<ContainerLog>,
    previous: Option<ContainerLog>,
}

#[derive(Debug, Clone)]
pub(super) enum Phase {
    Waiting {
        reason: &'static str,
        message: String,
    },
    Running {
        since: Time,
        run: Run,
    },
    Terminated(Termination),
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Termination {
    pub(super) code: u8,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) started: Time,
    pub(super) finished: Time,
}

/// A running process, for attached clients.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The further output of the process; closed when the process has exited.
    pub(super) output: broadcast::WeakSender<(Output, Bytes)>,
    pub(super) stdin: Option<mpsc::Sender<AttachInput>>,
    pub(super) sizes: mpsc::Sender<TerminalSize>,
    ended: watch::Receiver<bool>,
}

/// Input of attached clients.
#[derive(Debug)]
pub(super) enum AttachInput {
    Data(Bytes),
    /// All attached clients have ended their input.
    End,
}

impl Run {
    /// Waits for the end of the process.
    pub(super) async fn end(mut self) {
        // A dropped sender is the end too.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}

impl Container {
    pub(super) fn new(plan: ContainerPlan) -> Self {
        Self {
            plan,
            state: Mutex::new(State {
                phase: Phase::Waiting {
                    reason: "ContainerCreating",
                    message: String::new(),
                },
                last: None,
                restarts: 0,
                container_log: None,
                previous: None,
            }),
        }
    }

    /// Its current state.
    pub(super) fn state(&self) -> State {
        self.lock().clone()
    }

    /// Its log: of the current or the previous run.
    pub(super) fn container_log(&self, previous: bool) -> Option<ContainerLog> {
        let state = self.lock();
        if previous {
            state.previous.clone()
        } else {
            state.container_log.clone()
        }
    }

    /// Its process, if it runs.
    pub(super) fn run(&self) -> Option<Run> {
        match &self.lock().phase {
            Phase::Running { run, .. } => Some(run.clone()),
            Phase::Waiting { .. } | Phase::Terminated(_) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the container until it is complete or stopped; notifies of every change of state.
    pub(super) async fn keep(
        self: Arc<Self>,
        launcher: Launcher,
        placement: PodPlacement,
        policy: RestartPolicy,
        mut stop: watch::Receiver<Option<Duration>>,
        changed: impl Fn(),
    ) {
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let started = SystemTime::now();
            let termination = self
                .run_once(&launcher, &placement, &mut stop, &changed)
                .await;
            if started.elapsed().is_ok_and(|it| it > BACKOFF_RESET_AFTER) {
                backoff = INITIAL_BACKOFF;
            }
            let restarts = stop.borrow().is_none() && policy.restarts(termination.code);
            self.lock().phase = Phase::Terminated(termination.clone());
            changed();
            if !restarts {
                return;
            }
            let first = self.lock().restarts == 0;
            if !first {
                self.lock().phase = Phase::Waiting {
                    reason: "CrashLoopBackOff",
                    message: format!(
                        "back-off {backoff:?} restarting failed container={}",
                        self.plan.name
                    ),
                };
                changed();
            }
            tokio::select! {
                () = sleep(backoff) => {}
                _ = stop.wait_for(Option::is_some) => {
                    self.lock().phase = Phase::Terminated(termination);
                    changed();
                    return;
                }
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
            let mut state = self.lock();
            state.last = Some(termination);
            state.restarts += 1;
        }
    }

    /// Runs one process to its end.
    async fn run_once(
        &self,
        launcher: &Launcher,
        placement: &PodPlacement,
        stop: &mut watch::Receiver<Option<Duration>>,
        changed: &impl Fn(),
    ) -> Termination {
        let started = now();
        let container_log = ContainerLog::default();
        {
            let mut state = self.lock();
            state.previous = state.container_log.replace(container_log.clone());
        }
        let process = match self.launch(launcher, placement) {
            Ok(process) => process,
            Err(error) => {
                container_log.close();
                return Termination {
                    code: EXIT_START_ERROR,
                    reason: "StartError",
                    message: error.to_string(),
                    started,
                    finished: now(),
                };
            }
        };
        let Process {
            mut handle,
            stdin,
            stdout,
            stderr,
            window,
        } = process;
        let (output, _) = broadcast::channel(MAX_ATTACH_BACKLOG);
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
        let (resize, mut sizes) = mpsc::channel::<TerminalSize>(QUEUE_LENGTH);
        self.lock().phase = Phase::Running {
            since: started,
            run: Run {
                output: output.downgrade(),
                stdin: self.plan.stdin.then_some(sender),
                sizes: resize,
                ended: handle.ended(),
            },
        };
        changed();
        let outputs = async {
            tokio::join!(
                record_output(stdout, Output::Stdout, &output, &container_log),
                record_output(stderr, Output::Stderr, &output, &container_log),
            );
        };
        let inputs = async {
            let measure = async {
                while let Some(size) = sizes.recv().await {
                    if let Some(window) = &window {
                        window.resize(size);
                    }
                }
            };
            tokio::join!(biased; measure, forward_input(receiver, stdin, self.plan.stdin_once));
        };
        let ended = wait_and_drain(supervise(&mut handle, stop), outputs, inputs).await;
        container_log.close();
        Termination {
            code: ended.code,
            reason: if ended.code == 0 {
                "Completed"
            } else {
                "Error"
            },
            message: String::new(),
            started,
            finished: now(),
        }
    }

    fn launch(
        &self,
        launcher: &Launcher,
        placement: &PodPlacement,
    ) -> Result<Process, LaunchError> {
        let launch = Launch {
            pod: &placement.pod,
            task: match &self.plan.command {
                Some(command) => Task::Command(command),
                None => Task::Sample,
            },
            directory: &placement.directory,
            environment: &self.plan.environment,
            input: match (self.plan.tty, self.plan.stdin) {
                (true, _) => Input::Terminal,
                (false, true) => Input::Pipe,
                (false, false) => Input::None,
            },
        };
        launcher.start(&launch)
    }
}

/// Waits until a process exits by itself or after a stop request.
async fn supervise(
    handle: &mut ProcessHandle,
    stop: &mut watch::Receiver<Option<Duration>>,
) -> ExitInfo {
    let grace = tokio::select! {
        ended = handle.wait() => return ended,
        changed = stop.wait_for(Option::is_some) => match changed {
            Ok(grace) => grace.unwrap_or_default(),
            // The sender is dropped.
            Err(_) => Duration::ZERO,
        },
    };
    handle.terminate();
    let mut deadline = Instant::now() + grace;
    loop {
        tokio::select! {
            ended = handle.wait() => return ended,
            () = sleep_until(deadline) => break,
            // A later stop request can shorten the grace period, not extend it.
            Ok(()) = stop.changed() => {
                let grace = stop.borrow_and_update().unwrap_or_default();
                deadline = deadline.min(Instant::now() + grace);
            }
        }
    }
    handle.kill().await
}

/// Appends output to the log, and sends it to attached clients.
async fn record_output(
    from: Option<OutputReader>,
    which: Output,
    to: &broadcast::Sender<(Output, Bytes)>,
    container_log: &ContainerLog,
) {
    let Some(mut from) = from else { return };
    let mut cutter = LineSplitter::default();
    let mut piece = BytesMut::new();
    loop {
        piece.reserve(READ_BUFFER_BYTES);
        if !from.read(&mut piece).await {
            break;
        }
        cutter.push(&piece, container_log);
        // There may be no attached client.
        let _ = to.send((which, piece.split().freeze()));
    }
    cutter.end(container_log);
}

/// Forwards the input of attached clients.
async fn forward_input(mut from: mpsc::Receiver<AttachInput>, to: Option<InputWriter>, once: bool) {
    let mut to = to;
    while let Some(input) = from.recv().await {
        match (input, &mut to) {
            (AttachInput::Data(data), Some(inlet)) => {
                let written = async {
                    inlet.write_all(&data).await?;
                    inlet.flush().await
                };
                if written.await.is_err() {
                    to = None;
                }
            }
            (AttachInput::End, _) if once => to = None,
            (AttachInput::End | AttachInput::Data(_), _) => {}
        }
    }
    // The process keeps its input open while no client is attached.
    std::future::pending::<()>().await;
    drop(to);
}

fn now() -> Time {
    Time::from(SystemTime::now())
}

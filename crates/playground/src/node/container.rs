//! A container that runs: its process, again and again as the pod wants it, what it
//! has written, and who is attached to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::{Output, TerminalSize};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::journal::{Cutter, Journal};
use super::plan::{ContainerPlan, Place, RestartPolicy};
use super::process::{
    Ended, Inlet, Input, Launch, LaunchError, Launcher, Life, Outlet, Process, Task, accompany,
};
use super::remote::PIECE;
use crate::time::Moment;

/// Pieces that wait for somebody who is attached and does not keep up; then some are
/// missed.
const BACKLOG: usize = 256;

/// Pieces of input that wait for the process.
const QUEUE: usize = 4;

/// How long the first restart waits; it doubles each time.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// How long a restart waits at most: shorter than a kubelet's, for people who watch.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// Whoever has run for so long begins anew.
const STEADY: Duration = Duration::from_mins(1);

/// As runtimes tell it if a process cannot be started.
const START_ERROR: u8 = 128;

/// A container of a pod that runs here.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) plan: ContainerPlan,
    state: Mutex<State>,
}

/// What has become of it.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) last: Option<Termination>,
    pub(super) restarts: u32,
    journal: Option<Journal>,
    previous: Option<Journal>,
}

#[derive(Debug, Clone)]
pub(super) enum Phase {
    Waiting {
        reason: &'static str,
        message: String,
    },
    Running {
        since: Moment,
        run: Run,
    },
    Terminated(Termination),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Termination {
    pub(super) code: u8,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) started: Moment,
    pub(super) finished: Moment,
}

/// A process of it, for those who attach.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Its output from now on; over when it has ended.
    pub(super) output: broadcast::WeakSender<(Output, Bytes)>,
    pub(super) stdin: Option<mpsc::Sender<Fed>>,
    pub(super) sizes: mpsc::Sender<TerminalSize>,
    ended: watch::Receiver<bool>,
}

/// What those who are attached say.
#[derive(Debug)]
pub(super) enum Fed {
    Data(Bytes),
    /// The last of them has ended its input.
    End,
}

impl Run {
    /// Waits for the end of the process.
    pub(super) async fn end(mut self) {
        // Nobody is left who could tell: that is an end, too.
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
                journal: None,
                previous: None,
            }),
        }
    }

    /// As it is now.
    pub(super) fn state(&self) -> State {
        self.lock().clone()
    }

    /// What it has written: this time, or the time before.
    pub(super) fn journal(&self, previous: bool) -> Option<Journal> {
        let state = self.lock();
        if previous {
            state.previous.clone()
        } else {
            state.journal.clone()
        }
    }

    /// Its process, if one runs.
    pub(super) fn run(&self) -> Option<Run> {
        match &self.lock().phase {
            Phase::Running { run, .. } => Some(run.clone()),
            Phase::Waiting { .. } | Phase::Terminated(_) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs it until it is over or stopped; tells whenever something has changed.
    pub(super) async fn keep(
        self: Arc<Self>,
        launcher: Launcher,
        place: Place,
        policy: RestartPolicy,
        mut stop: watch::Receiver<Option<Duration>>,
        changed: impl Fn(),
    ) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let started = SystemTime::now();
            let termination = self.run_once(&launcher, &place, &mut stop, &changed).await;
            if started.elapsed().is_ok_and(|it| it > STEADY) {
                backoff = FIRST_BACKOFF;
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
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
            let mut state = self.lock();
            state.last = Some(termination);
            state.restarts += 1;
        }
    }

    /// One process, from its beginning to its end.
    async fn run_once(
        &self,
        launcher: &Launcher,
        place: &Place,
        stop: &mut watch::Receiver<Option<Duration>>,
        changed: &impl Fn(),
    ) -> Termination {
        let started = now();
        let journal = Journal::default();
        {
            let mut state = self.lock();
            state.previous = state.journal.replace(journal.clone());
        }
        let process = match self.launch(launcher, place) {
            Ok(process) => process,
            Err(error) => {
                journal.close();
                return Termination {
                    code: START_ERROR,
                    reason: "StartError",
                    message: error.to_string(),
                    started,
                    finished: now(),
                };
            }
        };
        let Process {
            mut life,
            stdin,
            stdout,
            stderr,
            window,
        } = process;
        let (output, _) = broadcast::channel(BACKLOG);
        let (say, said) = mpsc::channel(QUEUE);
        let (resize, mut sizes) = mpsc::channel::<TerminalSize>(QUEUE);
        self.lock().phase = Phase::Running {
            since: started,
            run: Run {
                output: output.downgrade(),
                stdin: self.plan.stdin.then_some(say),
                sizes: resize,
                ended: life.ended(),
            },
        };
        changed();
        let outputs = async {
            tokio::join!(
                write_down(stdout, Output::Stdout, &output, &journal),
                write_down(stderr, Output::Stderr, &output, &journal),
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
            tokio::join!(biased; measure, feed_in(said, stdin, self.plan.stdin_once));
        };
        let ended = accompany(supervise(&mut life, stop), outputs, inputs).await;
        journal.close();
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

    fn launch(&self, launcher: &Launcher, place: &Place) -> Result<Process, LaunchError> {
        let launch = Launch {
            pod: &place.pod,
            task: match &self.plan.command {
                Some(command) => Task::Command(command),
                None => Task::Sample,
            },
            directory: &place.directory,
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

/// Waits for the end of a process, which comes by itself or by being told.
async fn supervise(life: &mut Life, stop: &mut watch::Receiver<Option<Duration>>) -> Ended {
    let grace = tokio::select! {
        ended = life.wait() => return ended,
        told = stop.wait_for(Option::is_some) => match told {
            Ok(grace) => grace.unwrap_or_default(),
            // Nobody is left who could tell.
            Err(_) => Duration::ZERO,
        },
    };
    life.terminate();
    let mut deadline = Instant::now() + grace;
    loop {
        tokio::select! {
            ended = life.wait() => return ended,
            () = sleep_until(deadline) => break,
            // It may be hurried, not given more time.
            Ok(()) = stop.changed() => {
                let grace = stop.borrow_and_update().unwrap_or_default();
                deadline = deadline.min(Instant::now() + grace);
            }
        }
    }
    life.kill().await
}

/// Puts output down, and shows it to those who are attached.
async fn write_down(
    from: Option<Outlet>,
    which: Output,
    to: &broadcast::Sender<(Output, Bytes)>,
    journal: &Journal,
) {
    let Some(mut from) = from else { return };
    let mut cutter = Cutter::default();
    let mut piece = BytesMut::new();
    loop {
        piece.reserve(PIECE);
        if !from.read(&mut piece).await {
            break;
        }
        cutter.push(&piece, journal);
        // Nobody need be attached.
        let _ = to.send((which, piece.split().freeze()));
    }
    cutter.end(journal);
}

/// Hands over what those who are attached say.
async fn feed_in(mut from: mpsc::Receiver<Fed>, to: Option<Inlet>, once: bool) {
    let mut to = to;
    while let Some(fed) = from.recv().await {
        match (fed, &mut to) {
            (Fed::Data(data), Some(inlet)) => {
                let written = async {
                    inlet.write_all(&data).await?;
                    inlet.flush().await
                };
                if written.await.is_err() {
                    to = None;
                }
            }
            (Fed::End, _) if once => to = None,
            (Fed::End | Fed::Data(_), _) => {}
        }
    }
    // The process keeps its input open while nobody is attached.
    std::future::pending::<()>().await;
    drop(to);
}

fn now() -> Moment {
    Moment::from(SystemTime::now())
}

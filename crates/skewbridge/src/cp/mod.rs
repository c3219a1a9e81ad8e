//! `skewbridge cp`: files and trees into pods, out of them, and from one to another.

mod flags;
mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use skewbridge_client::copy::{
    Error, Options, Place, Pod, Tally, copy_between, copy_from, copy_to,
};
use skewbridge_client::streams::{Executor, FallbackExecutor, Opening, Starting};

pub(crate) use flags::Flags;
use flags::Journey;
use progress::{Manner, Screen};

use crate::client_command::{self, Failure, say};
use crate::cluster_flags::ClusterAccess;
use crate::exec::explain;
use crate::pods::{Pods, choose_container};
use crate::session::told;

/// How long what is not whole may take to be removed here, after Ctrl-C: a disk may be
/// slow.
const TIDYING: Duration = Duration::from_secs(10);

/// What a shell says of a command that was interrupted: 128 and the signal.
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_TERMINATED: u8 = 143;

/// Flags to places, places to a copy, a copy to an exit code.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    let journey = match flags.journey() {
        Ok(journey) => journey,
        Err(problem) => {
            say(format_args!("error: {problem}"));
            say("see skewbridge cp --help");
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(until_signal(copy(flags, &journey)));
            // Whoever writes to the disk removes what is not whole.
            runtime.shutdown_timeout(TIDYING);
            ended
        }
        Err(error) => Err(Failure::new(error)),
    };
    client_command::end(ended)
}

/// A copy that is given up leaves nothing behind that looks whole, so a signal is heard.
async fn until_signal(copy: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = signal(SignalKind::terminate());
    let mut terminate = terminate.map_err(Failure::new)?;
    tokio::select! {
        ended = copy => ended,
        _ = tokio::signal::ctrl_c() => Err(Failure::silent(EXIT_INTERRUPTED)),
        _ = terminate.recv() => Err(Failure::silent(EXIT_TERMINATED)),
    }
}

async fn copy(flags: &Flags, journey: &Journey) -> Result<(), Failure> {
    // Before anybody is asked.
    if let Place::Local(path) = &journey.source
        && path.symlink_metadata().is_err()
    {
        return Err(Failure::new(Error::NoSource(path.clone())));
    }
    let access = flags.cluster.access().await?;
    let screen = Screen::new(Manner::choose(flags.quiet));
    let executor = Arc::new(Telling {
        inner: FallbackExecutor::new(access.endpoint.clone()),
        silent: AtomicBool::new(access.verbosity == 0),
    });
    let tally = Arc::new(Tally::default());
    let options = Options {
        notices: Some({
            let screen = screen.clone();
            Arc::new(move |notice| screen.tell(&notice))
        }),
        ..flags.options()
    };
    let find = |place| Lookup {
        flags,
        access: &access,
        executor: executor.clone(),
        place,
    };
    let (source, target) = (find(&journey.source), find(&journey.target));
    let (source, target) = (source.pod().await?, target.pod().await?);
    let started = Instant::now();
    let copying = async {
        match (&source, &target) {
            (Spot::Pod(pod, from), Spot::Local(to)) => {
                copy_from(pod, from, to, &options, &tally).await
            }
            (Spot::Local(from), Spot::Pod(pod, to)) => {
                measure(from, &tally);
                copy_to(pod, from, to, &options, &tally).await
            }
            (Spot::Pod(one, from), Spot::Pod(other, to)) => {
                copy_between((one, from), (other, to), &options, &tally).await
            }
            (Spot::Local(_), Spot::Local(_)) => Ok(()),
        }
    };
    let ended = tokio::select! {
        ended = copying => ended,
        () = screen.watch(&tally) => Ok(()),
    };
    screen.finish(&tally, started.elapsed(), ended.is_ok());
    ended.map_err(|error| match error {
        Error::Client(error) => explain(error, "pods/exec", &access.namespace, None),
        error => Failure::new(error),
    })
}

/// A place that is known to be there.
enum Spot {
    Local(PathBuf),
    Pod(Pod, String),
}

/// Looks for the pod of a place, and its container.
struct Lookup<'a> {
    flags: &'a Flags,
    access: &'a ClusterAccess,
    executor: Arc<Telling>,
    place: &'a Place,
}

impl Lookup<'_> {
    async fn pod(self) -> Result<Spot, Failure> {
        let (namespace, pod, path) = match self.place {
            Place::Local(path) => return Ok(Spot::Local(path.clone())),
            Place::Pod {
                namespace,
                pod,
                path,
            } => (namespace, pod, path),
        };
        let namespace = namespace.as_ref().unwrap_or(&self.access.namespace);
        let pods = Pods {
            endpoint: self.access.endpoint.clone(),
            namespace: namespace.clone(),
        };
        let found = pods.pod(pod).await?;
        if matches!(found.status.phase.as_str(), "Succeeded" | "Failed") {
            let phase = &found.status.phase;
            return Err(Failure::new(format!(
                "cannot exec into a container in a completed pod; current phase is {phase}"
            )));
        }
        let container = choose_container(&found, self.flags.container.as_deref())?;
        if let Some(notice) = container.notice.filter(|_| !self.flags.quiet) {
            say(notice);
        }
        let pod = Pod {
            executor: self.executor,
            namespace: namespace.clone(),
            pod: pod.clone(),
            container: Some(container.name),
        };
        Ok(Spot::Pod(pod, path.clone()))
    }
}

/// Says once how streams are carried, if that is asked for.
struct Telling {
    inner: FallbackExecutor,
    silent: AtomicBool,
}

impl Executor for Telling {
    fn open(&self, opening: Opening) -> Starting<'_> {
        Box::pin(async move {
            let process = self.inner.open(opening).await?;
            if !self.silent.swap(true, Ordering::Relaxed) {
                say(told(process.transport()));
            }
            Ok(process)
        })
    }
}

/// How many directories are looked into beforehand: a bar is not worth more.
const MEASURED: usize = 10_000;

/// Adds up what is to be copied, beside the copy, for a bar that knows its end.
fn measure(from: &Path, tally: &Arc<Tally>) {
    let (from, tally) = (from.to_path_buf(), tally.clone());
    tokio::task::spawn_blocking(move || {
        let Ok(status) = from.symlink_metadata() else {
            return;
        };
        if status.is_file() {
            tally.expect(status.len());
            return;
        }
        let (mut total, mut looked) = (0, 0);
        let mut waiting = vec![from];
        while let Some(directory) = waiting.pop() {
            looked += 1;
            if looked > MEASURED {
                return;
            }
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(status) if status.is_dir() => waiting.push(entry.path()),
                    Ok(status) if status.is_file() => total += status.len(),
                    _ => {}
                }
            }
        }
        tally.expect(total);
    });
}

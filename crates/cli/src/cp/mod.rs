//! `skewbridge cp`: files and trees into pods, out of them, and from one to another.

mod endpoints;
mod flags;
mod progress;
mod signals;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_client::copy::{
    CancellationToken, CopySpec, Error, Options, Progress, copy_between, copy_from, copy_to,
};

use tokio::runtime::Runtime;

use endpoints::{Endpoints, Location};
use flags::Direction;
pub(crate) use flags::Flags;
use progress::{Screen, Verbosity};
use signals::Signals;

use crate::client_command::{self, Failure, print_stderr};

/// Time to remove partial files after a signal: here, where a disk may be slow, and in a
/// container.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// From flags to source and destination, to a copy, to an exit code.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    let direction = match flags.direction() {
        Ok(direction) => direction,
        Err(problem) => {
            print_stderr(format_args!("error: {problem}"));
            print_stderr("see skewbridge cp --help");
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    client_command::end(run_copy(flags, &direction))
}

fn run_copy(flags: &Flags, direction: &Direction) -> Result<(), Failure> {
    let runtime = runtime()?;
    let (stop, mut hurry) = (CancellationToken::default(), None);
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen().map_err(Failure::new)?;
        let ended = until_signal(copy(flags, direction, &stop), &stop, &mut signals).await;
        hurry = (!signals.are_urgent()).then_some(signals);
        ended
    });
    match hurry {
        Some(signals) if ended.is_err() => wait_for_the_disk(runtime, signals),
        // The copy is complete, or a second signal skipped the cleanup.
        _ => runtime.shutdown_background(),
    }
    ended
}

fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(Failure::new)
}

/// The thread that writes to the disk removes partial files. The runtime of the copy blocks on
/// it and cannot receive signals, so another runtime does.
fn wait_for_the_disk(copied: Runtime, mut signals: Signals) {
    let Ok(listening) = runtime() else {
        return copied.shutdown_timeout(CLEANUP_TIMEOUT);
    };
    listening.block_on(async {
        let waiting = tokio::task::spawn_blocking(|| copied.shutdown_timeout(CLEANUP_TIMEOUT));
        tokio::select! {
            _ = waiting => {}
            _ = signals.next() => {}
        }
    });
    listening.shutdown_background();
}

/// A cancelled copy must not leave files that look complete, so signals are caught. A second
/// signal skips the cleanup.
async fn until_signal(
    copy: impl Future<Output = Result<(), Failure>>,
    stop: &CancellationToken,
    signals: &mut Signals,
) -> Result<(), Failure> {
    tokio::pin!(copy);
    let code = tokio::select! {
        ended = &mut copy => return ended,
        code = signals.next() => code,
    };
    stop.cancel();
    tokio::select! {
        ended = tokio::time::timeout(CLEANUP_TIMEOUT, copy) => match ended {
            // The copy completed at the same time.
            Ok(Ok(())) => Ok(()),
            _ => Err(Failure::without_message(code)),
        },
        code = signals.next() => Err(Failure::without_message(code)),
    }
}

async fn copy(
    flags: &Flags,
    direction: &Direction,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    // Before the first request.
    if let CopySpec::Local(path) = &direction.source
        && path.symlink_metadata().is_err()
    {
        return Err(Failure::new(Error::NoSource(path.clone())));
    }
    let endpoints = tokio::select! {
        endpoints = Endpoints::find(flags, direction) => endpoints?,
        () = stop.cancelled() => return Err(Failure::new(Error::Cancelled)),
    };
    let screen = Screen::new(Verbosity::choose(flags.quiet));
    let progress = Arc::new(Progress::default());
    let options = Options {
        cancel: stop.clone(),
        on_event: Some({
            let screen = screen.clone();
            Arc::new(move |event| screen.print_event(&event))
        }),
        ..flags.options()
    };
    let started = Instant::now();
    let copying = async {
        match (&endpoints.source, &endpoints.target) {
            (Location::Pod(from), Location::Local(to)) => {
                copy_from(&from.pod, &from.path, to, &options, &progress).await
            }
            (Location::Local(from), Location::Pod(to)) => {
                if screen.is_live() {
                    measure(from, &progress);
                }
                copy_to(&to.pod, from, &to.path, &options, &progress).await
            }
            (Location::Pod(from), Location::Pod(to)) => {
                let (source, target) = ((&from.pod as _, &*from.path), (&to.pod as _, &*to.path));
                copy_between(source, target, &options, &progress).await
            }
            (Location::Local(_), Location::Local(_)) => Ok(()),
        }
    };
    let ended = tokio::select! {
        ended = copying => ended,
        () = screen.watch(&progress) => Ok(()),
    };
    screen.finish(&progress, started.elapsed(), ended.is_ok());
    ended.map_err(|error| endpoints.explain(error))
}

/// Maximum number of directories to count in advance, for the progress bar.
const MAX_MEASURED_DIRECTORIES: usize = 10_000;

/// Sums up the bytes to copy, concurrently with the copy, for the total of the progress bar.
fn measure(from: &Path, progress: &Arc<Progress>) {
    let (from, progress) = (from.to_path_buf(), progress.clone());
    tokio::task::spawn_blocking(move || {
        let Ok(status) = from.symlink_metadata() else {
            return;
        };
        if status.is_file() {
            progress.expect(status.len());
            return;
        }
        let (mut total, mut looked) = (0, 0);
        let mut waiting = vec![from];
        while let Some(directory) = waiting.pop() {
            looked += 1;
            if looked > MAX_MEASURED_DIRECTORIES {
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
        progress.expect(total);
    });
}

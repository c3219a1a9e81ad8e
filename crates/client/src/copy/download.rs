//! Copies from a pod to the local machine.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::backoff::Backoff;
use super::cat_download;
use super::cksum::Cksum;
use super::commands;
use super::container_exec::{CommandEnd, Container, Process, Stdin, read_stderr, run_alongside};
use super::copy_spec::{Destination, RemotePath};
use super::error::Error;
use super::extract::Extractor;
use super::extract_stream::{ExtractOutcome, Extraction, extract};
use super::options::{CopyEvent, Options, ResumePoint};
use super::progress::Progress;
use super::resume::parse_cksum_output;
use super::tar::Reader;

/// The longest line of `cksum`: two numbers of 10 and 20 digits.
const MAX_CKSUM_LINE_BYTES: usize = 64;

/// Copies a file, or the contents of a directory, from a container.
///
/// A directory's contents go into `to`, which is created if it does not exist. A file goes to
/// `to`, or into it if that is a directory or ends with a slash.
///
/// It succeeds only if the archive is complete and the container's `tar` succeeded.
pub async fn copy_from(
    container: &dyn Container,
    from: &str,
    to: &Path,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let path = RemotePath::new(from);
    let extractor = Extractor::new(
        path.root(),
        Destination::new(to),
        options.clone(),
        progress.clone(),
    );
    let state = Box::new(Extraction {
        reader: Reader::new(),
        extractor,
    });
    let mut backoff = Backoff::new(options);
    let copying = download(container, &path, state, options, &mut backoff, progress);
    options.cancel.run_until_cancelled(copying).await
}

async fn download(
    container: &dyn Container,
    path: &RemotePath,
    mut state: Box<Extraction>,
    options: &Options,
    backoff: &mut Backoff,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let mut plan = DownloadPlan::Whole;
    loop {
        let result = attempt(container, path, plan, state).await;
        let (returned, result) = match result {
            Ok(result) => result,
            Err((returned, error)) => (
                returned,
                AttemptResult::Disconnected(backoff.transient_cause(error)?),
            ),
        };
        state = returned;
        let cause = match result {
            AttemptResult::Complete => return state.extractor.finish(),
            AttemptResult::Failed(error) => {
                // Complete files stay, with their times.
                let _ = state.extractor.finish();
                return Err(error);
            }
            AttemptResult::NoTar => {
                return cat_download::download(container, path, state, options, backoff, progress)
                    .await;
            }
            // No connection was lost, so it does not count as an attempt. It occurs once after
            // each lost connection: a restarted copy is not resumed.
            AttemptResult::CannotResume => {
                plan = DownloadPlan::Whole;
                "the copy cannot be resumed".to_owned()
            }
            AttemptResult::Disconnected(cause) => {
                backoff.wait(&cause, state.reader.offset()).await?;
                progress.add_retry();
                (state, plan) = plan_resume(state).await;
                cause
            }
        };
        let from = match plan {
            DownloadPlan::Whole => ResumePoint::Start,
            DownloadPlan::From { offset, .. } => ResumePoint::Byte(offset),
        };
        options.emit(CopyEvent::Retrying { cause, from });
        if plan == DownloadPlan::Whole {
            state.restart(progress);
        }
    }
}

/// What to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DownloadPlan {
    Whole,
    From {
        /// Where the last header begins, the checksum of the bytes received from there on, and
        /// where to continue.
        prefix_start: u64,
        prefix_cksum: Cksum,
        offset: u64,
    },
}

enum AttemptResult {
    Complete,
    Disconnected(String),
    /// The source has changed, or the container lacks the programs.
    CannotResume,
    NoTar,
    Failed(Error),
}

/// What to request after a lost connection. Reads the partial file, on a thread that may
/// block on the disk.
async fn plan_resume(mut state: Box<Extraction>) -> (Box<Extraction>, DownloadPlan) {
    let planning = tokio::task::spawn_blocking(move || {
        let Extraction { reader, extractor } = &mut *state;
        let plan = reader.rewind().and_then(|checkpoint| {
            let mut prefix_cksum = Cksum::default();
            prefix_cksum.add(checkpoint.header);
            extractor
                .add_partial_file(&mut prefix_cksum)
                .then_some(DownloadPlan::From {
                    prefix_start: checkpoint.header_at,
                    prefix_cksum,
                    offset: checkpoint.resume_at,
                })
        });
        (state, plan.unwrap_or(DownloadPlan::Whole))
    });
    match planning.await {
        Ok(planned) => planned,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

async fn attempt(
    container: &dyn Container,
    path: &RemotePath,
    plan: DownloadPlan,
    state: Box<Extraction>,
) -> Result<(Box<Extraction>, AttemptResult), (Box<Extraction>, Error)> {
    let command = match plan {
        DownloadPlan::Whole => commands::pack(path),
        DownloadPlan::From {
            prefix_start,
            prefix_cksum,
            offset,
        } => commands::resume_pack(path, prefix_start, prefix_cksum.length(), offset),
    };
    let process = match container.run(command, Stdin::Null).await {
        Ok(process) => process,
        Err(error) => return Err((state, error.into())),
    };
    let Process {
        stdout,
        stderr,
        exit,
        ..
    } = process;
    let mut stdout = stdout;
    let reading = async {
        if let DownloadPlan::From { prefix_cksum, .. } = plan {
            match prefix_matches(&mut stdout, prefix_cksum).await {
                Ok(true) => {}
                Ok(false) => return (state, ExtractOutcome::PrefixChanged),
                Err(_) => return (state, ExtractOutcome::ReadError),
            }
        }
        extract(stdout, state).await
    };
    let ending = async { tokio::join!(read_stderr(stderr), exit) };
    tokio::pin!(ending);
    // A command whose output is no longer needed is dropped without waiting for its end.
    let ((state, outcome), exit) = run_alongside(reading, ending.as_mut()).await;
    let result = match outcome {
        ExtractOutcome::Failed(error) => AttemptResult::Failed(error),
        ExtractOutcome::PrefixChanged if plan != DownloadPlan::Whole => AttemptResult::CannotResume,
        ExtractOutcome::PrefixChanged | ExtractOutcome::Eof | ExtractOutcome::ReadError => {
            let (stderr, status) = match exit {
                Some(end) => end,
                None => ending.await,
            };
            let nothing_read = state.reader.offset() == 0;
            match (CommandEnd::new(&status, &stderr), outcome) {
                (CommandEnd::Success, ExtractOutcome::Eof) if state.reader.is_complete() => {
                    AttemptResult::Complete
                }
                (CommandEnd::Success, _) => {
                    AttemptResult::Disconnected("the archive has no end".to_owned())
                }
                (CommandEnd::Disconnected(cause), _) => AttemptResult::Disconnected(cause),
                (CommandEnd::NotFound, _) if plan != DownloadPlan::Whole => {
                    AttemptResult::CannotResume
                }
                (CommandEnd::NotFound, _) if nothing_read => AttemptResult::NoTar,
                (CommandEnd::NotFound, _) => AttemptResult::Failed(Error::MissingProgram {
                    program: "tar",
                    needed: "",
                }),
                (CommandEnd::Failed(how), _) => AttemptResult::Failed(Error::CommandFailed {
                    program: "tar",
                    how,
                    stderr,
                }),
                (CommandEnd::NotRun(message), _) => AttemptResult::Failed(Error::NotRun {
                    program: "tar",
                    message,
                }),
            }
        }
    };
    Ok((state, result))
}

/// Whether the prefix of the archive is unchanged. Reads exactly the line with the checksum result.
async fn prefix_matches(
    stdout: &mut (impl AsyncRead + Unpin),
    prefix_cksum: Cksum,
) -> io::Result<bool> {
    let mut line = Vec::new();
    loop {
        // End-of-file means that there is no program to compute the checksum.
        if (&mut *stdout).take(1).read_buf(&mut line).await? == 0
            || line.len() > MAX_CKSUM_LINE_BYTES
        {
            return Ok(false);
        }
        if line.ends_with(b"\n") {
            return Ok(
                parse_cksum_output(&line) == Some((prefix_cksum.finish(), prefix_cksum.length()))
            );
        }
    }
}

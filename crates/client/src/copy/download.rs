//! From a pod to here.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::append::sum_and_size;
use super::cat_out;
use super::cksum::Sum;
use super::commands;
use super::container::{Container, Ended, Process, Stdin, beside, complaint};
use super::error::Error;
use super::extract::Extractor;
use super::options::{Again, Notice, Options};
use super::place::{Landing, RemotePath};
use super::retry::Patience;
use super::tally::Tally;
use super::tar::Reader;

/// In what pieces it is read: a call for each costs less than the copy of it.
const PIECE: usize = 64 << 10;

/// How many pieces wait for the disk.
const WAITING: usize = 4;

/// How long the line of `cksum` may be: two numbers, of 10 and of 20 digits.
const SUM: usize = 64;

/// Copies a file, or what is in a directory, from a container.
///
/// A directory's contents go into `to`, which is made if it is not there; a file goes
/// to `to`, or into it if that is a directory, or ends with a slash.
///
/// It has succeeded only if the archive came to its end, and the container's `tar`
/// did so without a complaint.
pub async fn copy_from(
    container: &dyn Container,
    from: &str,
    to: &Path,
    options: &Options,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let path = RemotePath::new(from);
    let extractor = Extractor::new(path.top(), Landing::new(to), options.clone(), tally.clone());
    let state = Box::new(State {
        reader: Reader::new(),
        extractor,
    });
    let mut patience = Patience::new(options);
    let copying = download(container, &path, state, options, &mut patience, tally);
    options.stop.or(copying).await
}

async fn download(
    container: &dyn Container,
    path: &RemotePath,
    mut state: Box<State>,
    options: &Options,
    patience: &mut Patience,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let mut plan = Plan::Whole;
    loop {
        let verdict = attempt(container, path, plan, state).await;
        let (back, verdict) = match verdict {
            Ok(verdict) => verdict,
            Err((back, error)) => (back, Verdict::Cut(patience.cause(error)?)),
        };
        state = back;
        let cause = match verdict {
            Verdict::Whole => return state.extractor.finish(),
            Verdict::Failed(error) => {
                // What came is there, with its times.
                let _ = state.extractor.finish();
                return Err(error);
            }
            Verdict::NoTar => {
                return cat_out::download(container, path, state, options, patience, tally).await;
            }
            // No connection was lost, so it counts as no try. It comes once after each that
            // was: what begins again is not gone on with.
            Verdict::CannotGoOn => {
                plan = Plan::Whole;
                "it cannot be gone on with".to_owned()
            }
            Verdict::Cut(cause) => {
                patience.again(&cause, state.reader.offset()).await?;
                tally.again();
                (state, plan) = State::plan(state).await;
                cause
            }
        };
        let from = match plan {
            Plan::Whole => Again::Beginning,
            Plan::From { at, .. } => Again::At(at),
        };
        options.tell(Notice::Again { cause, from });
        if plan == Plan::Whole {
            state.begin_again(tally);
        }
    }
}

/// What goes to the thread that writes, and comes back.
pub(super) struct State {
    pub(super) reader: Reader,
    pub(super) extractor: Extractor,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Whole,
    From {
        /// The last header, and what has come of the file that it begins.
        known_at: u64,
        known: Sum,
        at: u64,
    },
}

enum Verdict {
    Whole,
    Cut(String),
    /// The source is another one now, or the container has no programs for it.
    CannotGoOn,
    NoTar,
    Failed(Error),
}

impl State {
    /// What is not whole is thrown away, and everything counted anew.
    pub(super) fn begin_again(&mut self, tally: &Tally) {
        self.reader = Reader::new();
        self.extractor.begin_again();
        tally.restart();
    }

    /// What to ask for after a cut. It reads what has come of a file, on a thread that may
    /// wait for the disk.
    async fn plan(mut state: Box<Self>) -> (Box<Self>, Plan) {
        let planning = tokio::task::spawn_blocking(move || {
            let State { reader, extractor } = &mut *state;
            let plan = reader.rewind().and_then(|checkpoint| {
                let mut known = Sum::default();
                known.add(checkpoint.header);
                extractor.add_begun(&mut known).then_some(Plan::From {
                    known_at: checkpoint.header_at,
                    known,
                    at: checkpoint.resume_at,
                })
            });
            (state, plan.unwrap_or(Plan::Whole))
        });
        match planning.await {
            Ok(planned) => planned,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
}

async fn attempt(
    container: &dyn Container,
    path: &RemotePath,
    plan: Plan,
    state: Box<State>,
) -> Result<(Box<State>, Verdict), (Box<State>, Error)> {
    let command = match plan {
        Plan::Whole => commands::pack(path),
        Plan::From {
            known_at,
            known,
            at,
        } => commands::go_on(path, known_at, known.length(), at),
    };
    let process = match container.run(command, Stdin::Null).await {
        Ok(process) => process,
        Err(error) => return Err((state, error.into())),
    };
    let Process {
        stdout,
        stderr,
        ended,
        ..
    } = process;
    let mut stdout = stdout;
    let reading = async {
        if let Plan::From { known, .. } = plan {
            match is_the_same(&mut stdout, known).await {
                Ok(true) => {}
                Ok(false) => return (state, Came::Other),
                Err(_) => return (state, Came::Cut),
            }
        }
        extract(stdout, state).await
    };
    let ending = async { tokio::join!(complaint(stderr), ended) };
    tokio::pin!(ending);
    // A command whose output nobody wants any more is left, not waited for.
    let ((state, came), finished) = beside(reading, ending.as_mut()).await;
    let verdict = match came {
        Came::Wrong(error) => Verdict::Failed(error),
        Came::Other if plan != Plan::Whole => Verdict::CannotGoOn,
        Came::Other | Came::All | Came::Cut => {
            let (stderr, status) = match finished {
                Some(end) => end,
                None => ending.await,
            };
            let nothing = state.reader.offset() == 0;
            match (Ended::of(&status, &stderr), came) {
                (Ended::Well, Came::All) if state.reader.is_whole() => Verdict::Whole,
                (Ended::Well, _) => Verdict::Cut("the archive has no end".to_owned()),
                (Ended::Cut(cause), _) => Verdict::Cut(cause),
                (Ended::Missing, _) if plan != Plan::Whole => Verdict::CannotGoOn,
                (Ended::Missing, _) if nothing => Verdict::NoTar,
                (Ended::Missing, _) => Verdict::Failed(Error::Missing {
                    program: "tar",
                    needed: "",
                }),
                (Ended::Badly(how), _) => Verdict::Failed(Error::Remote {
                    program: "tar",
                    how,
                    stderr,
                }),
                (Ended::NotRun(message), _) => Verdict::Failed(Error::NotRun {
                    program: "tar",
                    message,
                }),
            }
        }
    };
    Ok((state, verdict))
}

/// What came of an archive.
pub(super) enum Came {
    All,
    Cut,
    /// Not what was there before.
    Other,
    Wrong(Error),
}

/// Whether the archive still has what came of it before. Not a byte more is taken than
/// the line that says so.
async fn is_the_same(stdout: &mut (impl AsyncRead + Unpin), known: Sum) -> io::Result<bool> {
    let mut line = Vec::new();
    loop {
        // At its end there is no program to sum it up.
        if (&mut *stdout).take(1).read_buf(&mut line).await? == 0 || line.len() > SUM {
            return Ok(false);
        }
        if line.ends_with(b"\n") {
            return Ok(sum_and_size(&line) == Some((known.finish(), known.length())));
        }
    }
}

/// Reads here, and writes on a thread that may wait for the disk.
pub(super) async fn extract(
    mut stdout: impl AsyncRead + Unpin,
    state: Box<State>,
) -> (Box<State>, Came) {
    let (pieces, mut waiting) = mpsc::channel::<Bytes>(WAITING);
    let disk: JoinHandle<(Box<State>, Result<(), Error>)> =
        tokio::task::spawn_blocking(move || {
            let mut state = state;
            let State { reader, extractor } = &mut *state;
            while let Some(piece) = waiting.blocking_recv() {
                if let Err(error) = extractor.take(reader, &piece) {
                    return (state, Err(error));
                }
            }
            (state, Ok(()))
        });
    let mut buffer = BytesMut::new();
    let came = loop {
        match fill(&mut stdout, &mut buffer).await {
            Ok(Filled::Some) => {
                if pieces.send(buffer.split().freeze()).await.is_err() {
                    // It will say why.
                    break Came::All;
                }
            }
            Ok(Filled::End) => break Came::All,
            // How the command ended says why.
            Err(_) => break Came::Cut,
        }
    };
    drop(pieces);
    match disk.await {
        Ok((state, Ok(()))) => (state, came),
        Ok((state, Err(error))) => (state, Came::Wrong(error)),
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

enum Filled {
    Some,
    End,
}

/// Waits for something, and takes all that is there with it.
async fn fill(stdout: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<Filled> {
    buffer.reserve(PIECE);
    if stdout.read_buf(buffer).await? == 0 {
        return Ok(Filled::End);
    }
    while buffer.len() < PIECE {
        let more = stdout.read_buf(buffer);
        tokio::pin!(more);
        // Polled once: what is not there yet is not waited for.
        let once = std::future::poll_fn(|cx| {
            use std::future::Future as _;
            std::task::Poll::Ready(more.as_mut().poll(cx))
        });
        match once.await {
            std::task::Poll::Ready(Ok(0) | Err(_)) | std::task::Poll::Pending => break,
            std::task::Poll::Ready(Ok(_)) => {}
        }
    }
    Ok(Filled::Some)
}

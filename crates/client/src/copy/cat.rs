//! One file into a container without tar: by its shell.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::cksum::Sum;
use super::commands;
use super::container::{Container, Ended, Process, Stdin, complaint};
use super::error::Error;
use super::gather::{self, PIECE};
use super::options::{Again, Notice, Options, Preserve};
use super::place::RemotePath;
use super::retry::Patience;
use super::tally::Tally;
use super::way::Way;

/// How many pieces wait for the connection, beside one that is read and one that is sent.
const WAITING: usize = 1;

/// A name that nobody else has.
pub(super) fn temporary() -> String {
    let number = RandomState::new().hash_one(std::process::id());
    format!(".skewbridge-{number:016x}")
}

/// A lost connection means to begin again.
pub(super) async fn upload(
    container: &dyn Container,
    from: &Path,
    target: &str,
    options: &Options,
    patience: &mut Patience,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let status = from.metadata().map_err(|cause| Error::Local {
        doing: "read",
        path: from.to_path_buf(),
        cause,
    })?;
    let directory = RemotePath::new(target).directory;
    let mode = match options.preserve {
        Preserve::Yes => status.mode() & 0o777,
        Preserve::No => 0o644,
    };
    loop {
        // Another one each time: who was left alone removes what it has made.
        let place = format!("{}/{}", directory.trim_end_matches('/'), temporary());
        let command = commands::unpack_cat(&place, target, status.len(), mode);
        let sending = Sending {
            path: from,
            from: 0,
            to: status.len(),
            sum: &mut Sum::default(),
        };
        let (ended, stderr) = match send(container, None, command, sending, tally).await {
            Ok(ended) => ended,
            Err(error) => (Ended::Cut(patience.cause(error)?), String::new()),
        };
        match ended {
            Ended::Well => return Ok(()),
            Ended::Cut(cause) => {
                patience.again(&cause, tally.bytes()).await?;
                tally.again();
                tally.restart();
                let from = Again::Beginning;
                options.tell(Notice::Again { cause, from });
            }
            Ended::Missing => {
                return Err(Error::Missing {
                    program: "tar",
                    needed: ", and cat and wc to do without it are not there either",
                });
            }
            Ended::Badly(how) => {
                return Err(Error::Remote {
                    program: "cat",
                    how,
                    stderr,
                });
            }
            Ended::NotRun(message) => {
                return Err(Error::NotRun {
                    program: "cat",
                    message,
                });
            }
        }
    }
}

/// A part of a file that is sent, and added to a checksum.
pub(super) struct Sending<'a> {
    pub(super) path: &'a Path,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) sum: &'a mut Sum,
}

/// Runs a command with a part of a file as its input. If it says who it is, it is known to
/// that way.
pub(super) async fn send(
    container: &dyn Container,
    way: Option<&Way>,
    command: Vec<String>,
    sending: Sending<'_>,
    tally: &Arc<Tally>,
) -> Result<(Ended, String), Error> {
    let process = container.run(command, Stdin::Piped).await?;
    let Process {
        stdin,
        mut stdout,
        stderr,
        ended,
    } = process;
    let (known, is_known) = oneshot::channel();
    let feeding = async {
        let _ = is_known.await;
        match stdin {
            None => Ok(()),
            Some(stdin) => feed(stdin, sending, tally).await,
        }
    };
    let muted = async {
        if let Some(way) = way {
            way.listen(stdout, known).await;
        } else {
            drop(known);
            let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
        }
        Ok(())
    };
    let ((), (), stderr, status) = tokio::try_join!(
        feeding,
        muted,
        async { Ok(complaint(stderr).await) },
        async { Ok(ended.await) }
    )?;
    let ended = Ended::of(&status, &stderr);
    if let Some(way) = way
        && !matches!(ended, Ended::Cut(_))
    {
        way.has_ended();
    }
    Ok((ended, stderr))
}

async fn feed(
    mut stdin: impl AsyncWrite + Unpin,
    sending: Sending<'_>,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let (pieces, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
    let (path, start, end) = (sending.path.to_path_buf(), sending.from, sending.to);
    let reading = tokio::task::spawn_blocking(move || {
        each_piece(&path, start, end, |piece| {
            pieces.blocking_send(piece).is_ok()
        })
    });
    while let Some(piece) = waiting.recv().await {
        // How the command ended says why.
        if stdin.write_all(&piece).await.is_err() {
            break;
        }
        sending.sum.add(&piece);
        tally.moved(piece.len());
    }
    drop(waiting);
    match reading.await {
        Ok(read) => read?,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
    let _ = stdin.shutdown().await;
    Ok(())
}

/// Reads a part of a file, as long as somebody wants it.
fn each_piece(
    path: &Path,
    start: u64,
    end: u64,
    mut tell: impl FnMut(Vec<u8>) -> bool,
) -> Result<(), Error> {
    use std::io::Seek as _;
    let local = |cause| Error::Local {
        doing: "read",
        path: path.to_path_buf(),
        cause,
    };
    let mut file = gather::open(path).map_err(local)?;
    file.seek(std::io::SeekFrom::Start(start)).map_err(local)?;
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
        let mut piece = vec![0; wanted];
        let read = match file.read(&mut piece) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.map_err(local)?,
        };
        piece.truncate(read);
        at += read as u64;
        if read == 0 {
            return Err(Error::Shrank {
                path: path.to_path_buf(),
                size: end,
                read: at,
            });
        }
        if !tell(piece) {
            break;
        }
    }
    Ok(())
}

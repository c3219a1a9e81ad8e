//! Uploads one file without tar: with the container's shell.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::archive_builder::{self, CHUNK_BYTES};
use super::backoff::Backoff;
use super::cksum::Cksum;
use super::commands;
use super::container_exec::{CommandEnd, Container, Process, Stdin, read_stderr};
use super::copy_spec::RemotePath;
use super::error::Error;
use super::options::{CopyEvent, Options, Preserve, ResumePoint};
use super::progress::Progress;
use super::upload_plan::{UploadPlan, temporary_name};

/// How many chunks wait for the connection, beside one being read and one being sent.
const MAX_QUEUED_CHUNKS: usize = 1;

/// Uploads a file. A lost connection restarts the upload.
pub(super) async fn upload(
    container: &dyn Container,
    from: &Path,
    target: &str,
    options: &Options,
    backoff: &mut Backoff,
    progress: &Arc<Progress>,
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
        // A new name for each attempt: a disconnected shell removes its own file.
        let temporary_path = format!("{}/{}", directory.trim_end_matches('/'), temporary_name());
        let command = commands::unpack_cat(&temporary_path, target, status.len(), mode);
        let range = FileRange {
            path: from,
            from: 0,
            to: status.len(),
            cksum: &mut Cksum::default(),
        };
        let (exit, stderr) = match send(container, None, command, range, progress).await {
            Ok(exit) => exit,
            Err(error) => (
                CommandEnd::Disconnected(backoff.transient_cause(error)?),
                String::new(),
            ),
        };
        match exit {
            CommandEnd::Success => return Ok(()),
            CommandEnd::Disconnected(cause) => {
                backoff.wait(&cause, progress.bytes()).await?;
                progress.add_retry();
                progress.restart();
                let from = ResumePoint::Start;
                options.emit(CopyEvent::Retrying { cause, from });
            }
            CommandEnd::NotFound => {
                return Err(Error::MissingProgram {
                    program: "tar",
                    needed: ", and neither are cat and wc, which would replace it",
                });
            }
            CommandEnd::Failed(how) => {
                return Err(Error::CommandFailed {
                    program: "cat",
                    how,
                    stderr,
                });
            }
            CommandEnd::NotRun(message) => {
                return Err(Error::NotRun {
                    program: "cat",
                    message,
                });
            }
        }
    }
}

/// A range of a file to send, and the checksum to update.
pub(super) struct FileRange<'a> {
    pub(super) path: &'a Path,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) cksum: &'a mut Cksum,
}

/// Runs a command with a range of a file as its input. With a plan, the command's announcement
/// is recorded there.
pub(super) async fn send(
    container: &dyn Container,
    plan: Option<&UploadPlan>,
    command: Vec<String>,
    range: FileRange<'_>,
    progress: &Arc<Progress>,
) -> Result<(CommandEnd, String), Error> {
    let process = container.run(command, Stdin::Piped).await?;
    let Process {
        stdin,
        mut stdout,
        stderr,
        exit,
    } = process;
    let (announced, is_announced) = oneshot::channel();
    let sending = async {
        let _ = is_announced.await;
        match stdin {
            None => Ok(()),
            Some(stdin) => feed(stdin, range, progress).await,
        }
    };
    let reading_stdout = async {
        if let Some(plan) = plan {
            plan.read_announcement(stdout, announced).await;
        } else {
            drop(announced);
            let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
        }
        Ok(())
    };
    let ((), (), stderr, status) = tokio::try_join!(
        sending,
        reading_stdout,
        async { Ok(read_stderr(stderr).await) },
        async { Ok(exit.await) }
    )?;
    let exit = CommandEnd::new(&status, &stderr);
    if let Some(plan) = plan
        && !matches!(exit, CommandEnd::Disconnected(_))
    {
        plan.writer_ended();
    }
    Ok((exit, stderr))
}

async fn feed(
    mut stdin: impl AsyncWrite + Unpin,
    range: FileRange<'_>,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let (chunks, mut waiting) = mpsc::channel::<Vec<u8>>(MAX_QUEUED_CHUNKS);
    let (path, start, end) = (range.path.to_path_buf(), range.from, range.to);
    let reading = tokio::task::spawn_blocking(move || {
        for_each_chunk(&path, start, end, |chunk| {
            chunks.blocking_send(chunk).is_ok()
        })
    });
    while let Some(chunk) = waiting.recv().await {
        // The command's exit status has the cause.
        if stdin.write_all(&chunk).await.is_err() {
            break;
        }
        range.cksum.add(&chunk);
        progress.add_bytes(chunk.len());
    }
    drop(waiting);
    match reading.await {
        Ok(read) => read?,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
    let _ = stdin.shutdown().await;
    Ok(())
}

/// Reads a range of a file, while the callback returns `true`.
fn for_each_chunk(
    path: &Path,
    start: u64,
    end: u64,
    mut on_chunk: impl FnMut(Vec<u8>) -> bool,
) -> Result<(), Error> {
    use std::io::Seek as _;
    let local = |cause| Error::Local {
        doing: "read",
        path: path.to_path_buf(),
        cause,
    };
    let mut file = archive_builder::open_file(path).map_err(local)?;
    file.seek(std::io::SeekFrom::Start(start)).map_err(local)?;
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let mut chunk = vec![0; wanted];
        let read = match file.read(&mut chunk) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.map_err(local)?,
        };
        chunk.truncate(read);
        at += read as u64;
        if read == 0 {
            return Err(Error::FileShrank {
                path: path.to_path_buf(),
                size: end,
                read: at,
            });
        }
        if !on_chunk(chunk) {
            break;
        }
    }
    Ok(())
}

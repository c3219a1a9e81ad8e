//! Downloads one file without tar: with `cat`, and with `tail` after a lost connection.
//!
//! A file has no header that identifies it, so a file assembled from two attempts must match
//! the checksum that `cksum` in the container prints before it gets its final name. Without
//! these programs the copy restarts after a lost connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use super::backoff::Backoff;
use super::cksum::Cksum;
use super::commands;
use super::container_exec::{
    CommandEnd, CommandOutput, Container, Process, Stdin, capture_output, read_stderr,
    run_alongside,
};
use super::copy_spec::RemotePath;
use super::error::Error;
use super::extract_stream::{ExtractOutcome, Extraction, extract};
use super::options::{CopyEvent, Options, ResumePoint};
use super::progress::Progress;
use super::resume::parse_cksum_output;
use super::tar::{self, Entry, Kind};
use super::upload_plan::disconnected;

/// The longest output of a program that counts bytes: the output repeats the file name.
const MAX_COUNT_OUTPUT_BYTES: u64 = 64 << 10;

/// Copies one file, in as many attempts as it takes.
pub(super) async fn download(
    container: &dyn Container,
    path: &RemotePath,
    mut state: Box<Extraction>,
    options: &Options,
    backoff: &mut Backoff,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let Some(base) = &path.base else {
        return Err(missing_tar());
    };
    let file = RemoteFile {
        container,
        copy_spec: path.full_path(),
        name: base,
    };
    options.emit(CopyEvent::Fallback(
        "there is no tar in the container: copying by cat, without times and permissions",
    ));
    let mut received = None;
    let mut can_resume = true;
    loop {
        let (returned, result) = file.attempt(state, received).await;
        state = returned;
        let mut disconnected = false;
        let cause = match result {
            Ok(AttemptResult::Complete) => return state.extractor.finish(),
            Ok(AttemptResult::Disconnected(cause, partial)) => {
                disconnected = true;
                received = Some(partial).filter(|_| can_resume);
                cause
            }
            // Each of these two results occurs at most once after each lost connection.
            Ok(AttemptResult::Changed) => {
                received = None;
                "the file has changed".to_owned()
            }
            Ok(AttemptResult::NoProgram(program)) => {
                received = None;
                can_resume = false;
                format!("the container has no {program} to resume the copy with")
            }
            // The command could not be started.
            Err(error) => {
                disconnected = true;
                backoff.transient_cause(error)?
            }
        };
        if disconnected {
            backoff.wait(&cause, progress.bytes()).await?;
            progress.add_retry();
        }
        let from = match &received {
            Some(received) => ResumePoint::Byte(received.cksum.length()),
            None => ResumePoint::Start,
        };
        options.emit(CopyEvent::Retrying { cause, from });
        if received.is_none() {
            state.restart(progress);
        }
    }
}

fn missing_tar() -> Error {
    Error::MissingProgram {
        program: "tar",
        needed: ": without it only single files can be copied from there, by cat and wc",
    }
}

/// The file in the container.
struct RemoteFile<'a> {
    container: &'a dyn Container,
    copy_spec: String,
    name: &'a str,
}

/// What has been received so far.
#[derive(Debug, Clone, Copy)]
struct Received {
    cksum: Cksum,
    /// The file's size.
    size: u64,
}

enum AttemptResult {
    Complete,
    Disconnected(String, Received),
    /// The file has changed.
    Changed,
    /// This program is missing, without which the download cannot be resumed.
    NoProgram(&'static str),
}

/// What the container reports before any content is requested.
enum SourceCheck {
    New {
        size: u64,
    },
    /// The size is unchanged; the file is the same if this is its checksum.
    MatchesSize {
        cksum: u32,
    },
    Changed,
    NoProgram(&'static str),
}

impl RemoteFile<'_> {
    /// One attempt: from the start, or after the received part.
    async fn attempt(
        &self,
        state: Box<Extraction>,
        received: Option<Received>,
    ) -> (Box<Extraction>, Result<AttemptResult, Error>) {
        let check = match received {
            None => self.count().await,
            Some(received) => self.check_unchanged(received).await,
        };
        let (received, expected_cksum) = match (check, received) {
            (Ok(SourceCheck::New { size }), _) => (
                Received {
                    cksum: Cksum::default(),
                    size,
                },
                None,
            ),
            (Ok(SourceCheck::MatchesSize { cksum }), Some(received)) => (received, Some(cksum)),
            (Ok(SourceCheck::MatchesSize { .. }), None) | (Ok(SourceCheck::Changed), _) => {
                return (state, Ok(AttemptResult::Changed));
            }
            (Ok(SourceCheck::NoProgram(program)), _) => {
                return (state, Ok(AttemptResult::NoProgram(program)));
            }
            (Err(error), _) => return (state, Err(error)),
        };
        if received.cksum.length() == received.size
            && expected_cksum == Some(received.cksum.finish())
        {
            // Only the exit status was lost.
            return (state, Ok(AttemptResult::Complete));
        }
        let command = match expected_cksum {
            None => commands::cat(&self.copy_spec),
            Some(_) => commands::tail(&self.copy_spec, received.cksum.length()),
        };
        match self.container.run(command, Stdin::Null).await {
            Ok(process) => self.receive(process, state, received, expected_cksum).await,
            Err(error) => (state, Err(error.into())),
        }
    }

    async fn receive(
        &self,
        process: Process,
        state: Box<Extraction>,
        received: Received,
        expected_cksum: Option<u32>,
    ) -> (Box<Extraction>, Result<AttemptResult, Error>) {
        let size = received.size;
        let header = match expected_cksum {
            None => self.header(size),
            Some(_) => Vec::new(),
        };
        let mut contents = CksumReader {
            inner: process.stdout,
            cksum: received.cksum,
            expected: expected_cksum.map(|cksum| (size, cksum)),
            mismatch: false,
        };
        let reading = async move {
            let mut end = tar::padding(size).to_vec();
            tar::write_end(&mut end);
            // The file as an archive with one entry, so that neither less nor more than the
            // announced size is accepted.
            let archive = io::Cursor::new(header)
                .chain(&mut contents)
                .chain(io::Cursor::new(end));
            let (state, outcome) = extract(archive, state).await;
            (state, outcome, contents.cksum, contents.mismatch)
        };
        let ending = async { tokio::join!(read_stderr(process.stderr), process.exit) };
        tokio::pin!(ending);
        let ((state, outcome, cksum, mismatch), exit) =
            run_alongside(reading, ending.as_mut()).await;
        // A command whose output is no longer needed is dropped without waiting for its end.
        let result = match outcome {
            _ if mismatch => Ok(AttemptResult::Changed),
            ExtractOutcome::Failed(error @ (Error::Local { .. } | Error::NoSpace { .. })) => {
                Err(error)
            }
            ExtractOutcome::Failed(_) => Err(self.size_changed(size)),
            outcome => {
                let (stderr, status) = match exit {
                    Some(exit) => exit,
                    None => ending.await,
                };
                let is_complete =
                    matches!(outcome, ExtractOutcome::Eof) && state.reader.is_complete();
                match CommandEnd::new(&status, &stderr) {
                    CommandEnd::Success if is_complete => Ok(AttemptResult::Complete),
                    CommandEnd::Success => Err(self.size_changed(size)),
                    CommandEnd::Disconnected(cause) => {
                        Ok(AttemptResult::Disconnected(cause, Received { cksum, size }))
                    }
                    CommandEnd::NotFound if expected_cksum.is_some() => {
                        Ok(AttemptResult::NoProgram("tail"))
                    }
                    CommandEnd::NotFound => Err(missing_tar()),
                    CommandEnd::Failed(how) => Err(Error::CommandFailed {
                        program: "cat",
                        how,
                        stderr,
                    }),
                    CommandEnd::NotRun(message) => Err(Error::NotRun {
                        program: "cat",
                        message,
                    }),
                }
            }
        };
        (state, result)
    }

    fn size_changed(&self, size: u64) -> Error {
        Error::Unexpected(format!(
            "{} no longer has its reported size ({size} bytes): does another program write to it?",
            self.copy_spec
        ))
    }

    fn header(&self, size: u64) -> Vec<u8> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let entry = Entry {
            size,
            mtime: now.map_or(0, |now| now.as_secs().cast_signed()),
            ..Entry::new(self.name, Kind::File)
        };
        let mut header = Vec::new();
        tar::write_entry(&entry, &mut header);
        header
    }

    /// The file's size, so that truncation is detected.
    async fn count(&self) -> Result<SourceCheck, Error> {
        let output = capture_output(
            self.container,
            commands::count_bytes(&self.copy_spec),
            MAX_COUNT_OUTPUT_BYTES,
        )
        .await?;
        let CommandOutput {
            exit,
            stdout,
            stderr,
        } = output;
        match exit {
            CommandEnd::Success => {
                let text = String::from_utf8_lossy(&stdout);
                let size = text.split_whitespace().next();
                let size = size.and_then(|size| size.parse().ok());
                let size = size.ok_or_else(missing_tar)?;
                Ok(SourceCheck::New { size })
            }
            CommandEnd::NotFound => Err(missing_tar()),
            CommandEnd::Failed(how) => Err(Error::CommandFailed {
                program: "wc (there is no tar)",
                how,
                stderr,
            }),
            CommandEnd::NotRun(message) => Err(Error::NotRun {
                program: "wc",
                message,
            }),
            CommandEnd::Disconnected(cause) => Err(disconnected(cause)),
        }
    }

    /// Whether the received part can be a prefix of the current file.
    async fn check_unchanged(&self, received: Received) -> Result<SourceCheck, Error> {
        let output = capture_output(
            self.container,
            commands::cksum(&self.copy_spec),
            MAX_COUNT_OUTPUT_BYTES,
        )
        .await?;
        match output.exit {
            CommandEnd::Success => Ok(match parse_cksum_output(&output.stdout) {
                Some((cksum, size)) if size == received.size => SourceCheck::MatchesSize { cksum },
                _ => SourceCheck::Changed,
            }),
            CommandEnd::Disconnected(cause) => Err(disconnected(cause)),
            _ => Ok(SourceCheck::NoProgram("cksum")),
        }
    }
}

/// Computes the checksum of what is read, and withholds the last bytes if the checksum is
/// wrong.
struct CksumReader<R> {
    inner: R,
    cksum: Cksum,
    /// The expected size and checksum.
    expected: Option<(u64, u32)>,
    mismatch: bool,
}

impl<R: AsyncRead + Unpin> AsyncRead for CksumReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        self.cksum.add(&buf.filled()[before..]);
        if let Some((size, cksum)) = self.expected
            && self.cksum.length() >= size
            && self.cksum.finish() != cksum
        {
            self.mismatch = true;
            buf.set_filled(before);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

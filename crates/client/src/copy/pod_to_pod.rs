//! Copies from pod to pod, through the local machine. The source's archive is checked by the
//! same rules as a download before it is forwarded.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::backoff::Backoff;
use super::commands;
use super::container_exec::{CommandEnd, Container, Process, Stdin, read_stderr};
use super::copy_spec::RemotePath;
use super::error::{Error, Skipped};
use super::options::{CopyEvent, Options, ResumePoint, Retries};
use super::path_containment::{self, RequestedRoot};
use super::progress::Progress;
use super::tar::{self, Entry, Event, Kind, Reader};
use super::upload_plan::UploadPlan;

/// How much is read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// How many symlinks are recorded, so that no entry is written through them: as 64-bit hashes,
/// about 16 MiB.
const MAX_SYMLINKS: usize = 1 << 20;

/// Copies a file, or the contents of a directory, from one container to another, or within one.
/// A lost connection restarts the copy.
pub async fn copy_between(
    source: (&dyn Container, &str),
    target: (&dyn Container, &str),
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let path = RemotePath::new(source.1);
    let mut backoff = Backoff::new(options);
    // Only once: a second probe would find the result of the first attempt, and copy into it.
    let probing = probe(target.0, &path, target.1, &mut backoff);
    let plan = options.cancel.run_until_cancelled(probing).await?;
    let mut copy = PodToPod {
        source: source.0,
        path: &path,
        target: target.0,
        plan: &plan,
        options,
        progress,
        symlinks: Symlinks::default(),
    };
    let result = options.cancel.run_with_grace(copy.run(&mut backoff)).await;
    // Without retries the remote shell removes its own leftovers.
    if result.is_err() || options.retries != Retries::AtMost(0) {
        plan.clean_up(target.0).await;
    }
    result.and_then(Skipped::result)
}

async fn probe(
    container: &dyn Container,
    path: &RemotePath,
    to: &str,
    backoff: &mut Backoff,
) -> Result<UploadPlan, Error> {
    loop {
        match UploadPlan::for_remote(container, path, to).await {
            Ok(plan) => return Ok(plan),
            Err(error) => {
                let cause = backoff.transient_cause(error)?;
                backoff.wait(&cause, 0).await?;
            }
        }
    }
}

/// One copy, in as many attempts as it takes.
struct PodToPod<'a> {
    source: &'a dyn Container,
    path: &'a RemotePath,
    target: &'a dyn Container,
    plan: &'a UploadPlan,
    options: &'a Options,
    progress: &'a Arc<Progress>,
    /// The symlinks of all attempts: in an existing target directory, files of an interrupted
    /// attempt stay.
    symlinks: Symlinks,
}

enum AttemptResult {
    Complete {
        skipped: u64,
    },
    /// With the number of skipped entries, if everything had been forwarded.
    Disconnected {
        cause: String,
        forwarded: Option<u64>,
    },
}

impl PodToPod<'_> {
    /// Returns the number of skipped entries.
    async fn run(&mut self, backoff: &mut Backoff) -> Result<u64, Error> {
        loop {
            let (mut cause, forwarded) = match self.attempt().await {
                Ok(AttemptResult::Complete { skipped }) => return Ok(skipped),
                Ok(AttemptResult::Disconnected { cause, forwarded }) => (cause, forwarded),
                Err(error) => (backoff.transient_cause(error)?, None),
            };
            loop {
                backoff.wait(&cause, self.progress.bytes()).await?;
                self.progress.add_retry();
                match (self.prepare_retry().await, forwarded) {
                    (Ok(true), skipped) => return Ok(skipped.unwrap_or_default()),
                    (Ok(false), _) => break,
                    (Err(error), _) => cause = backoff.transient_cause(error)?,
                }
            }
            let from = ResumePoint::Start;
            self.options.emit(CopyEvent::Retrying { cause, from });
            self.progress.restart();
        }
    }

    /// Prepares another attempt; returns `true` if none is needed.
    async fn prepare_retry(&self) -> Result<bool, Error> {
        self.plan.stop_writer(self.target).await?;
        // Perhaps only the exit status was lost.
        if self.plan.is_done(self.target).await? {
            return Ok(true);
        }
        self.plan.discard_staged(self.target).await?;
        Ok(false)
    }

    async fn attempt(&mut self) -> Result<AttemptResult, Error> {
        let no_tar = |needed| Error::MissingProgram {
            program: "tar",
            needed,
        };
        if !self.plan.has_tar() {
            return Err(no_tar(" that is copied to"));
        }
        let source_process = self.source.run(commands::pack(self.path), Stdin::Null);
        let source_process = source_process.await?;
        let target_process = self
            .target
            .run(self.plan.command(self.options), Stdin::Piped);
        let Process {
            stdin,
            stdout: announcement,
            stderr: target_stderr,
            exit: target_exit,
        } = target_process.await?;
        let mut rewriter = ArchiveRewriter {
            root: self.path.root(),
            name: self.plan.name(),
            wrapper_entries: self.plan.wrapper_entries(),
            options: self.options,
            progress: self.progress,
            symlinks: &mut self.symlinks,
            skipped: 0,
            padding: &[],
            remaining: 0,
        };
        let (announced, is_announced) = oneshot::channel();
        let forwarding = async {
            let Some(stdin) = stdin else {
                return Ok(false);
            };
            let forwarding = async {
                let _ = is_announced.await;
                rewriter.run(source_process.stdout, stdin).await
            };
            // When cancelled, closing stdin ends the remote tar.
            tokio::select! {
                forwarded = forwarding => forwarded,
                () = self.options.cancel.cancelled() => Ok(false),
            }
        };
        let (forwarded, (), (source_stderr, status), (target_stderr_text, target_status)) = tokio::try_join!(
            forwarding,
            async {
                self.plan.read_announcement(announcement, announced).await;
                Ok(())
            },
            async {
                Ok(tokio::join!(
                    read_stderr(source_process.stderr),
                    source_process.exit
                ))
            },
            async { Ok(tokio::join!(read_stderr(target_stderr), target_exit)) },
        )?;
        if !forwarded && self.options.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let target_exit = CommandEnd::new(&target_status, &target_stderr_text);
        if !matches!(target_exit, CommandEnd::Disconnected(_)) {
            self.plan.writer_ended();
        }
        let program = "tar";
        let command_failed = |how, stderr| Error::CommandFailed {
            program,
            how,
            stderr,
        };
        let not_run = |message| Error::NotRun { program, message };
        let skipped = rewriter.skipped;
        let disconnected = |cause, forwarded| Ok(AttemptResult::Disconnected { cause, forwarded });
        match (CommandEnd::new(&status, &source_stderr), target_exit) {
            (CommandEnd::Success, CommandEnd::Disconnected(cause)) if forwarded => {
                disconnected(cause, Some(skipped))
            }
            (CommandEnd::Disconnected(cause), _) | (_, CommandEnd::Disconnected(cause)) => {
                disconnected(cause, None)
            }
            (CommandEnd::NotFound, _) => Err(no_tar(" that is copied from")),
            (CommandEnd::Failed(how), _) => Err(command_failed(how, source_stderr)),
            (_, CommandEnd::NotFound) => Err(no_tar(" that is copied to")),
            (_, CommandEnd::Failed(how)) => Err(command_failed(how, target_stderr_text)),
            (CommandEnd::NotRun(message), _) | (_, CommandEnd::NotRun(message)) => {
                Err(not_run(message))
            }
            (CommandEnd::Success, CommandEnd::Success) if forwarded => {
                Ok(AttemptResult::Complete { skipped })
            }
            (CommandEnd::Success, CommandEnd::Success) => {
                disconnected("the archive has no end".to_owned(), None)
            }
        }
    }
}

/// Rewrites the names of an archive.
struct ArchiveRewriter<'a> {
    root: RequestedRoot,
    name: String,
    wrapper_entries: (Vec<Entry>, Vec<Entry>),
    options: &'a Options,
    progress: &'a Arc<Progress>,
    symlinks: &'a mut Symlinks,
    skipped: u64,
    /// The padding of the current file.
    padding: &'static [u8],
    remaining: u64,
}

impl ArchiveRewriter<'_> {
    /// Whether everything was forwarded.
    async fn run(
        &mut self,
        mut source_process: impl AsyncRead + Unpin,
        mut target_process: impl AsyncWrite + Unpin,
    ) -> Result<bool, Error> {
        let mut reader = Reader::new();
        let mut input = Vec::with_capacity(CHUNK_BYTES);
        let mut output = Vec::with_capacity(2 * CHUNK_BYTES);
        for entry in &self.wrapper_entries.0 {
            tar::write_entry(entry, &mut output);
        }
        loop {
            input.clear();
            match source_process.read_buf(&mut input).await {
                Ok(0) | Err(_) => return Ok(reader.is_complete()),
                Ok(_) => {}
            }
            let was_complete = reader.is_complete();
            self.rewrite(&mut reader, &input, &mut output)?;
            let is_complete = reader.is_complete() && !was_complete;
            if target_process.write_all(&output).await.is_err() {
                return Ok(false);
            }
            output.clear();
            if is_complete {
                for entry in &self.wrapper_entries.1 {
                    tar::write_entry(entry, &mut output);
                }
                if target_process.write_all(&output).await.is_err() {
                    return Ok(false);
                }
                output.clear();
                tar::write_end(&mut output);
                // tar may exit as soon as it has seen the beginning of the end marker.
                let _ = target_process.write_all(&output).await;
                let _ = target_process.shutdown().await;
                output.clear();
            }
        }
    }

    fn rewrite(
        &mut self,
        reader: &mut Reader,
        mut input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), Error> {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                Event::Entry(entry) => self.rewrite_entry(entry, output)?,
                Event::Data(data) => {
                    let remaining = self.remaining.checked_sub(data.len() as u64);
                    self.remaining = remaining.ok_or_else(|| {
                        Error::Unexpected("the archive has content without a file".into())
                    })?;
                    output.extend_from_slice(data);
                    self.progress.add_bytes(data.len());
                    if self.remaining == 0 {
                        output.extend_from_slice(self.padding);
                    }
                }
                Event::End => {}
            }
        }
        Ok(())
    }

    fn rewrite_entry(&mut self, mut entry: Entry, output: &mut Vec<u8>) -> Result<(), Error> {
        self.progress.begin_entry(&entry.name);
        let parts = self.relative_parts(&entry.name)?;
        let depth = parts.len();
        let name = self.renamed(&parts);
        if (1..depth).any(|end| self.symlinks.contains(&parts[..end])) {
            return Err(Error::SymlinkInPath(
                path_containment::printable(&entry.name).into(),
            ));
        }
        match entry.kind {
            Kind::Character | Kind::Block | Kind::Fifo => {
                self.skip(CopyEvent::Special {
                    path: path_containment::printable(&entry.name).into(),
                    kind: entry.kind,
                });
                return Ok(());
            }
            Kind::Symlink => {
                if depth == 0 || !path_containment::symlink_stays_inside(depth - 1, &entry.link) {
                    self.skip(CopyEvent::Symlink {
                        path: path_containment::printable(&entry.name).into(),
                        target: path_containment::printable(&entry.link),
                    });
                    return Ok(());
                }
                self.symlinks.add(&parts)?;
            }
            Kind::HardLink => {
                let target = self.relative_parts(&entry.link)?;
                let renamed = self.renamed(&target);
                if (1..=target.len()).any(|end| self.symlinks.contains(&target[..end])) {
                    return Err(Error::SymlinkInPath(
                        path_containment::printable(&entry.link).into(),
                    ));
                }
                entry.link = renamed;
            }
            // Some programs would treat the symlink as the directory that it leads to.
            Kind::Directory if self.symlinks.contains(&parts) => {
                return Err(Error::SymlinkInPath(
                    path_containment::printable(&entry.name).into(),
                ));
            }
            // This entry replaces a symlink of the same name. The symlink stays recorded: a tar
            // whose connection was lost may not have processed this entry.
            Kind::Directory | Kind::File => {}
        }
        if name == b"." {
            // The existing target directory keeps its metadata. Content without a header would
            // be read as headers by the remote tar.
            return match entry.kind {
                Kind::Directory => Ok(()),
                _ => Err(Error::Unexpected(format!(
                    "{} is a directory in the container, and {} is not",
                    self.name,
                    path_containment::printable(&entry.name)
                ))),
            };
        }
        entry.name = name;
        entry.mode &= 0o777;
        (self.remaining, self.padding) = (entry.size, tar::padding(entry.size));
        tar::write_entry(&entry, output);
        Ok(())
    }

    fn relative_parts<'n>(&self, name: &'n [u8]) -> Result<Vec<&'n [u8]>, Error> {
        path_containment::relative_parts(&self.root, name).map_err(|why| Error::PathEscape {
            name: path_containment::printable(name),
            why,
        })
    }

    fn renamed(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut name = self.name.clone().into_bytes();
        for part in parts {
            name.push(b'/');
            name.extend_from_slice(part);
        }
        name
    }

    fn skip(&mut self, event: CopyEvent) {
        self.skipped += 1;
        self.options.emit(event);
    }
}

/// Where symlinks are or were, as hashes: a collision only rejects a valid name, and cannot be
/// provoked from outside.
#[derive(Debug, Default)]
struct Symlinks {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Symlinks {
    fn contains(&self, parts: &[&[u8]]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.hasher.hash_one(parts))
    }

    fn add(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let key = self.hasher.hash_one(parts);
        // Each attempt repeats most symlinks of the previous one.
        if self.hashes.len() == MAX_SYMLINKS && !self.hashes.contains(&key) {
            return Err(Error::MemoryLimit {
                what: "symlinks",
                limit: MAX_SYMLINKS * size_of::<u64>(),
            });
        }
        self.hashes.insert(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::copy::container_exec::RunFuture;
    use crate::remote_command::{Disconnected, ExitStatus};

    /// Answers each command with the next of these outputs, and loses the connection where set.
    struct ScriptedContainer {
        answers: Mutex<Vec<(Vec<u8>, bool)>>,
        received: Arc<Mutex<Vec<u8>>>,
    }

    impl ScriptedContainer {
        fn new(mut answers: Vec<(Vec<u8>, bool)>) -> Self {
            answers.reverse();
            Self {
                answers: Mutex::new(answers),
                received: Arc::default(),
            }
        }
    }

    impl Container for ScriptedContainer {
        fn run(&self, _: Vec<String>, stdin: Stdin) -> RunFuture<'_> {
            let (announcement, is_disconnected) =
                self.answers.lock().unwrap().pop().unwrap_or_default();
            let (ours, mut theirs) = tokio::io::duplex(CHUNK_BYTES);
            let received = self.received.clone();
            let reading = stdin == Stdin::Piped;
            Box::pin(async move {
                Ok(Process {
                    stdin: reading.then(|| Box::new(ours) as _),
                    stdout: Box::new(std::io::Cursor::new(announcement)),
                    stderr: Box::new(tokio::io::empty()),
                    exit: Box::pin(async move {
                        if reading {
                            let mut read = Vec::new();
                            theirs.read_to_end(&mut read).await.unwrap();
                            received.lock().unwrap().extend(read);
                        }
                        if is_disconnected {
                            return ExitStatus::Disconnected(Disconnected {
                                cause: "connection reset by peer".to_owned(),
                                sent: 0,
                                unsent: 0,
                                received: 0,
                            });
                        }
                        ExitStatus::Success
                    }),
                })
            })
        }
    }

    fn archive(entries: &[(&str, Kind, &str)]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (name, kind, link) in entries {
            let entry = Entry {
                link: link.as_bytes().to_vec(),
                ..Entry::new(*name, *kind)
            };
            tar::write_entry(&entry, &mut archive);
        }
        archive
    }

    #[tokio::test]
    async fn no_attempt_goes_through_a_symlink_of_an_earlier_one() {
        let parent_link = ("top/a/b/c", Kind::Symlink, "../..");
        let through_link = ("top/a/b/c/evil", Kind::Symlink, "../../../etc");
        // The archives of the first and the second attempt.
        let rows: [(&[_], &[_]); 4] = [
            (&[parent_link], &[through_link]),
            // Whether the file replaced the symlink is unknown.
            (
                &[parent_link, ("top/a/b/c", Kind::File, "")],
                &[through_link],
            ),
            (&[parent_link], &[("top/a/b/c/", Kind::Directory, "")]),
            (
                &[parent_link],
                &[("top/evil", Kind::HardLink, "top/a/b/c/passwd")],
            ),
        ];
        for (first, second) in rows {
            let source =
                ScriptedContainer::new(vec![(archive(first), true), (archive(second), true)]);
            let probe_output = b"tar stage directory inner".to_vec();
            let target = ScriptedContainer::new(vec![(probe_output, false)]);
            let options = Options {
                retries: Retries::AtMost(2),
                ..Options::default()
            };
            let progress = Arc::new(Progress::default());
            let result =
                copy_between((&source, "top"), (&target, "dir"), &options, &progress).await;
            assert!(matches!(result, Err(Error::SymlinkInPath(_))), "{result:?}");
            assert_eq!(progress.retries(), 1, "{second:?}");
            let received = target.received.lock().unwrap();
            assert!(!received.windows(4).any(|it| it == b"evil"), "{second:?}");
        }
    }
}

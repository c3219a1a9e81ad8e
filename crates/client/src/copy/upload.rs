//! Copies from the local machine to a pod.

use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};

use super::archive_builder::{ArchiveBuilder, BuildResult, SinkClosed};
use super::backoff::Backoff;
use super::cat_upload;
use super::container_exec::{CommandEnd, Container, Process, Stdin, read_stderr};
use super::error::{Error, Skipped};
use super::options::{CopyEvent, Options, ResumePoint, Retries};
use super::progress::Progress;
use super::remote_inventory::RemoteInventory;
use super::tar;
use super::upload_plan::UploadPlan;

/// How many chunks of [`super::archive_builder::CHUNK_BYTES`] wait for the connection, beside
/// one being built and one being sent.
const MAX_QUEUED_CHUNKS: usize = 1;

/// Copies a file or a tree to a container.
///
/// The source is copied to `to`, or into `to` if that is a directory. If the container has a shell,
/// new files have a temporary name until they are complete.
pub async fn copy_to(
    container: &dyn Container,
    from: &Path,
    to: &str,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let status = std::fs::symlink_metadata(from);
    let status = status.map_err(|_| Error::NoSource(from.to_path_buf()))?;
    let mut backoff = Backoff::new(options);
    let probing = probe(container, from, to, &mut backoff);
    let plan = Arc::new(options.cancel.run_until_cancelled(probing).await?);
    if !plan.has_tar() {
        if !status.is_file() {
            return Err(Error::MissingProgram {
                program: "tar",
                needed: ": without it only single files can be copied to there, by sh and cat",
            });
        }
        options.emit(CopyEvent::Fallback(
            "there is no tar in the container: copying by cat, without times",
        ));
        let upload = cat_upload::upload(
            container,
            from,
            plan.target(),
            options,
            &mut backoff,
            progress,
        );
        return options.cancel.run_until_cancelled(upload).await;
    }
    let upload = Upload {
        container,
        from,
        plan: &plan,
        options,
        progress,
    };
    let result = options
        .cancel
        .run_with_grace(upload.run(&mut backoff))
        .await;
    // Without retries the remote shell removes its own leftovers.
    if result.is_err() || options.retries != Retries::AtMost(0) {
        plan.clean_up(container).await;
    }
    result.and_then(Skipped::result)
}

async fn probe(
    container: &dyn Container,
    from: &Path,
    to: &str,
    backoff: &mut Backoff,
) -> Result<UploadPlan, Error> {
    loop {
        match UploadPlan::for_local(container, from, to).await {
            Ok(plan) => return Ok(plan),
            Err(error) => {
                let cause = backoff.transient_cause(error)?;
                backoff.wait(&cause, 0).await?;
            }
        }
    }
}

/// One copy, in as many attempts as it takes.
struct Upload<'a> {
    container: &'a dyn Container,
    from: &'a Path,
    plan: &'a Arc<UploadPlan>,
    options: &'a Options,
    progress: &'a Arc<Progress>,
}

/// What to do after a lost connection.
enum AfterDisconnect {
    /// Nothing: the copy is complete.
    AlreadyComplete,
    /// Send the missing files.
    Resume(Arc<RemoteInventory>),
}

impl Upload<'_> {
    /// Returns the number of skipped entries.
    async fn run(&self, backoff: &mut Backoff) -> Result<u64, Error> {
        let mut inventory = Arc::new(RemoteInventory::default());
        loop {
            let sent = self.attempt(&inventory).await;
            let (mut cause, sent) = match sent {
                Ok(AttemptResult::Complete { skipped }) => return Ok(skipped),
                Ok(AttemptResult::Disconnected { cause, sent }) => (cause, sent),
                Err(error) => (backoff.transient_cause(error)?, None),
            };
            inventory = loop {
                backoff.wait(&cause, self.progress.bytes()).await?;
                self.progress.add_retry();
                match (self.query_state().await, sent) {
                    (Ok(AfterDisconnect::AlreadyComplete), skipped) => {
                        return Ok(skipped.unwrap_or_default());
                    }
                    (Ok(AfterDisconnect::Resume(inventory)), _) => break inventory,
                    (Err(error), _) => cause = backoff.transient_cause(error)?,
                }
            };
            let from = match inventory.count() {
                0 => ResumePoint::Start,
                count => ResumePoint::SkippingFiles(count),
            };
            self.options.emit(CopyEvent::Retrying { cause, from });
            self.progress.restart();
        }
    }

    /// Queries the container about the state of the copy.
    async fn query_state(&self) -> Result<AfterDisconnect, Error> {
        self.plan.stop_writer(self.container).await?;
        if self.plan.is_done(self.container).await? {
            return Ok(AfterDisconnect::AlreadyComplete);
        }
        let query = RemoteInventory::query(
            self.container,
            self.from,
            self.plan,
            self.options,
            self.progress,
        );
        Ok(AfterDisconnect::Resume(Arc::new(query.await?)))
    }

    async fn attempt(&self, inventory: &Arc<RemoteInventory>) -> Result<AttemptResult, Error> {
        let command = self.plan.command(self.options);
        let process = self.container.run(command, Stdin::Piped).await?;
        let Process {
            stdin,
            stdout,
            stderr,
            exit,
        } = process;
        let (chunks, mut queue) = mpsc::channel::<Vec<u8>>(MAX_QUEUED_CHUNKS);
        let building = {
            let (from, plan) = (self.from.to_path_buf(), self.plan.clone());
            let (options, progress) = (self.options.clone(), self.progress.clone());
            let inventory = inventory.clone();
            tokio::task::spawn_blocking(move || {
                build_archive(&from, &plan, &inventory, &options, &progress, chunks)
            })
        };
        let (announced, is_announced) = oneshot::channel();
        let sending = async {
            let Some(mut stdin) = stdin else {
                return Ok(None);
            };
            let range = async {
                let _ = is_announced.await;
                while let Some(chunk) = queue.recv().await {
                    if stdin.write_all(&chunk).await.is_err() {
                        return false;
                    }
                }
                true
            };
            // When cancelled, closing stdin ends the remote tar.
            let is_sent = tokio::select! {
                is_sent = range => is_sent,
                () = self.options.cancel.cancelled() => false,
            };
            // The builder stops when its receiver is closed.
            drop(queue);
            let built = match building.await {
                Ok(built) => built?,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            };
            let BuildResult::All { skipped } = built else {
                return Ok(None);
            };
            if !is_sent {
                return Ok(None);
            }
            let mut end = Vec::new();
            tar::write_end(&mut end);
            // tar may exit as soon as it has seen the beginning of the end marker.
            let _ = stdin.write_all(&end).await;
            let _ = stdin.shutdown().await;
            Ok::<_, Error>(Some(skipped))
        };
        let (sent_all, (), stderr, status) = tokio::try_join!(
            sending,
            async {
                self.plan.read_announcement(stdout, announced).await;
                Ok(())
            },
            async { Ok(read_stderr(stderr).await) },
            async { Ok(exit.await) }
        )?;
        if sent_all.is_none() && self.options.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let exit = CommandEnd::new(&status, &stderr);
        if !matches!(exit, CommandEnd::Disconnected(_)) {
            self.plan.writer_ended();
        }
        match (exit, sent_all) {
            (CommandEnd::Success, Some(skipped)) => Ok(AttemptResult::Complete { skipped }),
            (CommandEnd::Success, None) => Err(Error::CommandFailed {
                program: "tar",
                how: "ended before everything was sent".to_owned(),
                stderr,
            }),
            (CommandEnd::Disconnected(cause), sent) => {
                Ok(AttemptResult::Disconnected { cause, sent })
            }
            (CommandEnd::NotFound, _) => Err(Error::MissingProgram {
                program: "tar",
                needed: ", and no shell, which would replace it",
            }),
            (CommandEnd::Failed(how), _) => Err(Error::CommandFailed {
                program: "tar",
                how,
                stderr,
            }),
            (CommandEnd::NotRun(message), _) => Err(Error::NotRun {
                program: "tar",
                message,
            }),
        }
    }
}

enum AttemptResult {
    Complete {
        skipped: u64,
    },
    /// With the number of skipped entries, if everything had been sent.
    Disconnected {
        cause: String,
        sent: Option<u64>,
    },
}

fn build_archive(
    from: &Path,
    plan: &UploadPlan,
    inventory: &RemoteInventory,
    options: &Options,
    progress: &Arc<Progress>,
    chunks: mpsc::Sender<Vec<u8>>,
) -> Result<BuildResult, Error> {
    let (before, after) = plan.wrapper_entries();
    let is_present =
        |name: &[u8], file: &File, status: &Metadata| inventory.contains(name, file, status);
    let sink = move |chunk| chunks.blocking_send(chunk).map_err(|_| SinkClosed);
    let builder = ArchiveBuilder::new(options, progress, &is_present, sink);
    builder.build(from, plan.name().as_bytes(), &before, &after)
}

//! How an upload proceeds in a container: the target, the staging directory, and the available
//! programs.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::commands::{self, reply};
use super::container_exec::{CommandEnd, CommandOutput, Container, capture_output};
use super::copy_spec::{self, RemotePath};
use super::error::Error;
use super::options::Options;
use super::remote_writer;
use super::tar::{Entry, Kind};

/// The longest output of a probe.
const MAX_PROBE_OUTPUT_BYTES: u64 = 4 << 10;

/// How long a container may take to remove incomplete files. A user who cancels does not want to
/// wait, and the connection may be broken.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of an existing target directory in the archive.
pub(super) const CURRENT_DIR: &str = ".";

/// How to upload to this container.
#[derive(Debug)]
pub(super) struct UploadPlan {
    has_tar: bool,
    /// The final path.
    target: String,
    /// The directory for tar's `-C`.
    directory: String,
    /// The name in the archive.
    name: String,
    /// The staging directory, until the upload is complete.
    stage: Option<String>,
    /// Whether the source is copied into an existing directory.
    into_existing: bool,
    /// Whether there is a shell, which announces the writer.
    has_shell: bool,
    writer: remote_writer::LastWriter,
}

impl UploadPlan {
    /// The plan for a local source.
    pub(super) async fn for_local(
        container: &dyn Container,
        from: &Path,
        to: &str,
    ) -> Result<Self, Error> {
        let name_in_target = copy_spec::local_name(from);
        let name_in_target = name_in_target
            .map(|name_in_target| String::from_utf8_lossy(&name_in_target).into_owned());
        let plan = Self::probe(container, name_in_target, to).await?;
        if plan.into_existing && !from.is_dir() {
            return Err(Error::Unexpected(format!(
                "{} is a directory in the container, and {} is not",
                plan.target,
                from.display()
            )));
        }
        Ok(plan)
    }

    /// The plan for a source in another container: its archive determines the type.
    pub(super) async fn for_remote(
        container: &dyn Container,
        from: &RemotePath,
        to: &str,
    ) -> Result<Self, Error> {
        Self::probe(container, from.base.clone(), to).await
    }

    async fn probe(
        container: &dyn Container,
        name_in_target: Option<String>,
        to: &str,
    ) -> Result<Self, Error> {
        let path = RemotePath::new(to);
        let full_path = path.full_path();
        let inner_path = match &name_in_target {
            Some(name_in_target) => format!("{}/{name_in_target}", full_path.trim_end_matches('/')),
            None => full_path.clone(),
        };
        let output = match capture_output(
            container,
            commands::probe(&full_path, &inner_path),
            MAX_PROBE_OUTPUT_BYTES,
        )
        .await?
        {
            CommandOutput {
                exit: CommandEnd::Success,
                stdout,
                ..
            } => String::from_utf8_lossy(&stdout).into_owned(),
            CommandOutput {
                exit: CommandEnd::Disconnected(cause),
                ..
            } => return Err(disconnected(cause)),
            CommandOutput {
                exit: CommandEnd::NotRun(message),
                ..
            } => {
                return Err(Error::NotRun {
                    program: "sh",
                    message,
                });
            }
            // Without a shell, inspects the target as kubectl does.
            CommandOutput {
                exit: CommandEnd::NotFound | CommandEnd::Failed(_),
                ..
            } => {
                let test = capture_output(
                    container,
                    commands::is_directory(&full_path),
                    MAX_PROBE_OUTPUT_BYTES,
                )
                .await?;
                let directory = match test.exit {
                    CommandEnd::Success => reply::DIRECTORY,
                    CommandEnd::Disconnected(cause) => return Err(disconnected(cause)),
                    _ => "",
                };
                format!("{} {directory}", reply::TAR)
            }
        };
        let output_contains = |reply| output.split_whitespace().any(|output| output == reply);
        let has_trailing_slash = path.base.is_none();
        let is_directory_target = output_contains(reply::DIRECTORY) || has_trailing_slash;
        let (target, inner_exists) = if is_directory_target {
            (inner_path, output_contains(reply::INNER))
        } else {
            (full_path, false)
        };
        let into_existing = inner_exists || name_in_target.is_none() && is_directory_target;
        Ok(Self::new(
            &target,
            into_existing,
            output_contains(reply::STAGE),
            output_contains(reply::TAR),
        ))
    }

    /// An existing directory is filled in place; a new target is staged beside its final path.
    pub(super) fn new(target: &str, into_existing: bool, can_stage: bool, has_tar: bool) -> Self {
        let path = RemotePath::new(target);
        let (directory, name) = match (&path.base, into_existing) {
            (Some(name_in_target), false) => (path.directory.clone(), name_in_target.clone()),
            _ => (path.full_path(), CURRENT_DIR.to_owned()),
        };
        let stage = (can_stage && !into_existing && path.base.is_some()).then(temporary_name);
        Self {
            has_tar,
            target: path.full_path(),
            directory,
            name,
            stage,
            into_existing,
            has_shell: can_stage,
            writer: remote_writer::LastWriter::default(),
        }
    }

    pub(super) fn has_tar(&self) -> bool {
        self.has_tar
    }

    /// The final path.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    pub(super) fn command(&self, options: &Options) -> Vec<String> {
        match &self.stage {
            None if self.has_shell => commands::unpack_announced(&self.directory, options.preserve),
            None => commands::unpack(&self.directory, options.preserve),
            Some(stage) => commands::unpack_staged(&self.directory, stage, &self.target, options),
        }
    }

    /// Reads the writer's announcement. No input may be sent before.
    pub(super) async fn read_announcement(
        &self,
        mut stdout: impl AsyncRead + Unpin,
        announced: oneshot::Sender<()>,
    ) {
        if self.has_shell {
            self.writer.read_announcement(&mut stdout).await;
        }
        // The receiver may be gone.
        let _ = announced.send(());
        let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
    }

    /// The name of the source in the archive.
    pub(super) fn name(&self) -> String {
        match &self.stage {
            None => self.name.clone(),
            Some(stage) => format!("{stage}/{}", commands::STAGED_NAME),
        }
    }

    /// The path of an archive name in the container.
    pub(super) fn container_path(&self, name: &str) -> String {
        match self.directory.trim_end_matches('/') {
            "" => format!("/{name}"),
            directory => format!("{directory}/{name}"),
        }
    }

    pub(super) fn wrapper_entries(&self) -> (Vec<Entry>, Vec<Entry>) {
        let Some(stage) = &self.stage else {
            return (Vec::new(), Vec::new());
        };
        // Other users must not see incomplete files.
        let before = Entry {
            mode: 0o700,
            ..Entry::new(format!("{stage}/"), Kind::Directory)
        };
        let after = Entry::new(format!("{stage}/{}", commands::COMPLETE_MARKER), Kind::File);
        (vec![before], vec![after])
    }

    /// Whether everything is in place and only the exit status was lost: the container has to
    /// confirm it.
    pub(super) async fn is_done(&self, container: &dyn Container) -> Result<bool, Error> {
        let Some(stage) = &self.stage else {
            return Ok(false);
        };
        let done = format!("{}/{}", self.container_path(stage), commands::DONE_MARKER);
        match capture_output(container, commands::is_file(&done), MAX_PROBE_OUTPUT_BYTES)
            .await?
            .exit
        {
            CommandEnd::Disconnected(cause) => Err(disconnected(cause)),
            exit => Ok(exit == CommandEnd::Success),
        }
    }

    /// Stops the writer, and removes the staging directory, as far as possible: the connection may
    /// be lost.
    pub(super) async fn clean_up(&self, container: &dyn Container) {
        let stage = self.stage.as_ref().map(|stage| self.container_path(stage));
        let command = match (self.writer.get(), stage) {
            (Some(writer), stage) => commands::stop_writer(&writer, stage.as_deref()),
            (None, Some(stage)) => commands::remove(&stage),
            (None, None) => return,
        };
        let removed = capture_output(container, command, MAX_PROBE_OUTPUT_BYTES);
        let _ = timeout(CLEAN_UP_TIMEOUT, removed).await;
    }

    /// Stops the writer of a lost connection, before its files are inspected or written.
    pub(super) async fn stop_writer(&self, container: &dyn Container) -> Result<(), Error> {
        let Some(writer) = self.writer.get() else {
            return Ok(());
        };
        let stopped = capture_output(
            container,
            commands::stop_writer(&writer, None),
            MAX_PROBE_OUTPUT_BYTES,
        )
        .await?;
        let output = String::from_utf8_lossy(&stopped.stdout);
        match stopped.exit {
            CommandEnd::Disconnected(cause) => Err(disconnected(cause)),
            // The writer may have ended by the next attempt.
            CommandEnd::Success if output.split_whitespace().any(|it| it == reply::BUSY) => {
                let pid = writer.pid();
                Err(disconnected(format!(
                    "process {pid} is still writing to the target"
                )))
            }
            // If no command can be run in the container, the next command reports that.
            _ => Ok(()),
        }
    }

    /// Removes the staging directory before a restart.
    pub(super) async fn discard_staged(&self, container: &dyn Container) -> Result<(), Error> {
        if let Some(stage) = &self.stage {
            let command = commands::remove(&self.container_path(stage));
            if let CommandEnd::Disconnected(cause) =
                capture_output(container, command, MAX_PROBE_OUTPUT_BYTES)
                    .await?
                    .exit
            {
                return Err(disconnected(cause));
            }
        }
        Ok(())
    }

    /// Records that the writer has ended.
    pub(super) fn writer_ended(&self) {
        self.writer.clear();
    }

    /// Whether the upload is staged in a new directory, which contains nothing else.
    pub(super) fn is_staged(&self) -> bool {
        self.stage.is_some()
    }

    /// Whether tar sets the owner and permissions of a file after its content and time.
    pub(super) fn sets_metadata_last(&self) -> bool {
        self.writer.is_root()
    }
}

/// A unique temporary name in a container.
pub(super) fn temporary_name() -> String {
    let number = RandomState::new().hash_one(std::process::id());
    format!(".skewbridge-{number:016x}")
}

pub(super) fn disconnected(cause: String) -> Error {
    Error::Client(crate::error::Error::ConnectionLost {
        server: "of the pod".to_owned(),
        cause,
    })
}

/// The local path of an archive name.
pub(super) fn local_path(from: &Path, plan: &UploadPlan, name: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let archive_name = plan.name();
    let rest = name.strip_prefix(archive_name.as_bytes())?;
    match rest.strip_prefix(b"/") {
        None => rest.is_empty().then(|| from.to_path_buf()),
        Some(rest) => Some(from.join(std::ffi::OsStr::from_bytes(rest))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_targets_are_staged_and_existing_directories_are_filled() {
        // Target, existing, shell: directory, name, staged.
        let rows = [
            ("/tmp/a", false, true, "/tmp", "a", true),
            ("/tmp/a", false, false, "/tmp", "a", false),
            ("/tmp/a", true, true, "/tmp/a", ".", false),
            ("a", false, true, ".", "a", true),
            ("/", true, true, "/", ".", false),
            (".", true, true, ".", ".", false),
        ];
        for (target, into_existing, shell, directory, name, staged) in rows {
            let plan = UploadPlan::new(target, into_existing, shell, true);
            assert_eq!(plan.directory, directory, "{target}");
            assert_eq!(plan.name, name, "{target}");
            assert_eq!(plan.stage.is_some(), staged, "{target}");
        }
    }
}

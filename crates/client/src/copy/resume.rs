//! Completes a large file of which the container has a part. The part's checksum is verified
//! first, and the whole file's checksum afterwards.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archive_builder;
use super::cat_upload::{self, FileRange};
use super::cksum::Cksum;
use super::commands;
use super::container_exec::{CommandEnd, Container, capture_output};
use super::error::Error;
use super::options::{Options, Preserve};
use super::progress::Progress;
use super::upload_plan::{self, UploadPlan};

/// The minimum size of a part: resuming takes two more commands.
const MIN_RESUME_BYTES: u64 = 4 << 20;

/// How many files are completed: an interrupted tar leaves one. Further ones, of another
/// origin, are sent as a whole.
const MAX_RESUMED_FILES: usize = 16;

/// The longest output of `cksum`.
const MAX_CKSUM_OUTPUT_BYTES: u64 = 1 << 10;

/// A part of a file in the container.
#[derive(Debug)]
pub(super) struct PartialFile {
    /// The name in the archive.
    pub(super) name: Vec<u8>,
    /// The path in the container.
    container_path: String,
    /// The local path.
    path: PathBuf,
    size: u64,
    cksum: i64,
}

impl PartialFile {
    /// Adds a file that may be a prefix of a larger local file.
    pub(super) fn add_candidate(
        partial_files: &mut Vec<Self>,
        from: &Path,
        plan: &UploadPlan,
        name: &[u8],
        size: i64,
        cksum: i64,
    ) {
        let partial = || {
            let size = u64::try_from(size)
                .ok()
                .filter(|size| *size >= MIN_RESUME_BYTES)?;
            let path = upload_plan::local_path(from, plan, name)?;
            let status = path.symlink_metadata().ok()?;
            let container_path = plan.container_path(str::from_utf8(name).ok()?);
            (status.is_file() && size < status.len()).then(|| Self {
                name: name.to_vec(),
                container_path,
                path,
                size,
                cksum,
            })
        };
        if partial_files.len() < MAX_RESUMED_FILES
            && let Some(partial) = partial()
        {
            partial_files.push(partial);
        }
    }
}

/// Sends the rest of a file. `None` means that the result differs from the local file, for
/// whatever reason, and has to be sent again. An error means that the connection was lost.
pub(super) async fn resume_file(
    container: &dyn Container,
    plan: &UploadPlan,
    partial: &PartialFile,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Option<Metadata>, Error> {
    let Ok(status) = partial.path.symlink_metadata() else {
        return Ok(None);
    };
    let size = status.len();
    let prefix_cksum = cksum_of_prefix(&partial.path, partial.size).await;
    let prefix_cksum =
        prefix_cksum.filter(|prefix_cksum| i64::from(prefix_cksum.finish()) == partial.cksum);
    let Some(mut cksum) = prefix_cksum.filter(|_| status.is_file() && partial.size < size) else {
        return Ok(None);
    };
    let range = FileRange {
        path: &partial.path,
        from: partial.size,
        to: size,
        cksum: &mut cksum,
    };
    let command = commands::append(&partial.container_path, size);
    match cat_upload::send(container, Some(plan), command, range, progress).await {
        Ok((CommandEnd::Success, _)) => {}
        Ok((CommandEnd::Disconnected(cause), _)) => return Err(upload_plan::disconnected(cause)),
        Err(error @ Error::Client(_)) => return Err(error),
        Ok(_) | Err(_) => return Ok(None),
    }
    let command = match options.preserve {
        Preserve::Yes => {
            let owner = (status.uid().into(), status.gid().into());
            commands::set_metadata(
                &partial.container_path,
                owner,
                status.mode() & 0o7777,
                status.mtime(),
            )
        }
        Preserve::No => commands::checksum(&partial.container_path),
    };
    let output = capture_output(container, command, MAX_CKSUM_OUTPUT_BYTES).await?;
    if let CommandEnd::Disconnected(cause) = output.exit {
        return Err(upload_plan::disconnected(cause));
    }
    let reported =
        parse_cksum_output(&output.stdout).filter(|_| output.exit == CommandEnd::Success);
    Ok((reported == Some((cksum.finish(), size))).then_some(status))
}

/// Parses the `cksum` output for one file.
pub(super) fn parse_cksum_output(reported: &[u8]) -> Option<(u32, u64)> {
    let text = str::from_utf8(reported).ok()?;
    let mut fields = text.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

async fn cksum_of_prefix(path: &Path, length: u64) -> Option<Cksum> {
    let path = path.to_path_buf();
    let summing = tokio::task::spawn_blocking(move || {
        let file = archive_builder::open_file(&path).ok()?;
        Cksum::of(&file, length).ok()?
    });
    summing.await.ok()?
}

//! A large file of which a part is already in the container: the rest is sent, after
//! the part is known to be right by its checksum, and so is the whole afterwards.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archive_builder;
use super::cat_upload::{self, FileRange};
use super::cksum::Cksum;
use super::commands;
use super::container::{CommandEnd, Container, capture_output};
use super::error::Error;
use super::options::{Options, Preserve};
use super::progress::Progress;
use super::upload_plan::{self, UploadPlan};

/// What is there of a file has to be worth two more commands.
const MIN_RESUME_BYTES: u64 = 4 << 20;

/// How many files are gone on with: a tar that was cut leaves one. Further ones, of
/// somebody else, are sent as a whole.
const MAX_RESUMED_FILES: usize = 16;

/// How long the answer of `cksum` may be.
const MAX_CKSUM_OUTPUT_BYTES: u64 = 1 << 10;

/// A part that is there.
#[derive(Debug)]
pub(super) struct PartialFile {
    /// In the archive.
    pub(super) name: Vec<u8>,
    /// In the container.
    copy_spec: String,
    /// Here.
    path: PathBuf,
    size: u64,
    cksum: i64,
}

impl PartialFile {
    /// Keeps what may be the beginning of a file that is larger here.
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
            let copy_spec = plan.copy_spec(str::from_utf8(name).ok()?);
            (status.is_file() && size < status.len()).then(|| Self {
                name: name.to_vec(),
                copy_spec,
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

/// Sends the rest of a file. `None` is that it is not as it is here, for whatever reason,
/// and has to be sent again; an error is that the connection was lost.
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
    let command = commands::resume(&partial.copy_spec, size);
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
                &partial.copy_spec,
                owner,
                status.mode() & 0o7777,
                status.mtime(),
            )
        }
        Preserve::No => commands::checksum(&partial.copy_spec),
    };
    let output = capture_output(container, command, MAX_CKSUM_OUTPUT_BYTES).await?;
    if let CommandEnd::Disconnected(cause) = output.exit {
        return Err(upload_plan::disconnected(cause));
    }
    let reported =
        parse_cksum_output(&output.stdout).filter(|_| output.exit == CommandEnd::Success);
    Ok((reported == Some((cksum.finish(), size))).then_some(status))
}

/// What `cksum` says of one file.
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

//! A large file of which a part is already in the container: the rest is sent, after
//! the part is known to be right by its checksum, and so is the whole afterwards.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cat::{self, Sending};
use super::cksum::Sum;
use super::commands;
use super::container::{Container, Ended, ask};
use super::error::Error;
use super::gather;
use super::options::{Options, Preserve};
use super::tally::Tally;
use super::way::{self, Way};

/// What is there of a file has to be worth two more commands.
const WORTH: u64 = 4 << 20;

/// How many files are gone on with: a tar that was cut leaves one. Further ones, of
/// somebody else, are sent as a whole.
const MOST: usize = 16;

/// How long the answer of `cksum` may be.
const ANSWER: u64 = 1 << 10;

/// A part that is there.
#[derive(Debug)]
pub(super) struct Part {
    /// In the archive.
    pub(super) name: Vec<u8>,
    /// In the container.
    place: String,
    /// Here.
    path: PathBuf,
    size: u64,
    sum: i64,
}

impl Part {
    /// Keeps what may be the beginning of a file that is larger here.
    pub(super) fn note(
        parts: &mut Vec<Self>,
        from: &Path,
        way: &Way,
        name: &[u8],
        size: i64,
        sum: i64,
    ) {
        let part = || {
            let size = u64::try_from(size).ok().filter(|size| *size >= WORTH)?;
            let path = way::local(from, way, name)?;
            let status = path.symlink_metadata().ok()?;
            let place = way.place(str::from_utf8(name).ok()?);
            (status.is_file() && size < status.len()).then(|| Self {
                name: name.to_vec(),
                place,
                path,
                size,
                sum,
            })
        };
        if parts.len() < MOST
            && let Some(part) = part()
        {
            parts.push(part);
        }
    }
}

/// Sends the rest of a file. `None` is that it is not as it is here, for whatever reason,
/// and has to be sent again; an error is that the connection was lost.
pub(super) async fn go_on(
    container: &dyn Container,
    way: &Way,
    part: &Part,
    options: &Options,
    tally: &Arc<Tally>,
) -> Result<Option<Metadata>, Error> {
    let Ok(status) = part.path.symlink_metadata() else {
        return Ok(None);
    };
    let size = status.len();
    let known = sum_of(&part.path, part.size).await;
    let known = known.filter(|known| i64::from(known.finish()) == part.sum);
    let Some(mut sum) = known.filter(|_| status.is_file() && part.size < size) else {
        return Ok(None);
    };
    let sending = Sending {
        path: &part.path,
        from: part.size,
        to: size,
        sum: &mut sum,
    };
    let command = commands::append(&part.place, size);
    match cat::send(container, Some(way), command, sending, tally).await {
        Ok((Ended::Well, _)) => {}
        Ok((Ended::Cut(cause), _)) => return Err(way::cut(cause)),
        Err(error @ Error::Client(_)) => return Err(error),
        Ok(_) | Err(_) => return Ok(None),
    }
    let command = match options.preserve {
        Preserve::Yes => {
            let owner = (status.uid().into(), status.gid().into());
            commands::dress(&part.place, owner, status.mode() & 0o7777, status.mtime())
        }
        Preserve::No => commands::checksum(&part.place),
    };
    let answer = ask(container, command, ANSWER).await?;
    if let Ended::Cut(cause) = answer.ended {
        return Err(way::cut(cause));
    }
    let said = sum_and_size(&answer.stdout).filter(|_| answer.ended == Ended::Well);
    Ok((said == Some((sum.finish(), size))).then_some(status))
}

/// What `cksum` says of one file.
pub(super) fn sum_and_size(said: &[u8]) -> Option<(u32, u64)> {
    let text = str::from_utf8(said).ok()?;
    let mut fields = text.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

async fn sum_of(path: &Path, length: u64) -> Option<Sum> {
    let path = path.to_path_buf();
    let summing = tokio::task::spawn_blocking(move || {
        let file = gather::open(&path).ok()?;
        Sum::of(&file, length).ok()?
    });
    summing.await.ok()?
}

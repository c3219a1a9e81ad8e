//! Extracts an archive to the disk. A file has a temporary name until it is complete, so a file
//! with its final name is complete. A partial file is kept after a lost connection, to be
//! resumed.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, Timespec};
use rustix::io::Errno;

use super::cksum::Cksum;
use super::copy_spec::Destination;
use super::disk_budget::DiskBudget;
use super::error::{Error, Skipped};
use super::options::{CopyEvent, Options, Preserve};
use super::path_containment::{self, RequestedRoot};
use super::progress::Progress;
use super::tar::{Entry, Event, Kind, Reader};
use super::target_tree::{self, FinalMetadata, TargetTree};

/// Extracts an archive below a target.
pub(super) struct Extractor {
    root: RequestedRoot,
    destination: Destination,
    options: Options,
    progress: Arc<Progress>,
    target: Option<ExtractTarget>,
    file: Option<PartialFile>,
    budget: DiskBudget,
    skipped: u64,
    token: u64,
}

/// What is extracted, known from the first entry.
enum ExtractTarget {
    Directory(TargetTree),
    /// One file with this name.
    File(TargetTree, Vec<u8>),
}

/// A file that is not complete.
struct PartialFile {
    directory: Arc<OwnedFd>,
    temporary_name: Vec<u8>,
    name: Vec<u8>,
    path: PathBuf,
    file: File,
    size: u64,
    left: u64,
    mtime: Option<Timespec>,
}

impl Extractor {
    pub(super) fn new(
        root: RequestedRoot,
        destination: Destination,
        options: Options,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            root,
            destination,
            progress,
            target: None,
            file: None,
            budget: DiskBudget::new(options.max_bytes),
            skipped: 0,
            // Unpredictable, so that no other program can create a file with that name.
            token: RandomState::new().hash_one(std::process::id()),
            options,
        }
    }

    /// Processes a chunk of an archive. Returns `true` at the end of the archive.
    pub(super) fn push(&mut self, reader: &mut Reader, mut input: &[u8]) -> Result<bool, Error> {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                Event::Entry(entry) => self.entry(&entry)?,
                Event::Data(data) => self.data(data)?,
                Event::End => return Ok(true),
            }
        }
        Ok(reader.is_complete())
    }

    /// Restarts with a new archive: discards a partial file.
    pub(super) fn restart(&mut self) {
        self.file = None;
        self.skipped = 0;
        self.budget = DiskBudget::new(self.options.max_bytes);
    }

    /// Adds the content of the partial file, if there is one. Returns `false` if it cannot be
    /// read, or if the copy is cancelled.
    pub(super) fn add_partial_file(&self, sum: &mut Cksum) -> bool {
        let Some(partial) = &self.file else {
            return true;
        };
        let should_stop = || self.options.cancel.is_cancelled();
        let added = sum.add_file(&partial.file, partial.size - partial.left, should_stop);
        added.unwrap_or(false)
    }

    /// Finishes, after the whole archive has arrived and the container's tar has succeeded.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        match &mut self.target {
            None => return Err(Error::Unexpected("the archive is empty".to_owned())),
            Some(ExtractTarget::Directory(target_tree)) => target_tree.apply_final_metadata()?,
            Some(ExtractTarget::File(..)) => {}
        }
        Skipped::result(self.skipped)
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Error> {
        if let Some(file) = self.file.take() {
            // A file's content must be complete before the next entry.
            return Err(Error::Unexpected(format!(
                "{} is truncated",
                file.path.display()
            )));
        }
        self.progress.begin_entry(&entry.name);
        let parts = self.relative_parts(&entry.name)?;
        if self.target.is_none() {
            self.target = Some(self.resolve_target(entry, &parts)?);
        }
        let Some(target) = &mut self.target else {
            return Ok(());
        };
        match target {
            ExtractTarget::File(target_tree, name) => {
                if !parts.is_empty() || entry.kind != Kind::File {
                    return Err(Error::Unexpected(format!(
                        "the {} {:?} was not requested",
                        entry.kind,
                        path_containment::printable(&entry.name)
                    )));
                }
                let name = name.clone();
                let directory = target_tree.root().clone();
                let path = target_tree.display_path(&[&name]);
                self.begin(entry, directory, &name, path)
            }
            ExtractTarget::Directory(target_tree) => match (parts.split_last(), entry.kind) {
                (_, Kind::Directory) => {
                    let final_metadata = final_metadata(self.options.preserve, entry);
                    target_tree.enter(&parts, final_metadata)?;
                    Ok(())
                }
                // The first entry was a directory.
                (None, kind) => Err(Error::Unexpected(format!(
                    "{} is a directory and a {kind}",
                    target_tree.display_path(&[]).display()
                ))),
                (Some((name, above)), Kind::File) => {
                    let directory = target_tree.enter(above, None)?;
                    let path = target_tree.display_path(&parts);
                    self.begin(entry, directory, name, path)
                }
                (Some(_), Kind::Symlink) => self.symlink(entry, &parts),
                (Some(_), Kind::HardLink) => self.hard_link(entry, &parts),
                (Some(_), kind @ (Kind::Character | Kind::Block | Kind::Fifo)) => {
                    let path = target_tree.display_path(&parts);
                    self.skip(CopyEvent::Special { path, kind });
                    Ok(())
                }
            },
        }
    }

    fn relative_parts<'a>(&self, name: &'a [u8]) -> Result<Vec<&'a [u8]>, Error> {
        path_containment::relative_parts(&self.root, name).map_err(|why| Error::PathEscape {
            name: path_containment::printable(name),
            why,
        })
    }

    /// The first entry decides whether it is a file or a tree.
    fn resolve_target(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<ExtractTarget, Error> {
        let is_root = parts.is_empty();
        let target = match entry.kind {
            Kind::Directory if is_root => {
                let (mut target_tree, existed) = TargetTree::open(self.destination.directory())?;
                if let Some(final_metadata) = final_metadata(self.options.preserve, entry)
                    && !existed
                {
                    target_tree.record_root(final_metadata)?;
                }
                ExtractTarget::Directory(target_tree)
            }
            Kind::File if is_root => {
                let (directory, name) = self.destination.file(&self.root)?;
                let (target_tree, _) = TargetTree::open(&directory)?;
                let path = target_tree.display_path(&[&name]);
                refuse_special_file(target_tree.root(), &name, &path)?;
                self.progress.expect(entry.size);
                ExtractTarget::File(target_tree, name)
            }
            Kind::Symlink if is_root => {
                return Err(Error::Unexpected(format!(
                    "the requested path is a symlink to {:?}; copy that path, or the directory \
                     behind it by a / at the end",
                    path_containment::printable(&entry.link)
                )));
            }
            kind => {
                return Err(Error::Unexpected(format!(
                    "the requested path is a {kind}, which cannot be copied"
                )));
            }
        };
        Ok(target)
    }

    fn begin(
        &mut self,
        entry: &Entry,
        directory: Arc<OwnedFd>,
        name: &[u8],
        path: PathBuf,
    ) -> Result<(), Error> {
        // Checked before anything is written: a full disk affects all programs.
        let reserved = self.budget.reserve(entry.size, || free_bytes(&directory));
        reserved.map_err(|disk_full| Error::NoSpace {
            name: path_containment::printable(&entry.name),
            size: entry.size,
            available: disk_full.available,
            limit: disk_full.limit,
            target: self.destination.directory().to_path_buf(),
        })?;
        let temporary_name = self.temporary_name();
        // It is read again if the copy is resumed.
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The umask applies; setuid, setgid and sticky bits are never set.
        let mode = match self.options.preserve {
            Preserve::Yes => entry.mode & 0o777,
            Preserve::No => 0o666,
        };
        let file = fs::openat(
            &directory,
            &temporary_name[..],
            flags,
            Mode::from_raw_mode(mode),
        );
        let file = match file {
            Ok(file) => File::from(file),
            Err(errno) => {
                return Err(Error::Local {
                    doing: "write to",
                    path,
                    cause: errno.into(),
                });
            }
        };
        let mut partial = PartialFile {
            directory,
            temporary_name,
            name: name.to_vec(),
            path,
            file,
            size: entry.size,
            left: entry.size,
            mtime: (self.options.preserve == Preserve::Yes).then(|| mtime(entry)),
        };
        if entry.size == 0 {
            partial.put_in_place()?;
        } else {
            self.file = Some(partial);
        }
        Ok(())
    }

    fn data(&mut self, data: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else {
            return Err(Error::Unexpected("content without a file".to_owned()));
        };
        file.file.write_all(data).map_err(|cause| Error::Local {
            doing: "write to",
            path: file.path.clone(),
            cause,
        })?;
        self.progress.add_bytes(data.len());
        file.left = file.left.saturating_sub(data.len() as u64);
        if file.left == 0
            && let Some(mut complete) = self.file.take()
        {
            complete.put_in_place()?;
        }
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<(), Error> {
        let Some(ExtractTarget::Directory(target_tree)) = &mut self.target else {
            return Ok(());
        };
        let Some((name, above)) = parts.split_last() else {
            return Ok(());
        };
        let path = target_tree.display_path(parts);
        if !path_containment::symlink_stays_inside(above.len(), &entry.link) {
            self.skip(CopyEvent::Symlink {
                path,
                target: path_containment::printable(&entry.link),
            });
            return Ok(());
        }
        let directory = target_tree.enter(above, None)?;
        let make = || -> io::Result<()> {
            target_tree::remove_if_present(&directory, name)?;
            fs::symlinkat(&entry.link[..], &directory, *name)?;
            if self.options.preserve == Preserve::Yes {
                let times = target_tree::timestamps(mtime(entry));
                fs::utimensat(&directory, *name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(())
        };
        make().map_err(|cause| target_tree.local_error("make the symlink", parts, cause))
    }

    fn hard_link(&mut self, entry: &Entry, parts: &[&[u8]]) -> Result<(), Error> {
        let target = self.relative_parts(&entry.link)?;
        let Some(ExtractTarget::Directory(target_tree)) = &mut self.target else {
            return Ok(());
        };
        let (Some((to, to_above)), Some((from, from_above))) =
            (parts.split_last(), target.split_last())
        else {
            return Err(Error::Unexpected("a hard link to a directory".to_owned()));
        };
        if parts == target {
            return Ok(());
        }
        let source = target_tree.enter(from_above, None)?;
        let directory = target_tree.enter(to_above, None)?;
        let status = fs::statat(&source, *from, AtFlags::SYMLINK_NOFOLLOW);
        if matches!(status, Err(Errno::NOENT)) {
            // For example, to a skipped FIFO.
            let path = target_tree.display_path(parts);
            self.skip(CopyEvent::HardLink {
                path,
                target: path_containment::printable(&entry.link),
            });
            return Ok(());
        }
        let make = || -> io::Result<()> {
            // Hard links are made only to regular files, not to a symlink that another program
            // could follow.
            if !fs::FileType::from_raw_mode(status?.st_mode).is_file() {
                return Err(io::Error::other(
                    "the target of the hard link is not a regular file",
                ));
            }
            target_tree::remove_if_present(&directory, to)?;
            Ok(fs::linkat(
                &source,
                *from,
                &directory,
                *to,
                AtFlags::empty(),
            )?)
        };
        make().map_err(|cause| target_tree.local_error("make the hard link", parts, cause))
    }

    fn skip(&mut self, event: CopyEvent) {
        self.skipped += 1;
        self.options.emit(event);
    }

    /// A unique temporary name.
    fn temporary_name(&mut self) -> Vec<u8> {
        self.token = self.token.wrapping_add(1);
        format!(".skewbridge-{:016x}.part", self.token).into_bytes()
    }
}

impl PartialFile {
    fn put_in_place(&mut self) -> Result<(), Error> {
        let rename = || -> io::Result<()> {
            if let Some(mtime) = self.mtime {
                fs::futimens(&self.file, &target_tree::timestamps(mtime))?;
            }
            let (directory, name) = (&self.directory, &self.name[..]);
            fs::renameat(directory, &self.temporary_name[..], directory, name)?;
            Ok(())
        };
        rename().map_err(|cause| Error::Local {
            doing: "write to",
            path: self.path.clone(),
            cause,
        })?;
        // There is nothing to remove any more.
        self.temporary_name.clear();
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.temporary_name.is_empty() {
            let _ = target_tree::remove_if_present(&self.directory, &self.temporary_name);
        }
    }
}

/// An explicit target may replace a file or a symlink, but not a device: a copy to /dev/null
/// must not turn it into a file.
fn refuse_special_file(directory: &OwnedFd, name: &[u8], path: &Path) -> Result<(), Error> {
    let existing = match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => fs::FileType::from_raw_mode(status.st_mode),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => {
            return Err(Error::Local {
                doing: "write to",
                path: path.to_path_buf(),
                cause: errno.into(),
            });
        }
    };
    if existing.is_file() || existing.is_symlink() {
        return Ok(());
    }
    Err(Error::Local {
        doing: "write to",
        path: path.to_path_buf(),
        cause: io::Error::other("the target is not a regular file"),
    })
}

/// The free space of a directory's file system, if it is known.
fn free_bytes(directory: &OwnedFd) -> Option<u64> {
    let disk = fs::fstatvfs(directory).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn final_metadata(preserve: Preserve, entry: &Entry) -> Option<FinalMetadata> {
    (preserve == Preserve::Yes).then(|| FinalMetadata {
        mode: entry.mode & 0o777,
        mtime: mtime(entry),
    })
}

fn mtime(entry: &Entry) -> Timespec {
    Timespec {
        tv_sec: entry.mtime,
        tv_nsec: entry.mtime_nanos.into(),
    }
}

#[cfg(test)]
mod tests;

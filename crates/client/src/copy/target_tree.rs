//! Directories below a target by their handles. No symlink is ever followed, neither
//! one that was there nor one that appears at this moment: each step is one `openat`
//! with `O_NOFOLLOW` from the handle before it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::error::Error;

/// How deep a tree may be: a handle is open for each directory on the way, and a
/// process has 1024 of them by default.
const MAX_DEPTH: usize = 512;

/// How much is kept of the directories that were made, so that they have their times and
/// permissions in the end: enough for several hundred thousand.
const MAX_CREATED_BYTES: usize = 32 << 20;

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The directories below a target.
#[derive(Debug)]
pub(super) struct TargetTree {
    path: PathBuf,
    root: Arc<OwnedFd>,
    /// Where we are: names and handles, from the root.
    open_dirs: Vec<(Vec<u8>, Arc<OwnedFd>)>,
    /// Those that we have made, and how they are to be in the end.
    created: Vec<(Box<[u8]>, FinalMetadata)>,
    created_bytes: usize,
}

/// How a directory is to be when everything is in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinalMetadata {
    pub(super) mode: u32,
    pub(super) mtime: Timespec,
}

impl TargetTree {
    /// Below this directory, which is the user's word: symlinks to it are followed.
    /// It is made if it is not there. Also whether it was.
    pub(super) fn open(path: &Path) -> Result<(Self, bool), Error> {
        let local_error = |doing, cause| Error::Local {
            doing,
            path: path.to_path_buf(),
            cause,
        };
        let existed = path.is_dir();
        if !existed {
            std::fs::create_dir_all(path)
                .map_err(|cause| local_error("make the directory", cause))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty())
            .map_err(|errno| local_error("open the directory", errno.into()))?;
        let tree = Self {
            path: path.to_path_buf(),
            root: Arc::new(root),
            open_dirs: Vec::new(),
            created: Vec::new(),
            created_bytes: 0,
        };
        Ok((tree, existed))
    }

    /// Where a name below the target is, for people.
    pub(super) fn display_path(&self, parts: &[&[u8]]) -> PathBuf {
        let mut path = self.path.clone();
        path.extend(parts.iter().map(|part| OsStr::from_bytes(part)));
        path
    }

    /// The handle of the target.
    pub(super) fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// The handle of a directory, made with those above it where there is none. With
    /// a finish it is the archive's word, and kept if the directory is new.
    pub(super) fn enter(
        &mut self,
        parts: &[&[u8]],
        metadata: Option<FinalMetadata>,
    ) -> Result<Arc<OwnedFd>, Error> {
        if parts.len() > MAX_DEPTH {
            return Err(Error::Unexpected(format!(
                "a name is more than {MAX_DEPTH} directories deep"
            )));
        }
        let common = self.open_dirs.iter().zip(parts);
        let common = common.take_while(|((name, _), part)| name == *part).count();
        self.open_dirs.truncate(common);
        for depth in common..parts.len() {
            let metadata = metadata.filter(|_| depth + 1 == parts.len());
            let handle = self.open_or_create(&parts[..=depth], metadata)?;
            self.open_dirs.push((parts[depth].to_vec(), handle));
        }
        Ok(self.current())
    }

    fn current(&self) -> Arc<OwnedFd> {
        self.open_dirs
            .last()
            .map_or_else(|| self.root.clone(), |(_, handle)| handle.clone())
    }

    /// One directory further.
    fn open_or_create(
        &mut self,
        parts: &[&[u8]],
        metadata: Option<FinalMetadata>,
    ) -> Result<Arc<OwnedFd>, Error> {
        let parent = self.current();
        let name = parts[parts.len() - 1];
        let open_dirs = || fs::openat(&parent, name, OPEN_DIRECTORY, Mode::empty());
        match open_dirs() {
            Ok(handle) => return Ok(Arc::new(handle)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(self.not_a_directory(parts, errno)),
        }
        // While we fill it we have to be able to.
        let mode = metadata.map_or(0o777, |metadata| metadata.mode) | 0o700;
        match fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                if let Some(metadata) = metadata {
                    self.record_created(parts, metadata)?;
                }
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.local_error("make the directory", parts, errno.into())),
        }
        match open_dirs() {
            Ok(handle) => Ok(Arc::new(handle)),
            Err(errno) => Err(self.not_a_directory(parts, errno)),
        }
    }

    fn record_created(&mut self, parts: &[&[u8]], metadata: FinalMetadata) -> Result<(), Error> {
        let name = parts.join(&b'/').into_boxed_slice();
        self.created_bytes += name.len() + size_of::<(Box<[u8]>, FinalMetadata)>();
        if self.created_bytes > MAX_CREATED_BYTES {
            return Err(Error::MemoryLimit {
                what: "directories",
                limit: MAX_CREATED_BYTES,
            });
        }
        self.created.push((name, metadata));
        Ok(())
    }

    /// The same for the target itself.
    pub(super) fn record_root(&mut self, metadata: FinalMetadata) -> Result<(), Error> {
        self.record_created(&[], metadata)
    }

    /// Sets times and permissions of what was made, the deepest first: writing into a
    /// directory changes its time.
    pub(super) fn apply_final_metadata(&mut self) -> Result<(), Error> {
        self.created_bytes = 0;
        for (name, metadata) in std::mem::take(&mut self.created).into_iter().rev() {
            let parts: Vec<_> = name
                .split(|&byte| byte == b'/')
                .filter(|part| !part.is_empty())
                .collect();
            let handle = self.enter(&parts, None)?;
            let set = || -> io::Result<()> {
                // What it has now went through the umask.
                let now = fs::fstat(&handle)?.st_mode & 0o777;
                if now & metadata.mode != now {
                    fs::fchmod(&handle, Mode::from_raw_mode(now & metadata.mode))?;
                }
                Ok(fs::futimens(&handle, &timestamps(metadata.mtime))?)
            };
            set().map_err(|cause| self.local_error("set the times of", &parts, cause))?;
        }
        Ok(())
    }

    /// Something that is no directory, where one has to be.
    fn not_a_directory(&self, parts: &[&[u8]], errno: Errno) -> Error {
        match errno {
            // Linux says the one of a symlink to a directory, others the other.
            Errno::NOTDIR | Errno::LOOP | Errno::MLINK => {
                Error::SymlinkInPath(self.display_path(parts))
            }
            errno => self.local_error("open the directory", parts, errno.into()),
        }
    }

    pub(super) fn local_error(
        &self,
        doing: &'static str,
        parts: &[&[u8]],
        cause: io::Error,
    ) -> Error {
        Error::Local {
            doing,
            path: self.display_path(parts),
            cause,
        }
    }
}

/// Changed then, and not read since.
pub(super) fn timestamps(mtime: Timespec) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
        last_modification: mtime,
    }
}

/// Removes a name, if it is there and no directory.
pub(super) fn remove_if_present(directory: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn directories_are_kept_in_mind_by_their_bytes() {
        let scratch = ScratchDir::new();
        let (mut tree, _) = TargetTree::open(scratch.path()).unwrap();
        let (name, metadata) = (
            vec![b'x'; 64 << 10],
            FinalMetadata {
                mode: 0o755,
                mtime: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
            },
        );
        let recorded =
            (0..MAX_CREATED_BYTES).find(|_| tree.record_created(&[&name], metadata).is_err());
        assert_eq!(
            recorded,
            Some(MAX_CREATED_BYTES / (name.len() + size_of::<(Box<[u8]>, FinalMetadata)>()))
        );
    }
}

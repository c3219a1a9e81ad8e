//! Directories below a target, by their file descriptors. No symlink is ever followed, even one
//! that another program creates at this moment: each step is one `openat` with `O_NOFOLLOW`
//! from the previous descriptor.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::error::Error;

/// How deep a tree may be: a descriptor is open for each directory on the path, and a process
/// has 1024 of them by default.
const MAX_DEPTH: usize = 512;

/// How much memory is used for the created directories, whose times and permissions are set at
/// the end: enough for several hundred thousand.
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
    /// The current path: names and descriptors, from the root.
    open_dirs: Vec<(Vec<u8>, Arc<OwnedFd>)>,
    /// The created directories, with their final metadata.
    created: Vec<(Box<[u8]>, FinalMetadata)>,
    created_bytes: usize,
}

/// The metadata of a directory once it is filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinalMetadata {
    pub(super) mode: u32,
    pub(super) mtime: Timespec,
}

impl TargetTree {
    /// Opens this directory, which the user named: symlinks to it are followed. It is created
    /// if it does not exist. Also returns whether it existed.
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

    /// The path of a name below the target, for display.
    pub(super) fn display_path(&self, parts: &[&[u8]]) -> PathBuf {
        let mut path = self.path.clone();
        path.extend(parts.iter().map(|part| OsStr::from_bytes(part)));
        path
    }

    /// The descriptor of the target.
    pub(super) fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// The descriptor of a directory, created with its parents where they do not exist.
    /// `metadata` comes from the archive, and is recorded if the directory is new.
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

    /// Opens or creates the last directory of a path.
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
        // The copy needs access while it fills the directory.
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

    /// Records the metadata of the target itself.
    pub(super) fn record_root(&mut self, metadata: FinalMetadata) -> Result<(), Error> {
        self.record_created(&[], metadata)
    }

    /// Sets times and permissions of the created directories, the deepest first: writing into a
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
                // The current mode went through the umask.
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

    /// The error for something that is not a directory.
    fn not_a_directory(&self, parts: &[&[u8]], errno: Errno) -> Error {
        match errno {
            // For a symlink to a directory, Linux returns the first of these, other systems
            // another one.
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

/// Sets the modification time, and keeps the access time.
pub(super) fn timestamps(mtime: Timespec) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
        last_modification: mtime,
    }
}

/// Removes a name, if it exists and is not a directory.
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
    fn created_directories_are_limited_by_their_memory() {
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

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
const MAX_MADE_BYTES: usize = 32 << 20;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The directories below a target.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    root: Arc<OwnedFd>,
    /// Where we are: names and handles, from the root.
    open: Vec<(Vec<u8>, Arc<OwnedFd>)>,
    /// Those that we have made, and how they are to be in the end.
    made: Vec<(Box<[u8]>, Finish)>,
    made_bytes: usize,
}

/// How a directory is to be when everything is in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finish {
    pub(super) mode: u32,
    pub(super) time: Timespec,
}

impl Tree {
    /// Below this directory, which is the user's word: symlinks to it are followed.
    /// It is made if it is not there. Also whether it was.
    pub(super) fn open(path: &Path) -> Result<(Self, bool), Error> {
        let local = |doing, cause| Error::Local {
            doing,
            path: path.to_path_buf(),
            cause,
        };
        let existed = path.is_dir();
        if !existed {
            std::fs::create_dir_all(path).map_err(|cause| local("make the directory", cause))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty())
            .map_err(|errno| local("open the directory", errno.into()))?;
        let tree = Self {
            path: path.to_path_buf(),
            root: Arc::new(root),
            open: Vec::new(),
            made: Vec::new(),
            made_bytes: 0,
        };
        Ok((tree, existed))
    }

    /// Where a name below the target is, for people.
    pub(super) fn shown(&self, parts: &[&[u8]]) -> PathBuf {
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
        finish: Option<Finish>,
    ) -> Result<Arc<OwnedFd>, Error> {
        if parts.len() > MAX_DEPTH {
            return Err(Error::Unexpected(format!(
                "a name is more than {MAX_DEPTH} directories deep"
            )));
        }
        let common = self.open.iter().zip(parts);
        let common = common.take_while(|((name, _), part)| name == *part).count();
        self.open.truncate(common);
        for depth in common..parts.len() {
            let wish = finish.filter(|_| depth + 1 == parts.len());
            let handle = self.step(&parts[..=depth], wish)?;
            self.open.push((parts[depth].to_vec(), handle));
        }
        Ok(self.here())
    }

    fn here(&self) -> Arc<OwnedFd> {
        self.open
            .last()
            .map_or_else(|| self.root.clone(), |(_, handle)| handle.clone())
    }

    /// One directory further.
    fn step(&mut self, parts: &[&[u8]], finish: Option<Finish>) -> Result<Arc<OwnedFd>, Error> {
        let parent = self.here();
        let name = parts[parts.len() - 1];
        let open = || fs::openat(&parent, name, DIRECTORY, Mode::empty());
        match open() {
            Ok(handle) => return Ok(Arc::new(handle)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(self.refused(parts, errno)),
        }
        // While we fill it we have to be able to.
        let mode = finish.map_or(0o777, |finish| finish.mode) | 0o700;
        match fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                if let Some(finish) = finish {
                    self.keep(parts, finish)?;
                }
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.local("make the directory", parts, errno.into())),
        }
        match open() {
            Ok(handle) => Ok(Arc::new(handle)),
            Err(errno) => Err(self.refused(parts, errno)),
        }
    }

    fn keep(&mut self, parts: &[&[u8]], finish: Finish) -> Result<(), Error> {
        let name = parts.join(&b'/').into_boxed_slice();
        self.made_bytes += name.len() + size_of::<(Box<[u8]>, Finish)>();
        if self.made_bytes > MAX_MADE_BYTES {
            return Err(Error::TooMuch {
                what: "directories",
                limit: MAX_MADE_BYTES,
            });
        }
        self.made.push((name, finish));
        Ok(())
    }

    /// The same for the target itself.
    pub(super) fn keep_root(&mut self, finish: Finish) -> Result<(), Error> {
        self.keep(&[], finish)
    }

    /// Sets times and permissions of what was made, the deepest first: writing into a
    /// directory changes its time.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.made_bytes = 0;
        for (name, finish) in std::mem::take(&mut self.made).into_iter().rev() {
            let parts: Vec<_> = name
                .split(|&byte| byte == b'/')
                .filter(|part| !part.is_empty())
                .collect();
            let handle = self.enter(&parts, None)?;
            let set = || -> io::Result<()> {
                // What it has now went through the umask.
                let now = fs::fstat(&handle)?.st_mode & 0o777;
                if now & finish.mode != now {
                    fs::fchmod(&handle, Mode::from_raw_mode(now & finish.mode))?;
                }
                Ok(fs::futimens(&handle, &at(finish.time))?)
            };
            set().map_err(|cause| self.local("set the times of", &parts, cause))?;
        }
        Ok(())
    }

    /// Something that is no directory, where one has to be.
    fn refused(&self, parts: &[&[u8]], errno: Errno) -> Error {
        match errno {
            // Linux says the one of a symlink to a directory, others the other.
            Errno::NOTDIR | Errno::LOOP | Errno::MLINK => Error::Through(self.shown(parts)),
            errno => self.local("open the directory", parts, errno.into()),
        }
    }

    pub(super) fn local(&self, doing: &'static str, parts: &[&[u8]], cause: io::Error) -> Error {
        Error::Local {
            doing,
            path: self.shown(parts),
            cause,
        }
    }
}

/// Changed then, and not read since.
pub(super) fn at(time: Timespec) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
        last_modification: time,
    }
}

/// Removes a name, if it is there and no directory.
pub(super) fn remove(directory: &OwnedFd, name: &[u8]) -> io::Result<()> {
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
        let (mut tree, _) = Tree::open(scratch.path()).unwrap();
        let (name, finish) = (
            vec![b'x'; 64 << 10],
            Finish {
                mode: 0o755,
                time: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
            },
        );
        let kept = (0..MAX_MADE_BYTES).find(|_| tree.keep(&[&name], finish).is_err());
        assert_eq!(
            kept,
            Some(MAX_MADE_BYTES / (name.len() + size_of::<(Box<[u8]>, Finish)>()))
        );
    }
}

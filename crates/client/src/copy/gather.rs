//! A tree of this machine as an archive, in pieces.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::Error;
use super::options::{Notice, Options};
use super::tally::Tally;
use super::tar::{self, Entry, Kind};

/// In what pieces an archive is made: few calls for large files, many small files
/// in one.
pub(super) const PIECE: usize = 256 << 10;

/// Whoever takes the pieces wants no more.
#[derive(Debug)]
pub(super) struct Stopped;

/// Makes an archive.
pub(super) struct Gatherer<'a, S> {
    sink: S,
    piece: Vec<u8>,
    options: &'a Options,
    tally: &'a Arc<Tally>,
    /// Says which files are there already, by their names in the archive.
    has: &'a (dyn Fn(&[u8], u64, i64) -> bool + Send + Sync),
    skipped: u64,
}

/// How it went.
pub(super) enum Gathered {
    /// All has been handed over, but for so many entries.
    All { skipped: u64 },
    /// Nobody wants it.
    Stopped,
}

enum Failure {
    Stopped,
    Error(Error),
}

impl From<Stopped> for Failure {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl<'a, S: FnMut(Vec<u8>) -> Result<(), Stopped>> Gatherer<'a, S> {
    pub(super) fn new(
        options: &'a Options,
        tally: &'a Arc<Tally>,
        has: &'a (dyn Fn(&[u8], u64, i64) -> bool + Send + Sync),
        sink: S,
    ) -> Self {
        Self {
            sink,
            piece: Vec::with_capacity(PIECE),
            options,
            tally,
            has,
            skipped: 0,
        }
    }

    /// Archives a path under a name, between entries of one's own, and hands over all
    /// but the end.
    pub(super) fn gather(
        mut self,
        source: &Path,
        name: &[u8],
        before: &[Entry],
        after: &[Entry],
    ) -> Result<Gathered, Error> {
        match self.all(source, name, before, after) {
            Ok(()) => Ok(Gathered::All {
                skipped: self.skipped,
            }),
            Err(Failure::Stopped) => Ok(Gathered::Stopped),
            Err(Failure::Error(error)) => Err(error),
        }
    }

    fn all(
        &mut self,
        source: &Path,
        name: &[u8],
        before: &[Entry],
        after: &[Entry],
    ) -> Result<(), Failure> {
        for entry in before {
            tar::write_entry(entry, &mut self.piece);
        }
        self.tree(source, name)?;
        for entry in after {
            tar::write_entry(entry, &mut self.piece);
        }
        self.hand_over()
    }

    fn hand_over(&mut self) -> Result<(), Failure> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        Ok((self.sink)(piece)?)
    }

    /// A tree without recursion: it may be deeper than our stack.
    fn tree(&mut self, source: &Path, name: &[u8]) -> Result<(), Failure> {
        // A slash at the end, or a dot, is followed.
        let status = source.symlink_metadata();
        let status = status.map_err(|_| Error::NoSource(source.to_path_buf()))?;
        let kind = status.file_type();
        if !kind.is_dir() {
            return self.single(source, name, kind);
        }
        let mut waiting: Vec<(PathBuf, Vec<u8>, std::vec::IntoIter<Found>)> = Vec::new();
        waiting.push(self.directory(source.to_path_buf(), name.to_vec())?);
        while let Some((path, name, found)) = waiting.last_mut() {
            let Some((next, kind)) = found.next() else {
                waiting.pop();
                continue;
            };
            let inner = path.join(&next);
            let name = [&name[..], b"/", next.as_bytes()].concat();
            if kind.is_dir() {
                match self.directory(inner, name) {
                    Ok(directory) => waiting.push(directory),
                    Err(Failure::Error(error)) => self.vanished(error)?,
                    Err(stopped) => return Err(stopped),
                }
            } else {
                match self.single(&inner, &name, kind) {
                    Ok(()) => {}
                    Err(Failure::Error(error)) => self.vanished(error)?,
                    Err(stopped) => return Err(stopped),
                }
            }
        }
        Ok(())
    }

    /// What is removed while a tree is copied is left out, and told.
    fn vanished(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Local { path, cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                self.skip(Notice::Vanished(path));
                Ok(())
            }
            error => Err(error),
        }
    }

    fn skip(&mut self, notice: Notice) {
        self.skipped += 1;
        self.options.tell(notice);
    }

    fn directory(&mut self, path: PathBuf, name: Vec<u8>) -> Result<Level, Failure> {
        let local = |cause| Error::Local {
            doing: "read the directory",
            path: path.clone(),
            cause,
        };
        let status = path.metadata().map_err(local)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(local)? {
            let entry = entry.map_err(local)?;
            let kind = entry.file_type().map_err(local)?;
            found.push((entry.file_name(), kind));
        }
        found.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        // What is there already stays as it is: /tmp is not to be ours.
        if name != b"." {
            self.tally.entry(&name);
            let mut slashed = name.clone();
            slashed.push(b'/');
            self.begin(&entry(slashed, Kind::Directory, &status))?;
        }
        Ok((path, name, found.into_iter()))
    }

    fn single(&mut self, path: &Path, name: &[u8], kind: std::fs::FileType) -> Result<(), Failure> {
        if kind.is_file() {
            return self.file(path, name);
        }
        if !kind.is_symlink() {
            // Nobody can read a device or a pipe to its end.
            self.skip(Notice::NoFile(path.to_path_buf()));
            return Ok(());
        }
        let local = |cause| Error::Local {
            doing: "read the symlink",
            path: path.to_path_buf(),
            cause,
        };
        self.tally.entry(name);
        let status = path.symlink_metadata().map_err(local)?;
        let target = path.read_link().map_err(local)?;
        let mut entry = entry(name.to_vec(), Kind::Symlink, &status);
        entry.link = target.as_os_str().as_bytes().to_vec();
        self.begin(&entry)
    }

    fn file(&mut self, path: &Path, name: &[u8]) -> Result<(), Failure> {
        let local = |cause| Error::Local {
            doing: "read",
            path: path.to_path_buf(),
            cause,
        };
        let mut file = open(path).map_err(local)?;
        let status = file.metadata().map_err(local)?;
        if !status.is_file() {
            self.skip(Notice::NoFile(path.to_path_buf()));
            return Ok(());
        }
        let size = status.len();
        self.tally.entry(name);
        if (self.has)(name, size, status.mtime()) {
            self.tally
                .moved(usize::try_from(size).unwrap_or(usize::MAX));
            return Ok(());
        }
        self.begin(&entry(name.to_vec(), Kind::File, &status))?;
        let mut left = size;
        while left > 0 {
            if self.piece.len() >= PIECE {
                self.hand_over()?;
            }
            let room = (PIECE - self.piece.len()) as u64;
            let before = self.piece.len();
            let wanted = room.min(left);
            // One call, straight into the piece.
            let read = (&mut file).take(wanted).read_to_end(&mut self.piece);
            let read = read.map_err(local)?;
            debug_assert_eq!(before + read, self.piece.len());
            self.tally.moved(read);
            left -= read as u64;
            if (read as u64) < wanted {
                return Err(Failure::Error(Error::Shrank {
                    path: path.to_path_buf(),
                    size,
                    read: size - left,
                }));
            }
        }
        self.piece.extend_from_slice(tar::padding(size));
        // Like tar, we send what it was when it was opened.
        if file.metadata().is_ok_and(|now| now.len() > size) {
            self.options.tell(Notice::Grew(path.to_path_buf()));
        }
        Ok(())
    }

    fn begin(&mut self, entry: &Entry) -> Result<(), Failure> {
        if self.piece.len() >= PIECE {
            self.hand_over()?;
        }
        tar::write_entry(entry, &mut self.piece);
        Ok(())
    }
}

type Found = (OsString, std::fs::FileType);

/// A directory that is being gone through.
type Level = (PathBuf, Vec<u8>, std::vec::IntoIter<Found>);

/// What was a file when it was listed may be a symlink now, or a pipe without an end.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

fn entry(name: Vec<u8>, kind: Kind, status: &std::fs::Metadata) -> Entry {
    Entry {
        name,
        kind,
        mode: status.mode() & 0o7777,
        uid: status.uid().into(),
        gid: status.gid().into(),
        size: if kind == Kind::File { status.len() } else { 0 },
        mtime: status.mtime(),
        mtime_nanos: 0,
        link: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    /// Gathers a directory, and does something when its first piece is handed over.
    fn gather(source: &Path, meanwhile: impl Fn()) -> (Result<Gathered, Error>, Vec<Notice>) {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let kept = notices.clone();
        let options = Options {
            notices: Some(Arc::new(move |notice| kept.lock().unwrap().push(notice))),
            ..Options::default()
        };
        let mut first = true;
        let sink = |_| {
            if std::mem::take(&mut first) {
                meanwhile();
            }
            Ok(())
        };
        let tally = Arc::new(Tally::default());
        let gatherer = Gatherer::new(&options, &tally, &|_, _, _| false, sink);
        let outcome = gatherer.gather(source, b"top", &[], &[]);
        let notices = notices.lock().unwrap().clone();
        (outcome, notices)
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", vec![1; 4 * PIECE]);
        let shrink = || {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(PIECE as u64)
        };
        let (gathered, _) = gather(scratch.path(), || shrink().unwrap());
        let Err(Error::Shrank { size, .. }) = gathered else {
            panic!("it did not shrink");
        };
        assert_eq!(size, 4 * PIECE as u64);
    }

    #[test]
    fn a_file_that_grows_is_copied_as_it_was_and_told() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", vec![1; 4 * PIECE]);
        let grow = || {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(8 * PIECE as u64)
        };
        let (gathered, notices) = gather(scratch.path(), || grow().unwrap());
        assert!(matches!(gathered, Ok(Gathered::All { skipped: 0 })));
        assert_eq!(notices, [Notice::Grew(path.clone())]);
    }

    #[test]
    fn what_vanishes_is_left_out_and_told() {
        let scratch = ScratchDir::new();
        scratch.write("a", vec![1; 2 * PIECE]);
        let vanishing = scratch.write("b", "x");
        let directory = scratch.path().join("c");
        std::fs::create_dir(&directory).unwrap();
        let (gathered, notices) = gather(scratch.path(), || {
            std::fs::remove_file(&vanishing).unwrap();
            std::fs::remove_dir(&directory).unwrap();
        });
        assert!(matches!(gathered, Ok(Gathered::All { skipped: 2 })));
        let expected = [vanishing.clone(), directory.clone()].map(Notice::Vanished);
        assert_eq!(notices, expected);
    }

    #[test]
    fn nobody_is_waited_for_at_a_pipe() {
        let scratch = ScratchDir::new();
        let pipe = scratch.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let (gathered, notices) = gather(scratch.path(), || ());
        assert!(matches!(gathered, Ok(Gathered::All { skipped: 1 })));
        assert_eq!(notices, [Notice::NoFile(pipe)]);
    }
}

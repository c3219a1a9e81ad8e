//! A tree of this machine as an archive, in pieces.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::Error;
use super::levels::{Levels, Next, Sort};
use super::options::{Notice, Options};
use super::tally::Tally;
use super::tar::{self, Entry, Kind};

/// In what pieces an archive is made: few calls for large files, many small files
/// in one.
pub(super) const PIECE: usize = 64 << 10;

/// How full a piece is made, so that the padding behind a file still fits: a piece that
/// had to grow would take twice as much.
const FULL: usize = PIECE - tar::BLOCK;

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
    has: &'a Has<'a>,
    skipped: u64,
}

/// Whether a file is there already: by its name in the archive, and as it is here.
pub(super) type Has<'a> = dyn Fn(&[u8], &File, &Metadata) -> bool + Send + Sync + 'a;

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
        has: &'a Has<'a>,
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
            return self.single(source, name, kind.into());
        }
        let mut levels = Levels::default();
        // The way to where we are: here, and in the archive.
        let (mut path, mut name) = (source.to_path_buf(), name.to_vec());
        self.directory(&path, &name, &mut levels)?;
        loop {
            let (inner, sort) = match levels.next() {
                Next::Name(inner, sort) => (inner, sort),
                Next::Left => {
                    up(&mut path, &mut name);
                    continue;
                }
                Next::End => return Ok(()),
            };
            path.push(OsStr::from_bytes(inner));
            name.push(b'/');
            name.extend_from_slice(inner);
            let gone_through = match sort {
                Sort::Directory => self.directory(&path, &name, &mut levels),
                sort => self.single(&path, &name, sort),
            };
            match gone_through {
                Ok(()) if sort == Sort::Directory => continue,
                Ok(()) => {}
                Err(Failure::Error(error)) => self.vanished(error)?,
                Err(stopped) => return Err(stopped),
            }
            up(&mut path, &mut name);
        }
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

    /// Its entry, and its names onto the levels.
    fn directory(&mut self, path: &Path, name: &[u8], levels: &mut Levels) -> Result<(), Failure> {
        let local = |cause| Error::Local {
            doing: "read the directory",
            path: path.to_path_buf(),
            cause,
        };
        let status = path.metadata().map_err(local)?;
        let entries = std::fs::read_dir(path).map_err(local)?;
        levels.enter();
        if let Err(error) = self.names(path, entries, levels) {
            levels.leave();
            return Err(error.into());
        }
        // What is there already stays as it is: /tmp is not to be ours.
        if name != b"." {
            self.tally.entry(name);
            self.begin(&entry([name, b"/"].concat(), Kind::Directory, &status))?;
        }
        Ok(())
    }

    fn names(
        &mut self,
        path: &Path,
        entries: std::fs::ReadDir,
        levels: &mut Levels,
    ) -> Result<(), Error> {
        let local = |cause| Error::Local {
            doing: "read the directory",
            path: path.to_path_buf(),
            cause,
        };
        for found in entries {
            let found = found.map_err(local)?;
            match found.file_type() {
                Ok(kind) => levels.add(found.file_name().as_bytes(), kind.into())?,
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                    self.skip(Notice::Vanished(found.path()));
                }
                Err(cause) => return Err(local(cause)),
            }
        }
        levels.sort();
        Ok(())
    }

    fn single(&mut self, path: &Path, name: &[u8], sort: Sort) -> Result<(), Failure> {
        if sort == Sort::File {
            return self.file(path, name);
        }
        if sort != Sort::Symlink {
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
        if (self.has)(name, &file, &status) {
            self.tally
                .moved(usize::try_from(size).unwrap_or(usize::MAX));
            return Ok(());
        }
        self.begin(&entry(name.to_vec(), Kind::File, &status))?;
        let mut left = size;
        let ended = loop {
            if self.piece.len() >= FULL {
                self.hand_over()?;
            }
            let room = (FULL - self.piece.len()) as u64;
            // Asked for a byte more than there should be, a small file says by the same
            // call that it has ended.
            let wanted = usize::try_from(room.min(left + 1)).unwrap_or(FULL);
            let read = fill(&mut file, &mut self.piece, wanted).map_err(local)?;
            if read == 0 && left > 0 {
                return Err(Failure::Error(Error::Shrank {
                    path: path.to_path_buf(),
                    size,
                    read: size - left,
                }));
            }
            if read as u64 > left {
                self.piece.pop();
            }
            let came = (read as u64).min(left);
            self.tally.moved(usize::try_from(came).unwrap_or_default());
            left -= came;
            if left == 0 {
                break read < wanted;
            }
        };
        self.piece.extend_from_slice(tar::padding(size));
        // Like tar, we send what it was when it was opened.
        if !ended && file.metadata().is_ok_and(|now| now.len() > size) {
            self.options.tell(Notice::Grew(path.to_path_buf()));
        }
        Ok(())
    }

    fn begin(&mut self, entry: &Entry) -> Result<(), Failure> {
        if !self.piece.is_empty() && self.piece.len() + tar::entry_length(entry) > FULL {
            self.hand_over()?;
        }
        tar::write_entry(entry, &mut self.piece);
        Ok(())
    }
}

/// From something in a directory to the directory.
fn up(path: &mut PathBuf, name: &mut Vec<u8>) {
    path.pop();
    let slash = name.iter().rposition(|&byte| byte == b'/');
    name.truncate(slash.unwrap_or(name.len()));
}

/// Reads once, behind what is there.
fn fill(file: &mut File, piece: &mut Vec<u8>, wanted: usize) -> io::Result<usize> {
    let before = piece.len();
    piece.resize(before + wanted, 0);
    let read = loop {
        match file.read(&mut piece[before..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    piece.truncate(before + read.as_ref().map_or(0, |read| *read));
    read
}

/// What was a file when it was listed may be a symlink now, or a pipe without an end.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

fn entry(name: Vec<u8>, kind: Kind, status: &Metadata) -> Entry {
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

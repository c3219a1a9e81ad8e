//! Builds a tar archive of a local tree, in chunks.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::dir_stack::{DirStack, FileKind, Step};
use super::error::Error;
use super::options::{CopyEvent, Options};
use super::progress::Progress;
use super::tar::{self, Entry, Kind};

/// The size of a chunk: few calls for large files, many small files in one chunk.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// When a chunk is flushed, so that the padding of a file still fits: growing a chunk would
/// double its memory.
const FLUSH_THRESHOLD: usize = CHUNK_BYTES - tar::BLOCK_BYTES;

/// The receiver of the chunks was closed.
#[derive(Debug)]
pub(super) struct SinkClosed;

/// Builds an archive.
pub(super) struct ArchiveBuilder<'a, S> {
    sink: S,
    chunk: Vec<u8>,
    options: &'a Options,
    progress: &'a Arc<Progress>,
    /// Decides which files the container already has, by their names in the archive.
    is_present: &'a IsPresent<'a>,
    skipped: u64,
}

/// Whether the container already has a file: by its name in the archive, and its local
/// metadata.
pub(super) type IsPresent<'a> = dyn Fn(&[u8], &File, &Metadata) -> bool + Send + Sync + 'a;

/// How the build ended.
pub(super) enum BuildResult {
    /// Everything was sent, except for this many skipped entries.
    All { skipped: u64 },
    /// The receiver was closed.
    SinkClosed,
}

enum BuildError {
    SinkClosed,
    Error(Error),
}

impl From<SinkClosed> for BuildError {
    fn from(SinkClosed: SinkClosed) -> Self {
        Self::SinkClosed
    }
}

impl From<Error> for BuildError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl<'a, S: FnMut(Vec<u8>) -> Result<(), SinkClosed>> ArchiveBuilder<'a, S> {
    pub(super) fn new(
        options: &'a Options,
        progress: &'a Arc<Progress>,
        is_present: &'a IsPresent<'a>,
        sink: S,
    ) -> Self {
        Self {
            sink,
            chunk: Vec::with_capacity(CHUNK_BYTES),
            options,
            progress,
            is_present,
            skipped: 0,
        }
    }

    /// Archives a path under a name, with extra entries before and after, and sends everything
    /// but the end-of-archive marker.
    pub(super) fn build(
        mut self,
        source: &Path,
        name: &[u8],
        before: &[Entry],
        after: &[Entry],
    ) -> Result<BuildResult, Error> {
        match self.write_all(source, name, before, after) {
            Ok(()) => Ok(BuildResult::All {
                skipped: self.skipped,
            }),
            Err(BuildError::SinkClosed) => Ok(BuildResult::SinkClosed),
            Err(BuildError::Error(error)) => Err(error),
        }
    }

    fn write_all(
        &mut self,
        source: &Path,
        name: &[u8],
        before: &[Entry],
        after: &[Entry],
    ) -> Result<(), BuildError> {
        for entry in before {
            tar::write_entry(entry, &mut self.chunk);
        }
        self.walk(source, name)?;
        for entry in after {
            tar::write_entry(entry, &mut self.chunk);
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), BuildError> {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        Ok((self.sink)(chunk)?)
    }

    /// Walks a tree without recursion: a tree may be deeper than the stack of the thread.
    fn walk(&mut self, source: &Path, name: &[u8]) -> Result<(), BuildError> {
        // A trailing slash or dot follows a symlink.
        let status = source.symlink_metadata();
        let status = status.map_err(|_| Error::NoSource(source.to_path_buf()))?;
        let kind = status.file_type();
        if !kind.is_dir() {
            return self.add_non_directory(source, name, kind.into());
        }
        let mut stack = DirStack::default();
        // The current position: the local path, and the name in the archive.
        let (mut path, mut name) = (source.to_path_buf(), name.to_vec());
        self.add_directory(&path, &name, &mut stack)?;
        loop {
            let (child, kind) = match stack.next() {
                Step::Entry(child, kind) => (child, kind),
                Step::LeaveDirectory => {
                    pop_component(&mut path, &mut name);
                    continue;
                }
                Step::End => return Ok(()),
            };
            path.push(OsStr::from_bytes(child));
            name.push(b'/');
            name.extend_from_slice(child);
            let added = match kind {
                FileKind::Directory => self.add_directory(&path, &name, &mut stack),
                kind => self.add_non_directory(&path, &name, kind),
            };
            match added {
                Ok(()) if kind == FileKind::Directory => continue,
                Ok(()) => {}
                Err(BuildError::Error(error)) => self.skip_vanished(error)?,
                Err(closed) => return Err(closed),
            }
            pop_component(&mut path, &mut name);
        }
    }

    /// Files that vanish during the copy are skipped and reported.
    fn skip_vanished(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Local { path, cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                self.skip(CopyEvent::Vanished(path));
                Ok(())
            }
            error => Err(error),
        }
    }

    fn skip(&mut self, event: CopyEvent) {
        self.skipped += 1;
        self.options.emit(event);
    }

    /// Adds a directory's entry, and pushes its names onto the stack.
    fn add_directory(
        &mut self,
        path: &Path,
        name: &[u8],
        stack: &mut DirStack,
    ) -> Result<(), BuildError> {
        let local_error = |cause| Error::Local {
            doing: "read the directory",
            path: path.to_path_buf(),
            cause,
        };
        let status = path.metadata().map_err(local_error)?;
        let entries = std::fs::read_dir(path).map_err(local_error)?;
        stack.enter();
        if let Err(error) = self.read_names(path, entries, stack) {
            stack.leave();
            return Err(error.into());
        }
        // The existing target directory keeps its metadata: copying into /tmp must not change
        // its owner.
        if name != b"." {
            self.progress.begin_entry(name);
            self.begin_entry(&new_entry([name, b"/"].concat(), Kind::Directory, &status))?;
        }
        Ok(())
    }

    fn read_names(
        &mut self,
        path: &Path,
        entries: std::fs::ReadDir,
        stack: &mut DirStack,
    ) -> Result<(), Error> {
        let local_error = |cause| Error::Local {
            doing: "read the directory",
            path: path.to_path_buf(),
            cause,
        };
        for found in entries {
            let found = found.map_err(local_error)?;
            match found.file_type() {
                Ok(kind) => stack.add(found.file_name().as_bytes(), kind.into())?,
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                    self.skip(CopyEvent::Vanished(found.path()));
                }
                Err(cause) => return Err(local_error(cause)),
            }
        }
        stack.sort();
        Ok(())
    }

    fn add_non_directory(
        &mut self,
        path: &Path,
        name: &[u8],
        kind: FileKind,
    ) -> Result<(), BuildError> {
        if kind == FileKind::File {
            return self.add_file(path, name);
        }
        if kind != FileKind::Symlink {
            // Devices and pipes have no end.
            self.skip(CopyEvent::NotRegularFile(path.to_path_buf()));
            return Ok(());
        }
        let local_error = |cause| Error::Local {
            doing: "read the symlink",
            path: path.to_path_buf(),
            cause,
        };
        self.progress.begin_entry(name);
        let status = path.symlink_metadata().map_err(local_error)?;
        let target = path.read_link().map_err(local_error)?;
        let mut entry = new_entry(name.to_vec(), Kind::Symlink, &status);
        entry.link = target.as_os_str().as_bytes().to_vec();
        self.begin_entry(&entry)
    }

    fn add_file(&mut self, path: &Path, name: &[u8]) -> Result<(), BuildError> {
        let local_error = |cause| Error::Local {
            doing: "read",
            path: path.to_path_buf(),
            cause,
        };
        let mut file = open_file(path).map_err(local_error)?;
        let status = file.metadata().map_err(local_error)?;
        if !status.is_file() {
            self.skip(CopyEvent::NotRegularFile(path.to_path_buf()));
            return Ok(());
        }
        let size = status.len();
        self.progress.begin_entry(name);
        if (self.is_present)(name, &file, &status) {
            self.progress
                .add_bytes(usize::try_from(size).unwrap_or(usize::MAX));
            return Ok(());
        }
        self.begin_entry(&new_entry(name.to_vec(), Kind::File, &status))?;
        let mut left = size;
        let is_eof = loop {
            if self.chunk.len() >= FLUSH_THRESHOLD {
                self.flush()?;
            }
            let room = (FLUSH_THRESHOLD - self.chunk.len()) as u64;
            // Reading one byte more than expected detects the end of a small file with the same
            // call.
            let wanted = usize::try_from(room.min(left + 1)).unwrap_or(FLUSH_THRESHOLD);
            let read = read_once(&mut file, &mut self.chunk, wanted).map_err(local_error)?;
            if read == 0 && left > 0 {
                return Err(BuildError::Error(Error::FileShrank {
                    path: path.to_path_buf(),
                    size,
                    read: size - left,
                }));
            }
            if read as u64 > left {
                self.chunk.pop();
            }
            let received = (read as u64).min(left);
            self.progress
                .add_bytes(usize::try_from(received).unwrap_or_default());
            left -= received;
            if left == 0 {
                break read < wanted;
            }
        };
        self.chunk.extend_from_slice(tar::padding(size));
        // Like tar, we send the size that the file had when it was opened.
        if !is_eof && file.metadata().is_ok_and(|now| now.len() > size) {
            self.options.emit(CopyEvent::Grew(path.to_path_buf()));
        }
        Ok(())
    }

    fn begin_entry(&mut self, entry: &Entry) -> Result<(), BuildError> {
        if !self.chunk.is_empty() && self.chunk.len() + tar::entry_length(entry) > FLUSH_THRESHOLD {
            self.flush()?;
        }
        tar::write_entry(entry, &mut self.chunk);
        Ok(())
    }
}

/// Removes the last component of both paths.
fn pop_component(path: &mut PathBuf, name: &mut Vec<u8>) {
    path.pop();
    let slash = name.iter().rposition(|&byte| byte == b'/');
    name.truncate(slash.unwrap_or(name.len()));
}

/// Reads once, appending to the chunk.
fn read_once(file: &mut File, chunk: &mut Vec<u8>, wanted: usize) -> io::Result<usize> {
    let before = chunk.len();
    chunk.resize(before + wanted, 0);
    let read = loop {
        match file.read(&mut chunk[before..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    chunk.truncate(before + read.as_ref().map_or(0, |read| *read));
    read
}

/// Opens a file that may have become a symlink or a FIFO since it was listed, without following
/// or blocking.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

fn new_entry(name: Vec<u8>, kind: Kind, status: &Metadata) -> Entry {
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

    /// Archives a directory, and calls a function when the first chunk is sent.
    fn build(
        source: &Path,
        on_first_chunk: impl Fn(),
    ) -> (Result<BuildResult, Error>, Vec<CopyEvent>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let captured = events.clone();
        let options = Options {
            on_event: Some(Arc::new(move |event| captured.lock().unwrap().push(event))),
            ..Options::default()
        };
        let mut first = true;
        let sink = |_| {
            if std::mem::take(&mut first) {
                on_first_chunk();
            }
            Ok(())
        };
        let progress = Arc::new(Progress::default());
        let builder = ArchiveBuilder::new(&options, &progress, &|_, _, _| false, sink);
        let outcome = builder.build(source, b"top", &[], &[]);
        let events = events.lock().unwrap().clone();
        (outcome, events)
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", vec![1; 4 * CHUNK_BYTES]);
        let shrink = || {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(CHUNK_BYTES as u64)
        };
        let (built, _) = build(scratch.path(), || shrink().unwrap());
        let Err(Error::FileShrank { size, .. }) = built else {
            panic!("the file did not shrink");
        };
        assert_eq!(size, 4 * CHUNK_BYTES as u64);
    }

    #[test]
    fn a_file_that_grows_is_copied_with_its_old_size_and_reported() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", vec![1; 4 * CHUNK_BYTES]);
        let grow = || {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(8 * CHUNK_BYTES as u64)
        };
        let (built, events) = build(scratch.path(), || grow().unwrap());
        assert!(matches!(built, Ok(BuildResult::All { skipped: 0 })));
        assert_eq!(events, [CopyEvent::Grew(path.clone())]);
    }

    #[test]
    fn vanished_files_are_skipped_and_reported() {
        let scratch = ScratchDir::new();
        scratch.write("a", vec![1; 2 * CHUNK_BYTES]);
        let vanishing = scratch.write("b", "x");
        let directory = scratch.path().join("c");
        std::fs::create_dir(&directory).unwrap();
        let (built, events) = build(scratch.path(), || {
            std::fs::remove_file(&vanishing).unwrap();
            std::fs::remove_dir(&directory).unwrap();
        });
        assert!(matches!(built, Ok(BuildResult::All { skipped: 2 })));
        let expected = [vanishing.clone(), directory.clone()].map(CopyEvent::Vanished);
        assert_eq!(events, expected);
    }

    #[test]
    fn reading_does_not_block_on_a_fifo() {
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
        let (built, events) = build(scratch.path(), || ());
        assert!(matches!(built, Ok(BuildResult::All { skipped: 1 })));
        assert_eq!(events, [CopyEvent::NotRegularFile(pipe)]);
    }
}

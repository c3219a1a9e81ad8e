//! The stack of directories on a walk: the names of all open directories, stored contiguously.

use super::error::Error;

/// How much memory the names may take. A tree of any size needs only the names of the
/// directories on the current path; one directory would need a million entries to exceed this.
const MAX_NAME_BYTES: usize = 32 << 20;

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

impl From<std::fs::FileType> for FileKind {
    fn from(kind: std::fs::FileType) -> Self {
        if kind.is_file() {
            Self::File
        } else if kind.is_dir() {
            Self::Directory
        } else if kind.is_symlink() {
            Self::Symlink
        } else {
            Self::Other
        }
    }
}

/// The stack.
#[derive(Debug)]
pub(super) struct DirStack {
    bytes: Vec<u8>,
    names: Vec<StoredName>,
    frames: Vec<Frame>,
    limit: usize,
}

#[derive(Debug, Clone, Copy)]
struct StoredName {
    start: u32,
    length: u16,
    sort: FileKind,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    bytes: usize,
    names: usize,
    next: usize,
}

/// The next step of a walk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// An entry of the innermost directory.
    Entry(&'a [u8], FileKind),
    /// The innermost directory has been left.
    LeaveDirectory,
    /// The walk is complete.
    End,
}

impl Default for DirStack {
    fn default() -> Self {
        Self::with_limit(MAX_NAME_BYTES)
    }
}

impl DirStack {
    fn with_limit(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            names: Vec::new(),
            frames: Vec::new(),
            limit,
        }
    }

    /// Enters a directory; its names follow.
    pub(super) fn enter(&mut self) {
        self.frames.push(Frame {
            bytes: self.bytes.len(),
            names: self.names.len(),
            next: self.names.len(),
        });
    }

    /// Adds a name of the innermost directory.
    pub(super) fn add(&mut self, name: &[u8], sort: FileKind) -> Result<(), Error> {
        let taken =
            self.bytes.len() + name.len() + (self.names.len() + 1) * size_of::<StoredName>();
        let copy_spec = (u32::try_from(self.bytes.len()), u16::try_from(name.len()));
        let (true, (Ok(start), Ok(length))) = (taken <= self.limit, copy_spec) else {
            return Err(Error::MemoryLimit {
                what: "names in a directory",
                limit: self.limit,
            });
        };
        self.bytes.extend_from_slice(name);
        self.names.push(StoredName {
            start,
            length,
            sort,
        });
        Ok(())
    }

    /// Sorts the names of the innermost directory.
    pub(super) fn sort(&mut self) {
        if let Some(frame) = self.frames.last() {
            let bytes = &self.bytes;
            self.names[frame.names..].sort_unstable_by(|left, right| {
                let (left, right) = (left.slice(bytes), right.slice(bytes));
                left.cmp(right)
            });
        }
    }

    /// Advances the walk.
    pub(super) fn next(&mut self) -> Step<'_> {
        let Some(frame) = self.frames.last_mut() else {
            return Step::End;
        };
        let Some(name) = self.names.get(frame.next) else {
            self.leave();
            return Step::LeaveDirectory;
        };
        frame.next += 1;
        Step::Entry(name.slice(&self.bytes), name.sort)
    }

    /// Leaves the innermost directory.
    pub(super) fn leave(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.bytes.truncate(frame.bytes);
            self.names.truncate(frame.names);
        }
    }
}

impl StoredName {
    fn slice(self, bytes: &[u8]) -> &[u8] {
        let start = self.start as usize;
        &bytes[start..start + usize::from(self.length)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(stack: &mut DirStack, names: &[(&str, FileKind)]) {
        stack.enter();
        for (name, sort) in names {
            stack.add(name.as_bytes(), *sort).unwrap();
        }
        stack.sort();
    }

    #[test]
    fn names_are_sorted_and_directories_are_left() {
        let mut stack = DirStack::default();
        enter(
            &mut stack,
            &[("c", FileKind::File), ("a", FileKind::Directory)],
        );
        assert_eq!(stack.next(), Step::Entry(b"a", FileKind::Directory));
        enter(
            &mut stack,
            &[("z", FileKind::Other), ("b", FileKind::Symlink)],
        );
        assert_eq!(stack.next(), Step::Entry(b"b", FileKind::Symlink));
        assert_eq!(stack.next(), Step::Entry(b"z", FileKind::Other));
        assert_eq!(stack.next(), Step::LeaveDirectory);
        assert_eq!(stack.next(), Step::Entry(b"c", FileKind::File));
        assert_eq!(stack.next(), Step::LeaveDirectory);
        assert_eq!(stack.next(), Step::End);
        assert!(stack.bytes.is_empty() && stack.names.is_empty());
    }

    #[test]
    fn exceeding_the_limit_is_an_error_and_left_directories_do_not_count() {
        let mut stack = DirStack::with_limit(4096);
        for _ in 0..100 {
            enter(&mut stack, &[(&"x".repeat(2000), FileKind::File)]);
            stack.leave();
        }
        stack.enter();
        stack.add(&[b'x'; 2000], FileKind::File).unwrap();
        stack.enter();
        let error = stack.add(&[b'x'; 2100], FileKind::File).unwrap_err();
        let expected = "there are more names in a directory than are kept in memory (4096 \
                        bytes); copy the source in parts";
        assert_eq!(error.to_string(), expected);
    }
}

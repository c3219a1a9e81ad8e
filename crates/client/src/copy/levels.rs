//! The names in directories that are being gone through, from the outermost to the
//! innermost, one behind the other in memory.

use super::error::Error;

/// How much they may take together. A tree of any size is gone through with the names of
/// one way down; a directory would need a million entries.
const MAX_BYTES: usize = 32 << 20;

/// What something in a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    File,
    Directory,
    Symlink,
    Other,
}

impl From<std::fs::FileType> for Sort {
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

/// The names, in order.
#[derive(Debug)]
pub(super) struct Levels {
    text: Vec<u8>,
    names: Vec<Name>,
    open: Vec<Level>,
    limit: usize,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    start: u32,
    length: u16,
    sort: Sort,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    text: usize,
    names: usize,
    next: usize,
}

/// Where one is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// At this one of the innermost directory.
    Name(&'a [u8], Sort),
    /// Behind the last of a directory, which has been left.
    Left,
    /// Behind the last of all.
    End,
}

impl Default for Levels {
    fn default() -> Self {
        Self::with_limit(MAX_BYTES)
    }
}

impl Levels {
    fn with_limit(limit: usize) -> Self {
        Self {
            text: Vec::new(),
            names: Vec::new(),
            open: Vec::new(),
            limit,
        }
    }

    /// Goes into a directory, whose names follow.
    pub(super) fn enter(&mut self) {
        self.open.push(Level {
            text: self.text.len(),
            names: self.names.len(),
            next: self.names.len(),
        });
    }

    /// One of its names.
    pub(super) fn add(&mut self, name: &[u8], sort: Sort) -> Result<(), Error> {
        let taken = self.text.len() + name.len() + (self.names.len() + 1) * size_of::<Name>();
        let place = (u32::try_from(self.text.len()), u16::try_from(name.len()));
        let (true, (Ok(start), Ok(length))) = (taken <= self.limit, place) else {
            return Err(Error::TooMuch {
                what: "names in a directory",
                limit: self.limit,
            });
        };
        self.text.extend_from_slice(name);
        self.names.push(Name {
            start,
            length,
            sort,
        });
        Ok(())
    }

    /// All names are known: puts them in order.
    pub(super) fn sort(&mut self) {
        if let Some(level) = self.open.last() {
            let text = &self.text;
            self.names[level.names..].sort_unstable_by(|left, right| {
                let (left, right) = (left.of(text), right.of(text));
                left.cmp(right)
            });
        }
    }

    /// Goes on.
    pub(super) fn next(&mut self) -> Next<'_> {
        let Some(level) = self.open.last_mut() else {
            return Next::End;
        };
        let Some(name) = self.names.get(level.next) else {
            self.leave();
            return Next::Left;
        };
        level.next += 1;
        Next::Name(name.of(&self.text), name.sort)
    }

    /// Leaves the innermost directory.
    pub(super) fn leave(&mut self) {
        if let Some(level) = self.open.pop() {
            self.text.truncate(level.text);
            self.names.truncate(level.names);
        }
    }
}

impl Name {
    fn of(self, text: &[u8]) -> &[u8] {
        let start = self.start as usize;
        &text[start..start + usize::from(self.length)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(levels: &mut Levels, names: &[(&str, Sort)]) {
        levels.enter();
        for (name, sort) in names {
            levels.add(name.as_bytes(), *sort).unwrap();
        }
        levels.sort();
    }

    #[test]
    fn names_come_in_order_and_directories_are_left() {
        let mut levels = Levels::default();
        enter(&mut levels, &[("c", Sort::File), ("a", Sort::Directory)]);
        assert_eq!(levels.next(), Next::Name(b"a", Sort::Directory));
        enter(&mut levels, &[("z", Sort::Other), ("b", Sort::Symlink)]);
        assert_eq!(levels.next(), Next::Name(b"b", Sort::Symlink));
        assert_eq!(levels.next(), Next::Name(b"z", Sort::Other));
        assert_eq!(levels.next(), Next::Left);
        assert_eq!(levels.next(), Next::Name(b"c", Sort::File));
        assert_eq!(levels.next(), Next::Left);
        assert_eq!(levels.next(), Next::End);
        assert!(levels.text.is_empty() && levels.names.is_empty());
    }

    #[test]
    fn more_than_is_kept_is_an_error_and_what_was_left_is_not_counted() {
        let mut levels = Levels::with_limit(4096);
        for _ in 0..100 {
            enter(&mut levels, &[(&"x".repeat(2000), Sort::File)]);
            levels.leave();
        }
        levels.enter();
        levels.add(&[b'x'; 2000], Sort::File).unwrap();
        levels.enter();
        let error = levels.add(&[b'x'; 2100], Sort::File).unwrap_err();
        let expected = "there are more names in a directory than are kept in memory (4096 \
                        bytes); copy it in parts";
        assert_eq!(error.to_string(), expected);
    }
}

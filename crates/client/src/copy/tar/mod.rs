//! Archives of tar without I/O: bytes in, events out, and entries in, bytes out.
//!
//! Read is what tar programs of containers write: ustar (POSIX.1-1988), pax
//! (POSIX.1-2001), and GNU's long names, long links and large numbers. Written is
//! ustar with GNU's extensions where a name or a number does not fit, which
//! busybox reads too (it passes over pax). Sparse files and volumes are refused by
//! name: a reader that took their maps for contents would write wrong files.
//!
//! ```
//! use skewbridge_client::copy::tar::{self, Entry, Event, Kind, Reader};
//!
//! let mut archive = Vec::new();
//! let entry = Entry { size: 5, ..Entry::new("greeting", Kind::File) };
//! tar::write_entry(&entry, &mut archive);
//! archive.extend_from_slice(b"hello");
//! archive.extend_from_slice(tar::padding(5));
//! tar::write_end(&mut archive);
//!
//! let (mut reader, mut input) = (Reader::new(), &archive[..]);
//! let Ok(Some(Event::Entry(read))) = reader.next(&mut input) else { panic!() };
//! assert_eq!((read.name, read.size), (b"greeting".to_vec(), 5));
//! let Ok(Some(Event::Data(bytes))) = reader.next(&mut input) else { panic!() };
//! assert_eq!(bytes, b"hello");
//! ```

mod block;
mod pax;
mod reader;
mod writer;

use std::fmt;

pub use reader::{Checkpoint, Event, Reader};
pub use writer::{entry_length, padding, write_end, write_entry};

/// What an archive is made of.
pub const BLOCK: usize = 512;

/// The longest name or target of a link. `PATH_MAX` is 4096; a tree that was made
/// by relative calls can be deeper than that.
pub const MAX_NAME: usize = 64 << 10;

/// The longest set of pax records: names, times, and extended attributes (64 KiB
/// each) that are passed over.
pub const MAX_PAX: usize = 1 << 20;

/// What an archive says of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// As written, with whatever it tries: see [`super::path_containment`].
    pub name: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permissions, with setuid, setgid and sticky.
    pub mode: u32,
    /// The owner's number.
    pub uid: u64,
    /// The group's number.
    pub gid: u64,
    /// How many bytes follow; zero for anything but a file.
    pub size: u64,
    /// When it was changed: seconds since 1970.
    pub mtime: i64,
    /// And the nanoseconds, where pax tells them.
    pub mtime_nanos: u32,
    /// What a link points to.
    pub link: Vec<u8>,
}

impl Entry {
    /// An empty one that everybody may read.
    pub fn new(name: impl Into<Vec<u8>>, kind: Kind) -> Self {
        Self {
            name: name.into(),
            kind,
            mode: match kind {
                Kind::Directory => 0o755,
                _ => 0o644,
            },
            ..Self::default()
        }
    }
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A regular file.
    #[default]
    File,
    /// Another name of a file that came before.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A directory.
    Directory,
    /// A character device.
    Character,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::HardLink => "hard link",
            Self::Symlink => "symlink",
            Self::Directory => "directory",
            Self::Character => "character device",
            Self::Block => "block device",
            Self::Fifo => "named pipe",
        })
    }
}

/// Why something is no archive that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not the header of an entry.
    #[error("at byte {at} there is no header of tar: its checksum is wrong")]
    Checksum {
        /// Where in the archive.
        at: u64,
    },
    /// A field that is no number, or a number that cannot be.
    #[error("the field {field} of a header of tar is no valid number")]
    Number {
        /// Which one.
        field: &'static str,
    },
    /// Records of pax that are none.
    #[error("a pax header of tar is malformed")]
    Pax,
    /// More than anybody needs.
    #[error("a {what} in the archive is longer than {limit} bytes")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// What would have been read.
        limit: usize,
    },
    /// An entry without a name, or with a NUL in it.
    #[error("an entry of the archive has a name that no file can have")]
    Name,
    /// Contents where there can be none.
    #[error("the archive has contents for a {0}")]
    Contents(Kind),
    /// Something of tar that we do not read.
    #[error("the archive has {0}, which cannot be copied; is there another tar in the container?")]
    Unsupported(&'static str),
    /// A type of entry that nobody knows.
    #[error("the archive has an entry of the unknown type {:?}", char::from(*.0))]
    Type(u8),
}

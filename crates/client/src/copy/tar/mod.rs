//! A tar reader and writer without I/O: bytes in, events out; entries in, bytes out.
//!
//! The reader supports what tar programs of containers write: ustar (POSIX.1-1988), pax
//! (POSIX.1-2001), and GNU's long names, long links and large numbers. The writer uses ustar with
//! GNU's extensions where a name or a number does not fit, which busybox reads too (it ignores
//! pax). Sparse files and multi-volume archives are rejected explicitly: a reader that treats their
//! maps as contents would write wrong files.
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

/// The block size of an archive.
pub const BLOCK_BYTES: usize = 512;

/// The longest name or link target. `PATH_MAX` is 4096; a tree that was created with relative
/// calls can be deeper than that.
pub const MAX_NAME_BYTES: usize = 64 << 10;

/// The longest set of pax records: names, times, and ignored extended attributes (64 KiB each).
pub const MAX_PAX_BYTES: usize = 1 << 20;

/// The header of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// As written, not validated: see [`super::path_containment`].
    pub name: Vec<u8>,
    /// The kind of file.
    pub kind: Kind,
    /// Permissions, with setuid, setgid and sticky bits.
    pub mode: u32,
    /// The owner's ID.
    pub uid: u64,
    /// The group's ID.
    pub gid: u64,
    /// The size of the content; zero for anything but a file.
    pub size: u64,
    /// The modification time in seconds since 1970.
    pub mtime: i64,
    /// The nanoseconds of the modification time, if pax has them.
    pub mtime_nanos: u32,
    /// The target of a link.
    pub link: Vec<u8>,
}

impl Entry {
    /// An empty entry with default permissions.
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

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A regular file.
    #[default]
    File,
    /// Another name of an earlier file.
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

/// Why an archive cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A header's checksum is wrong.
    #[error("there is no tar header at byte {at}: the checksum is wrong")]
    Checksum {
        /// The offset in the archive.
        at: u64,
    },
    /// A field is not a number, or the number is invalid.
    #[error("the field {field} of a tar header is not a valid number")]
    Number {
        /// The field.
        field: &'static str,
    },
    /// Malformed pax records.
    #[error("a pax header of tar is malformed")]
    Pax,
    /// A limit was exceeded.
    #[error("a {what} in the archive is longer than {limit} bytes")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// An entry has an empty name, or one with a NUL.
    #[error("an entry of the archive has a name that no file can have")]
    Name,
    /// Content of an entry that can have none.
    #[error("the archive has contents for a {0}")]
    Contents(Kind),
    /// A tar feature that is not supported.
    #[error(
        "the archive has {0}, which cannot be copied; use another tar program in the container"
    )]
    Unsupported(&'static str),
    /// An unknown entry type.
    #[error("the archive has an entry of the unknown type {:?}", char::from(*.0))]
    Type(u8),
}

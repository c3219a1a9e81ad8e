//! Errors of a copy, with advice.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::path_containment::{self, PathEscape};
use super::tar::Violation;

/// Why something was not copied. Uses kubectl's words where they are well known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source or target on the command line is invalid.
    #[error("{0}")]
    InvalidSpec(&'static str),
    /// The source does not exist.
    #[error("{} doesn't exist in local filesystem", printable_path(.0))]
    NoSource(PathBuf),
    /// A local file cannot be read, written or created.
    #[error(
        "cannot {doing} {}: {cause}{}",
        printable_path(path),
        storage_hint(cause)
    )]
    Local {
        /// The operation that failed.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A file shrank while it was read.
    #[error(
        "{} shrank while it was read: it has {read} of {size} bytes; copy it again when \
         nothing writes to it",
        printable_path(path)
    )]
    FileShrank {
        /// The file.
        path: PathBuf,
        /// Its size when it was opened.
        size: u64,
        /// How many bytes were read.
        read: u64,
    },
    /// The archive cannot be read.
    #[error("tar contents corrupted: {0}")]
    Corrupted(#[from] Violation),
    /// The archive contains a name outside of the requested path.
    #[error("tar contents corrupted: the entry {name:?} {}; nothing was written there", escape_message(*why))]
    PathEscape {
        /// The name in the archive.
        name: String,
        /// How the name leads out of the path.
        why: PathEscape,
    },
    /// The archive contains an unexpected kind of entry.
    #[error("tar contents corrupted: {0}")]
    Unexpected(String),
    /// A symlink, or something else that is not a directory, is in the path.
    #[error(
        "{} is a symlink or a file where a directory has to be: it is not followed, and nothing \
         was written through it",
        printable_path(.0)
    )]
    SymlinkInPath(PathBuf),
    /// There is not enough space.
    #[error(
        "{name} has {size} bytes, but there is room for {available} in {} ({limit}); nothing of it was \
         written",
        printable_path(target)
    )]
    NoSpace {
        /// The entry.
        name: String,
        /// Its size.
        size: u64,
        /// How much may still be written.
        available: u64,
        /// Which limit applies.
        limit: &'static str,
        /// The target.
        target: PathBuf,
    },
    /// A memory limit was exceeded.
    #[error(
        "there are more {what} than are kept in memory ({limit} bytes); copy the source in parts"
    )]
    MemoryLimit {
        /// The data that exceeded the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Some entries were skipped; each was reported.
    #[error("{0} not copied")]
    Skipped(Skipped),
    /// The connection was lost before the copy was complete.
    #[error(
        "the connection was lost after {bytes} bytes and {attempts}: {}; the target is \
         incomplete{}",
        path_containment::printable(cause.as_bytes()),
        if *retry_available { ". --retries=N tries again" } else { "" }
    )]
    Disconnected {
        /// How many bytes had been received or sent.
        bytes: u64,
        /// How many attempts were made.
        attempts: Attempts,
        /// The cause.
        cause: String,
        /// Whether retries were possible but not requested.
        retry_available: bool,
    },
    /// A program in the container failed.
    #[error("{program} in the container {how}{}", stderr_suffix(stderr))]
    CommandFailed {
        /// The program.
        program: &'static str,
        /// How it failed.
        how: String,
        /// Its stderr.
        stderr: String,
    },
    /// A program does not exist in the container.
    #[error("there is no {program} in the container{needed}")]
    MissingProgram {
        /// The program.
        program: &'static str,
        /// What it is needed for, and what can be done without it.
        needed: &'static str,
    },
    /// The server reports why a program was not run.
    #[error(
        "{program} was not run in the container: {}",
        path_containment::printable_lines(message.as_bytes())
    )]
    NotRun {
        /// The program.
        program: &'static str,
        /// The server's message.
        message: String,
    },
    /// The copy was cancelled ([`super::CancellationToken`]).
    #[error("cancelled; the target is incomplete")]
    Cancelled,
    /// A command could not be started.
    #[error(transparent)]
    Client(#[from] crate::error::Error),
}

/// How many entries were skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped(pub u64);

/// How many attempts were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts(pub u32);

impl Skipped {
    /// An error, unless the count is zero.
    pub(super) fn result(count: u64) -> Result<(), Error> {
        match count {
            0 => Ok(()),
            count => Err(Error::Skipped(Self(count))),
        }
    }
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => f.write_str("one entry was"),
            count => write!(f, "{count} entries were"),
        }
    }
}

impl std::fmt::Display for Attempts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => f.write_str("one try"),
            count => write!(f, "{count} tries"),
        }
    }
}

/// A name may come from an archive, and must not control the terminal.
fn printable_path(path: &Path) -> String {
    path_containment::printable(path.as_os_str().as_bytes())
}

fn escape_message(why: PathEscape) -> &'static str {
    match why {
        PathEscape::Absolute => "is absolute",
        PathEscape::Parent => "leads out of the target",
        PathEscape::OutsideRequested => "is not below the requested path",
    }
}

fn storage_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, or copy to another place"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; copy to another place",
        _ => "",
    }
}

fn stderr_suffix(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        stderr_suffix => format!(": {stderr_suffix}"),
    }
}

//! Why something was not copied, and what to do about it.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::path_containment::{self, PathEscape};
use super::tar::Violation;

/// Why something was not copied. In kubectl's words where people know them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A word of the command line is no place.
    #[error("{0}")]
    InvalidSpec(&'static str),
    /// There is nothing to copy.
    #[error("{} doesn't exist in local filesystem", printable_path(.0))]
    NoSource(PathBuf),
    /// Something here cannot be read, written or made.
    #[error(
        "cannot {doing} {}: {cause}{}",
        printable_path(path),
        storage_hint(cause)
    )]
    Local {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file became smaller while it was read.
    #[error(
        "{} shrank while it was read: {read} of {size} bytes were there; copy it again when \
         nothing writes to it",
        printable_path(path)
    )]
    FileShrank {
        /// Which one.
        path: PathBuf,
        /// How large it was.
        size: u64,
        /// How much there was.
        read: u64,
    },
    /// The archive cannot be read.
    #[error("tar contents corrupted: {0}")]
    Corrupted(#[from] Violation),
    /// The archive names a place that was not asked for.
    #[error("tar contents corrupted: the entry {name:?} {}; nothing was written there", escape_message(*why))]
    PathEscape {
        /// As it is written there.
        name: String,
        /// In which way.
        why: PathEscape,
    },
    /// The archive has another kind of thing than can be there.
    #[error("tar contents corrupted: {0}")]
    Unexpected(String),
    /// On the way there is a symlink, or something else that is no directory.
    #[error(
        "{} is a symlink or a file where a directory has to be: it is not followed, and nothing \
         was written through it",
        printable_path(.0)
    )]
    SymlinkInPath(PathBuf),
    /// There is no room for it.
    #[error(
        "{name} has {size} bytes, but there is room for {available} in {} ({limit}); nothing of it was \
         written",
        printable_path(target)
    )]
    NoSpace {
        /// Which entry.
        name: String,
        /// How large it is.
        size: u64,
        /// How much may still be written.
        available: u64,
        /// Whose limit that is.
        limit: &'static str,
        /// Where to.
        target: PathBuf,
    },
    /// More than is kept in memory.
    #[error("there are more {what} than are kept in memory ({limit} bytes); copy it in parts")]
    MemoryLimit {
        /// Of what.
        what: &'static str,
        /// How much of it would be kept.
        limit: usize,
    },
    /// Not everything was copied; what was not has been told one by one.
    #[error("{0} not copied")]
    Skipped(Skipped),
    /// The connection ended before all had come, or gone.
    #[error(
        "the connection was lost after {bytes} bytes and {attempts}: {}; what is there is \
         incomplete{}",
        path_containment::printable(cause.as_bytes()),
        if *retry_available { ". --retries=N tries again" } else { "" }
    )]
    Disconnected {
        /// How much had come, or had been sent.
        bytes: u64,
        /// How often it was tried.
        attempts: Attempts,
        /// In words.
        cause: String,
        /// Whether nobody asked for a retry.
        retry_available: bool,
    },
    /// A program in the container failed.
    #[error("{program} in the container {how}{}", stderr_suffix(stderr))]
    CommandFailed {
        /// Which one.
        program: &'static str,
        /// In words.
        how: String,
        /// What it complained of.
        stderr: String,
    },
    /// A program is not in the container.
    #[error("there is no {program} in the container{needed}")]
    MissingProgram {
        /// Which one.
        program: &'static str,
        /// What for, and what can be done without it.
        needed: &'static str,
    },
    /// The server says why a program was not run to its end.
    #[error(
        "{program} was not run to its end in the container: {}",
        path_containment::printable_lines(message.as_bytes())
    )]
    NotRun {
        /// Which one.
        program: &'static str,
        /// The server's words.
        message: String,
    },
    /// Somebody wants no more of it ([`super::CancellationToken`]).
    #[error("stopped; what is there is incomplete")]
    Cancelled,
    /// No command could be started there.
    #[error(transparent)]
    Client(#[from] crate::Error),
}

/// How many entries were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped(pub u64);

/// How often something was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts(pub u32);

impl Skipped {
    /// An error, unless it is none.
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

/// A name may come from an archive, and must do nothing to a terminal.
fn printable_path(path: &Path) -> String {
    path_containment::printable(path.as_os_str().as_bytes())
}

fn escape_message(why: PathEscape) -> &'static str {
    match why {
        PathEscape::Absolute => "is absolute",
        PathEscape::Parent => "leads out of the target",
        PathEscape::OutsideRequested => "is not below what was asked for",
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

//! Why something was not copied, and what to do about it.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::contained::{self, Escape};
use super::tar::Violation;

/// Why something was not copied. In kubectl's words where people know them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A word of the command line is no place.
    #[error("{0}")]
    Place(&'static str),
    /// There is nothing to copy.
    #[error("{} doesn't exist in local filesystem", shown(.0))]
    NoSource(PathBuf),
    /// Something here cannot be read, written or made.
    #[error("cannot {doing} {}: {cause}{}", shown(path), advice(cause))]
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
        shown(path)
    )]
    Shrank {
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
    #[error("tar contents corrupted: the entry {name:?} {}; nothing was written there", escape(*why))]
    Escapes {
        /// As it is written there.
        name: String,
        /// In which way.
        why: Escape,
    },
    /// The archive has another kind of thing than can be there.
    #[error("tar contents corrupted: {0}")]
    Unexpected(String),
    /// On the way there is a symlink, or something else that is no directory.
    #[error(
        "{} is a symlink or a file where a directory has to be: it is not followed, and nothing \
         was written through it",
        shown(.0)
    )]
    Through(PathBuf),
    /// There is no room for it.
    #[error(
        "{name} has {size} bytes, but there is room for {room} in {} ({limit}); nothing of it was \
         written",
        shown(target)
    )]
    NoRoom {
        /// Which entry.
        name: String,
        /// How large it is.
        size: u64,
        /// How much may still be written.
        room: u64,
        /// Whose limit that is.
        limit: &'static str,
        /// Where to.
        target: PathBuf,
    },
    /// More than is kept in memory.
    #[error("there are more {what} than are kept in memory ({limit} bytes); copy it in parts")]
    TooMuch {
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
        "the connection was lost after {bytes} bytes and {tries}: {}; what is there is \
         incomplete{}",
        contained::shown(cause.as_bytes()),
        if *could_retry { ". --retries=N tries again" } else { "" }
    )]
    Cut {
        /// How much had come, or had been sent.
        bytes: u64,
        /// How often it was tried.
        tries: Tries,
        /// In words.
        cause: String,
        /// Whether nobody asked for a retry.
        could_retry: bool,
    },
    /// A program in the container failed.
    #[error("{program} in the container {how}{}", said(stderr))]
    Remote {
        /// Which one.
        program: &'static str,
        /// In words.
        how: String,
        /// What it complained of.
        stderr: String,
    },
    /// A program is not in the container.
    #[error("there is no {program} in the container{needed}")]
    Missing {
        /// Which one.
        program: &'static str,
        /// What for, and what can be done without it.
        needed: &'static str,
    },
    /// The server says why a program was not run to its end.
    #[error(
        "{program} was not run to its end in the container: {}",
        contained::shown_lines(message.as_bytes())
    )]
    NotRun {
        /// Which one.
        program: &'static str,
        /// The server's words.
        message: String,
    },
    /// Somebody wants no more of it ([`super::Stop`]).
    #[error("stopped; what is there is incomplete")]
    Stopped,
    /// No command could be started there.
    #[error(transparent)]
    Client(#[from] crate::Error),
}

/// How many entries were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped(pub u64);

/// How often something was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tries(pub u32);

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

impl std::fmt::Display for Tries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => f.write_str("one try"),
            count => write!(f, "{count} tries"),
        }
    }
}

/// A name may come from an archive, and must do nothing to a terminal.
fn shown(path: &Path) -> String {
    contained::shown(path.as_os_str().as_bytes())
}

fn escape(why: Escape) -> &'static str {
    match why {
        Escape::Absolute => "is absolute",
        Escape::Parent => "leads out of the target",
        Escape::Elsewhere => "is not below what was asked for",
    }
}

fn advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, or copy to another place"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; copy to another place",
        _ => "",
    }
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        said => format!(": {said}"),
    }
}

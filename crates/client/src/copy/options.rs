//! Options and events of a copy.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::cancellation::CancellationToken;
use super::path_containment;
use super::tar::Kind;

/// Options of a copy.
#[derive(Clone, Default)]
pub struct Options {
    /// Whether permissions and times are preserved, and owners in a pod.
    pub preserve: Preserve,
    /// How often a copy is resumed after a lost connection.
    pub retries: Retries,
    /// Refuses files that would exceed this size in total, before they are written. The default
    /// limit is the free space.
    pub max_bytes: Option<u64>,
    /// Cancels the copy and cleans up.
    pub cancel: CancellationToken,
    /// Receives events that the user should know of.
    pub on_event: Option<Arc<dyn Fn(CopyEvent) + Send + Sync>>,
}

/// Whether permissions and times are preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preserve {
    /// Those of the source.
    #[default]
    Yes,
    /// Those of new files.
    No,
}

/// How often to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    /// At most this often.
    AtMost(u32),
    /// Until the copy succeeds.
    Forever,
}

/// An event that the user should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEvent {
    /// A symlink that leads out of the target was skipped.
    Symlink {
        /// Its path in the target, if it had been copied.
        path: PathBuf,
        /// What it points to.
        target: String,
    },
    /// A hard link to a skipped or missing file was skipped.
    HardLink {
        /// Its path in the target, if it had been copied.
        path: PathBuf,
        /// What it links to.
        target: String,
    },
    /// A device or a pipe was skipped.
    Special {
        /// Its path in the target, if it had been copied.
        path: PathBuf,
        /// What it is.
        kind: Kind,
    },
    /// A local path that is not a file, directory or symlink was skipped.
    NotRegularFile(PathBuf),
    /// A local file was removed before it was read.
    Vanished(PathBuf),
    /// A local file grew while it was read; its old size was copied.
    Grew(PathBuf),
    /// The connection was lost, and the copy continues.
    Retrying {
        /// The cause.
        cause: String,
        /// Where it continues.
        from: ResumePoint,
    },
    /// A fallback is used because the container lacks a program.
    Fallback(&'static str),
}

/// Where a copy continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumePoint {
    /// At this byte of the archive.
    Byte(u64),
    /// With the files that are missing: this many are complete.
    SkippingFiles(u64),
    /// From the start.
    Start,
}

impl Default for Retries {
    fn default() -> Self {
        Self::AtMost(0)
    }
}

impl Retries {
    /// From kubectl's number: zero means none, a negative number forever.
    pub fn from_number(number: i64) -> Self {
        match u32::try_from(number) {
            Ok(number) => Self::AtMost(number),
            Err(_) if number < 0 => Self::Forever,
            Err(_) => Self::AtMost(u32::MAX),
        }
    }

    /// Whether another attempt is allowed after this many.
    pub(super) fn allow(self, attempts: u32) -> bool {
        match self {
            Self::AtMost(max_attempts) => attempts <= max_attempts,
            Self::Forever => true,
        }
    }
}

impl Options {
    pub(super) fn emit(&self, event: CopyEvent) {
        if let Some(on_event) = &self.on_event {
            on_event(event);
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("preserve", &self.preserve)
            .field("retries", &self.retries)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for CopyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symlink { path, target } => write!(
                f,
                "warning: skipping symlink: {:?} -> {target:?} (it leads out of the target)",
                path.display()
            ),
            Self::HardLink { path, target } => write!(
                f,
                "warning: skipping hard link: {:?} -> {target:?} (its target was not copied)",
                path.display()
            ),
            Self::Special { path, kind } => {
                write!(f, "warning: skipping {kind}: {:?}", path.display())
            }
            Self::NotRegularFile(path) => write!(
                f,
                "warning: skipping {:?}: it is not a file, directory or symlink",
                path.display()
            ),
            Self::Vanished(path) => write!(
                f,
                "warning: skipping {:?}: it was removed before it was read",
                path.display()
            ),
            Self::Grew(path) => write!(
                f,
                "warning: {:?} grew while it was read; only its original size was copied",
                path.display()
            ),
            Self::Retrying { cause, from } => {
                let cause = path_containment::printable(cause.as_bytes());
                write!(f, "the connection was lost ({cause}), ")?;
                match from {
                    ResumePoint::Byte(byte) => write!(f, "resuming at byte {byte}"),
                    ResumePoint::SkippingFiles(entries) => {
                        write!(f, "resuming without {entries} files that are complete")
                    }
                    ResumePoint::Start => f.write_str("restarting"),
                }
            }
            Self::Fallback(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_control_the_terminal() {
        let events = [
            CopyEvent::Retrying {
                cause: "\u{1b}[2Jgone".to_owned(),
                from: ResumePoint::Start,
            },
            CopyEvent::Symlink {
                path: "\u{1b}[2J".into(),
                target: "\u{9b}2J".to_owned(),
            },
            CopyEvent::Vanished("\r\u{1b}c".into()),
        ];
        for event in events {
            let text = event.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}

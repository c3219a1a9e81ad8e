//! What a copy can be told, and what it tells on its way.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::cancellation::CancellationToken;
use super::path_containment;
use super::tar::Kind;

/// How to copy.
#[derive(Clone, Default)]
pub struct Options {
    /// Whether permissions and times are those of the source, and owners in a pod.
    pub preserve: Preserve,
    /// How often a broken connection is replaced, and the copy gone on with.
    pub retries: Retries,
    /// Refuses, before it is written, what would be more than this. Without it,
    /// more than is free.
    pub max_bytes: Option<u64>,
    /// Ends it in order.
    pub cancel: CancellationToken,
    /// Is told what people should know of.
    pub on_event: Option<Arc<dyn Fn(CopyEvent) + Send + Sync>>,
}

/// Whether permissions and times are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preserve {
    /// As the source has them.
    #[default]
    Yes,
    /// As new files have them.
    No,
}

/// How often to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    /// This often.
    AtMost(u32),
    /// Until it is done.
    Forever,
}

/// What people should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEvent {
    /// A symlink that leads out of the target was left out.
    Symlink {
        /// Where it would have been.
        path: PathBuf,
        /// What it points to.
        target: String,
    },
    /// A hard link to something that was left out, or is not there, was left out too.
    HardLink {
        /// Where it would have been.
        path: PathBuf,
        /// What it links to.
        target: String,
    },
    /// A device or a pipe was left out.
    Special {
        /// Where it would have been.
        path: PathBuf,
        /// What it is.
        kind: Kind,
    },
    /// Something here that is neither file, directory nor symlink.
    NotRegularFile(PathBuf),
    /// Something here was removed before it was read.
    Vanished(PathBuf),
    /// A file here grew while it was read; what it was before has been copied.
    Grew(PathBuf),
    /// The connection was lost, and the copy goes on.
    Retrying {
        /// Why.
        cause: String,
        /// From where.
        from: ResumePoint,
    },
    /// Something is done in another way, for lack of a program in the container.
    Fallback(&'static str),
}

/// Where a copy is gone on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumePoint {
    /// From this byte of the archive.
    Byte(u64),
    /// After this many entries that are there.
    SkippingFiles(u64),
    /// From its beginning.
    Start,
}

impl Default for Retries {
    fn default() -> Self {
        Self::AtMost(0)
    }
}

impl Retries {
    /// kubectl's number: zero is none, and less than that is for ever.
    pub fn from_number(number: i64) -> Self {
        match u32::try_from(number) {
            Ok(number) => Self::AtMost(number),
            Err(_) if number < 0 => Self::Forever,
            Err(_) => Self::AtMost(u32::MAX),
        }
    }

    /// Whether another try is allowed after this many.
    pub(super) fn allow(self, attempts: u32) -> bool {
        match self {
            Self::AtMost(max_attempts) => attempts <= max_attempts,
            Self::Forever => true,
        }
    }
}

impl Options {
    pub(super) fn emit(&self, notice: CopyEvent) {
        if let Some(on_event) = &self.on_event {
            on_event(notice);
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
                "warning: skipping hard link: {:?} -> {target:?} (that was not copied)",
                path.display()
            ),
            Self::Special { path, kind } => {
                write!(f, "warning: skipping {kind}: {:?}", path.display())
            }
            Self::NotRegularFile(path) => write!(
                f,
                "warning: skipping {:?}: it is no file, directory or symlink",
                path.display()
            ),
            Self::Vanished(path) => write!(
                f,
                "warning: skipping {:?}: it was removed before it was read",
                path.display()
            ),
            Self::Grew(path) => write!(
                f,
                "warning: {:?} grew while it was read; what it was before has been copied",
                path.display()
            ),
            Self::Retrying { cause, from } => {
                let cause = path_containment::printable(cause.as_bytes());
                write!(f, "the connection was lost ({cause}), ")?;
                match from {
                    ResumePoint::Byte(byte) => write!(f, "going on at byte {byte}"),
                    ResumePoint::SkippingFiles(entries) => {
                        write!(f, "going on without {entries} files that are there")
                    }
                    ResumePoint::Start => f.write_str("beginning again"),
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
    fn what_others_say_does_nothing_to_a_terminal() {
        let on_event = [
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
        for notice in on_event {
            let text = notice.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}

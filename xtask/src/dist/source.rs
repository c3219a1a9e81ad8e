//! The sources of a release: where they are, of which commit and from when.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{StepError, output};

/// A checkout, or an unpacked archive of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    root: PathBuf,
    commit: String,
    /// Seconds since 1970: the time of the commit, which is the time of every packaged file.
    epoch: u64,
}

impl Source {
    /// This checkout. Without git, the environment names the commit and its time.
    pub(super) fn here() -> Result<Self, StepError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root
            .canonicalize()
            .map_err(|error| StepError(format!("{}: {error}", root.display())))?;
        let given = std::env::var("SKEWBRIDGE_COMMIT").ok();
        let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
        let (commit, epoch) = match (given, epoch) {
            (Some(commit), Some(epoch)) => (commit, epoch),
            _ if root.join(".git").exists() => of_git(&root)?,
            _ => {
                return Err(StepError(
                    "this is not a git checkout; set SKEWBRIDGE_COMMIT to its commit, and \
                     SOURCE_DATE_EPOCH to the time of that commit, in seconds since 1970"
                        .to_owned(),
                ));
            }
        };
        let epoch = epoch
            .parse()
            .map_err(|_| StepError(format!("SOURCE_DATE_EPOCH: {epoch:?} is not a number")))?;
        Ok(Self {
            root,
            commit,
            epoch,
        })
    }

    /// The same sources in another directory.
    pub(super) fn copied_to(&self, root: PathBuf) -> Self {
        Self {
            root,
            ..self.clone()
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The commit and its time. A checkout with changes has the commit `…-dirty`.
fn of_git(root: &Path) -> Result<(String, String), StepError> {
    let git = |arguments: &[&str]| output(Command::new("git").args(arguments).current_dir(root));
    let mut commit = git(&["rev-parse", "HEAD"])?;
    if !git(&["status", "--porcelain"])?.is_empty() {
        commit.push_str("-dirty");
    }
    Ok((
        commit,
        git(&["show", "--no-patch", "--format=%ct", "HEAD"])?,
    ))
}

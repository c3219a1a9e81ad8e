//! How something goes into a container: where to, under which name until it is whole, and
//! with which programs.

use std::path::{Path, PathBuf};

use tokio::io::AsyncRead;
use tokio::sync::oneshot;

use super::cat;
use super::commands::{self, word};
use super::container::{Answer, Container, Ended, ask};
use super::error::Error;
use super::options::Options;
use super::place::{self, RemotePath};
use super::tar::{Entry, Kind};
use super::worker;

/// How long the answer of a probe may be.
const WORDS: u64 = 4 << 10;

/// What a directory that is filled is called in the archive.
pub(super) const FILLED: &str = ".";

/// How it is done in this container.
#[derive(Debug)]
pub(super) struct Way {
    has_tar: bool,
    /// Where it will be.
    target: String,
    /// Where tar is to go.
    directory: String,
    /// What it is called in the archive.
    name: String,
    /// Where it is until it is whole.
    stage: Option<String>,
    /// Whether it goes into a directory that is there.
    fills: bool,
    /// Whether there is a shell, by which one hears who writes.
    has_shell: bool,
    worker: worker::Last,
}

impl Way {
    /// For what is here.
    pub(super) async fn for_local(
        container: &dyn Container,
        from: &Path,
        to: &str,
    ) -> Result<Self, Error> {
        let base = place::local_base(from);
        let base = base.map(|base| String::from_utf8_lossy(&base).into_owned());
        let way = Self::find(container, base, to).await?;
        if way.fills && !from.is_dir() {
            return Err(Error::Unexpected(format!(
                "{} is a directory in the container, and {} is none",
                way.target,
                from.display()
            )));
        }
        Ok(way)
    }

    /// For what comes from another container: what it is, its archive will say.
    pub(super) async fn for_remote(
        container: &dyn Container,
        from: &RemotePath,
        to: &str,
    ) -> Result<Self, Error> {
        Self::find(container, from.base.clone(), to).await
    }

    async fn find(
        container: &dyn Container,
        base: Option<String>,
        to: &str,
    ) -> Result<Self, Error> {
        let path = RemotePath::new(to);
        let whole = path.whole();
        let inner = match &base {
            Some(base) => format!("{}/{base}", whole.trim_end_matches('/')),
            None => whole.clone(),
        };
        let said = match ask(container, commands::probe(&whole, &inner), WORDS).await? {
            Answer {
                ended: Ended::Well,
                stdout,
                ..
            } => String::from_utf8_lossy(&stdout).into_owned(),
            Answer {
                ended: Ended::Cut(cause),
                ..
            } => return Err(cut(cause)),
            Answer {
                ended: Ended::NotRun(message),
                ..
            } => {
                return Err(Error::NotRun {
                    program: "sh",
                    message,
                });
            }
            // There is no shell: as kubectl asks.
            Answer {
                ended: Ended::Missing | Ended::Badly(_),
                ..
            } => {
                let test = ask(container, commands::is_directory(&whole), WORDS).await?;
                let directory = match test.ended {
                    Ended::Well => word::DIRECTORY,
                    Ended::Cut(cause) => return Err(cut(cause)),
                    _ => "",
                };
                format!("{} {directory}", word::TAR)
            }
        };
        let says = |word| said.split_whitespace().any(|said| said == word);
        let slashed = path.base.is_none();
        let into = says(word::DIRECTORY) || slashed;
        let (target, is_there) = if into {
            (inner, says(word::INNER))
        } else {
            (whole, false)
        };
        let fills = is_there || base.is_none() && into;
        Ok(Self::new(
            &target,
            fills,
            says(word::STAGE),
            says(word::TAR),
        ))
    }

    /// A directory that is there is filled where it is; else everything new is made
    /// beside its place.
    pub(super) fn new(target: &str, fills: bool, can_stage: bool, has_tar: bool) -> Self {
        let path = RemotePath::new(target);
        let (directory, name) = match (&path.base, fills) {
            (Some(base), false) => (path.directory.clone(), base.clone()),
            _ => (path.whole(), FILLED.to_owned()),
        };
        let stage = (can_stage && !fills && path.base.is_some()).then(cat::temporary);
        Self {
            has_tar,
            target: path.whole(),
            directory,
            name,
            stage,
            fills,
            has_shell: can_stage,
            worker: worker::Last::default(),
        }
    }

    pub(super) fn has_tar(&self) -> bool {
        self.has_tar
    }

    /// Where it will be.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    pub(super) fn command(&self, options: &Options) -> Vec<String> {
        match &self.stage {
            None if self.has_shell => commands::unpack_told(&self.directory, options.preserve),
            None => commands::unpack(&self.directory, options.preserve),
            Some(stage) => commands::unpack_staged(&self.directory, stage, &self.target, options),
        }
    }

    /// Listens to who runs this command. It is to be given nothing before it is known.
    pub(super) async fn listen(
        &self,
        mut stdout: impl AsyncRead + Unpin,
        known: oneshot::Sender<()>,
    ) {
        if self.has_shell {
            self.worker.hear(&mut stdout).await;
        }
        // Nobody waits for it any more.
        let _ = known.send(());
        let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
    }

    /// What the source is called in the archive.
    pub(super) fn name(&self) -> String {
        match &self.stage {
            None => self.name.clone(),
            Some(stage) => format!("{stage}/{}", commands::STAGED),
        }
    }

    /// Where a name of the archive is in the container.
    pub(super) fn place(&self, name: &str) -> String {
        match self.directory.trim_end_matches('/') {
            "" => format!("/{name}"),
            directory => format!("{directory}/{name}"),
        }
    }

    pub(super) fn around(&self) -> (Vec<Entry>, Vec<Entry>) {
        let Some(stage) = &self.stage else {
            return (Vec::new(), Vec::new());
        };
        // Nobody else is to look at what is not whole.
        let before = Entry {
            mode: 0o700,
            ..Entry::new(format!("{stage}/"), Kind::Directory)
        };
        let after = Entry::new(format!("{stage}/{}", commands::WHOLE), Kind::File);
        (vec![before], vec![after])
    }

    /// Whether everything was put in place and only the answer was lost: the container
    /// has to say so.
    pub(super) async fn is_done(&self, container: &dyn Container) -> Result<bool, Error> {
        let Some(stage) = &self.stage else {
            return Ok(false);
        };
        let done = format!("{}/{}", self.place(stage), commands::DONE);
        match ask(container, commands::is_file(&done), WORDS).await?.ended {
            Ended::Cut(cause) => Err(cut(cause)),
            ended => Ok(ended == Ended::Well),
        }
    }

    /// What is not whole, or was, is of no use, and nobody is to go on with it. Best effort:
    /// the connection may be gone.
    pub(super) async fn clean_up(&self, container: &dyn Container) {
        let stage = self.stage.as_ref().map(|stage| self.place(stage));
        let command = match (self.worker.get(), stage) {
            (Some(worker), stage) => commands::settle(&worker, stage.as_deref()),
            (None, Some(stage)) => commands::remove(&stage),
            (None, None) => return,
        };
        let _ = ask(container, command, WORDS).await;
    }

    /// Before somebody looks at what is there, or writes to it.
    pub(super) async fn settle(&self, container: &dyn Container) -> Result<(), Error> {
        let Some(worker) = self.worker.get() else {
            return Ok(());
        };
        let settled = ask(container, commands::settle(&worker, None), WORDS).await?;
        let said = String::from_utf8_lossy(&settled.stdout);
        match settled.ended {
            Ended::Cut(cause) => Err(cut(cause)),
            // Another try may find it gone.
            Ended::Well if said.split_whitespace().any(|it| it == word::BUSY) => {
                let number = worker.number();
                Err(cut(format!(
                    "process {number} of it is still at work there"
                )))
            }
            // If nothing can be run there, whoever looks will say so.
            _ => Ok(()),
        }
    }

    /// Before it is begun anew.
    pub(super) async fn empty(&self, container: &dyn Container) -> Result<(), Error> {
        if let Some(stage) = &self.stage {
            let command = commands::remove(&self.place(stage));
            if let Ended::Cut(cause) = ask(container, command, WORDS).await?.ended {
                return Err(cut(cause));
            }
        }
        Ok(())
    }

    /// Who wrote has ended, by its own word.
    pub(super) fn has_ended(&self) {
        self.worker.forget();
    }

    /// Whether it goes where nothing of it was before.
    pub(super) fn is_staged(&self) -> bool {
        self.stage.is_some()
    }

    /// Whether a file is given its owner and permissions after its contents and its time.
    pub(super) fn dresses_late(&self) -> bool {
        self.worker.is_root()
    }
}

pub(super) fn cut(cause: String) -> Error {
    Error::Client(crate::Error::BrokeOff {
        server: "of the pod".to_owned(),
        cause,
    })
}

/// Where a file of the archive is here.
pub(super) fn local(from: &Path, way: &Way, name: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let top = way.name();
    let rest = name.strip_prefix(top.as_bytes())?;
    match rest.strip_prefix(b"/") {
        None => rest.is_empty().then(|| from.to_path_buf()),
        Some(rest) => Some(from.join(std::ffi::OsStr::from_bytes(rest))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_things_are_staged_and_directories_that_are_there_are_filled() {
        // Target, fills, shell: directory, name, staged.
        let rows = [
            ("/tmp/a", false, true, "/tmp", "a", true),
            ("/tmp/a", false, false, "/tmp", "a", false),
            ("/tmp/a", true, true, "/tmp/a", ".", false),
            ("a", false, true, ".", "a", true),
            ("/", true, true, "/", ".", false),
            (".", true, true, ".", ".", false),
        ];
        for (target, fills, shell, directory, name, staged) in rows {
            let way = Way::new(target, fills, shell, true);
            assert_eq!(way.directory, directory, "{target}");
            assert_eq!(way.name, name, "{target}");
            assert_eq!(way.stage.is_some(), staged, "{target}");
        }
    }
}

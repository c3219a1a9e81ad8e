//! From here to a pod.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use super::commands::{self, word};
use super::container::{Answer, Container, Ended, Process, Stdin, ask, complaint};
use super::error::{Error, Skipped};
use super::gather::{Gathered, Gatherer, Stopped};
use super::options::{Again, Notice, Options, Preserve, Retries};
use super::place::{self, RemotePath};
use super::retry::Patience;
use super::tally::Tally;
use super::tar::{self, Entry, Kind};
use super::{append, cat};

/// How many pieces of [`super::gather::PIECE`] wait for the connection.
const WAITING: usize = 4;

/// How long the answer of a probe may be.
const WORDS: u64 = 4 << 10;

/// How much is heard of what is there already: names of about a million files.
/// What does not fit is sent again.
const LISTING: u64 = 128 << 20;

/// Copies a file or a tree into a container.
///
/// It goes to `to`, or into it if that is a directory. What is new there has a name of
/// ours until it is whole, if the container has a shell.
pub async fn copy_to(
    container: &dyn Container,
    from: &Path,
    to: &str,
    options: &Options,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let status = std::fs::symlink_metadata(from);
    let status = status.map_err(|_| Error::NoSource(from.to_path_buf()))?;
    let mut patience = Patience::new(options);
    let way = loop {
        match Way::for_local(container, from, to).await {
            Ok(way) => break way,
            Err(error) => {
                let cause = patience.cause(error)?;
                patience.again(&cause, 0).await?;
            }
        }
    };
    if !way.has_tar {
        if !status.is_file() {
            return Err(Error::Missing {
                program: "tar",
                needed: ": without it only single files can be copied to there, by sh and cat",
            });
        }
        options.tell(Notice::Instead(
            "there is no tar in the container: copying by cat, without times",
        ));
        return cat::upload(container, from, &way.target, options, tally).await;
    }
    let way = Arc::new(way);
    let mut there = Arc::new(There::default());
    loop {
        let (cause, sent) = match attempt(container, from, &way, &there, options, tally).await {
            Ok(Verdict::Whole { skipped }) => {
                if options.retries != Retries::AtMost(0) {
                    way.clean_up(container).await;
                }
                return Skipped::result(skipped);
            }
            Ok(Verdict::Cut { cause, sent }) => (cause, sent),
            Err(error) => match patience.cause(error) {
                Ok(cause) => (cause, None),
                Err(error) => {
                    way.clean_up(container).await;
                    return Err(error);
                }
            },
        };
        if let Err(error) = patience.again(&cause, tally.bytes()).await {
            way.clean_up(container).await;
            return Err(error);
        }
        if let Some(skipped) = sent
            && way.is_done(container).await
        {
            way.clean_up(container).await;
            return Skipped::result(skipped);
        }
        way.settle(container).await;
        there = Arc::new(There::ask(container, from, &way, options).await);
        let from = match there.files.len() {
            0 => Again::Beginning,
            count => Again::Without(count as u64),
        };
        options.tell(Notice::Again { cause, from });
        tally.again(0);
    }
}

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
}

enum Verdict {
    Whole {
        skipped: u64,
    },
    /// With what was left out, if everything had been sent.
    Cut {
        cause: String,
        sent: Option<u64>,
    },
}

impl Way {
    async fn for_local(container: &dyn Container, from: &Path, to: &str) -> Result<Self, Error> {
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
            // There is no shell: as kubectl asks.
            _ => {
                let test = ask(container, commands::is_directory(&whole), WORDS).await?;
                let is_directory = test.ended == Ended::Well;
                let directory = if is_directory { word::DIRECTORY } else { "" };
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
    fn new(target: &str, fills: bool, can_stage: bool, has_tar: bool) -> Self {
        let path = RemotePath::new(target);
        let (directory, name) = match (&path.base, fills) {
            (Some(base), false) => (path.directory.clone(), base.clone()),
            _ => (path.whole(), ".".to_owned()),
        };
        let stage = (can_stage && !fills && path.base.is_some()).then(cat::temporary);
        Self {
            has_tar,
            target: path.whole(),
            directory,
            name,
            stage,
            fills,
        }
    }

    pub(super) fn has_tar(&self) -> bool {
        self.has_tar
    }

    pub(super) fn command(&self, options: &Options) -> Vec<String> {
        match &self.stage {
            None => commands::unpack(&self.directory, options.preserve),
            Some(stage) => commands::unpack_staged(&self.directory, stage, &self.target, options),
        }
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
    pub(super) async fn is_done(&self, container: &dyn Container) -> bool {
        let Some(stage) = &self.stage else {
            return false;
        };
        let done = format!("{}/{}", self.place(stage), commands::DONE);
        let answer = ask(container, commands::is_file(&done), WORDS).await;
        answer.is_ok_and(|answer| answer.ended == Ended::Well)
    }

    /// What is not whole, or was, is of no use. Best effort: the connection may be gone.
    pub(super) async fn clean_up(&self, container: &dyn Container) {
        if let Some(stage) = &self.stage {
            let command = commands::abandon(&self.place(stage));
            let _ = ask(container, command, WORDS).await;
        }
    }

    /// Before somebody looks at what is there. Best effort, too.
    async fn settle(&self, container: &dyn Container) {
        if let Some(stage) = &self.stage {
            let _ = ask(container, commands::settle(&self.place(stage)), WORDS).await;
        }
    }
}

/// What of a copy that was cut is there already: sizes and times by names as in the
/// archive.
#[derive(Debug, Default)]
pub(super) struct There {
    files: HashMap<Vec<u8>, (u64, i64)>,
    /// Times are not kept, but nobody else has written there.
    by_size: bool,
}

impl There {
    /// Whether this file is whole. tar writes the time last, so one that has both is.
    fn has(&self, name: &[u8], size: u64, time: i64) -> bool {
        let found = self.files.get(name);
        found.is_some_and(|found| found.0 == size && (found.1 == time || self.by_size))
    }

    async fn ask(container: &dyn Container, from: &Path, way: &Way, options: &Options) -> Self {
        let by_size = options.preserve == Preserve::No;
        if by_size && way.stage.is_none() {
            return Self::default();
        }
        let place = way.place(&way.name());
        let Ok(answer) = ask(container, commands::list(&place), LISTING).await else {
            return Self::default();
        };
        let prefix = way.place("");
        let mut there = Self {
            files: read_listing(&answer.stdout, prefix.as_bytes()),
            by_size,
        };
        append::go_on(container, from, way, &mut there.files, options).await;
        there
    }
}

/// Lines of size, time and name; the names without what they all begin with.
fn read_listing(listing: &[u8], prefix: &[u8]) -> HashMap<Vec<u8>, (u64, i64)> {
    let line = |line: &[u8]| {
        let mut fields = line.splitn(3, |&byte| byte == b' ');
        let mut number = || str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok();
        let (size, time) = (number()?, number()?);
        let name = fields.next()?.strip_prefix(prefix)?;
        Some((name.to_vec(), (u64::try_from(size).ok()?, time)))
    };
    listing
        .split(|&byte| byte == b'\n')
        .filter_map(line)
        .collect()
}

async fn attempt(
    container: &dyn Container,
    from: &Path,
    way: &Arc<Way>,
    there: &Arc<There>,
    options: &Options,
    tally: &Arc<Tally>,
) -> Result<Verdict, Error> {
    let command = way.command(options);
    let process = container.run(command, Stdin::Piped).await?;
    let Process {
        stdin,
        mut stdout,
        stderr,
        ended,
    } = process;
    let (pieces, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
    let gathering = {
        let (from, way, there) = (from.to_path_buf(), way.clone(), there.clone());
        let (options, tally) = (options.clone(), tally.clone());
        tokio::task::spawn_blocking(move || gather(&from, &way, &there, &options, &tally, pieces))
    };
    let feeding = async {
        let Some(mut stdin) = stdin else {
            return Ok(None);
        };
        let mut broken = false;
        while let Some(piece) = waiting.recv().await {
            if stdin.write_all(&piece).await.is_err() {
                broken = true;
                break;
            }
        }
        // Whoever gathers stops when nobody listens.
        drop(waiting);
        let gathered = match gathering.await {
            Ok(gathered) => gathered?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        let Gathered::All { skipped } = gathered else {
            return Ok(None);
        };
        if broken {
            return Ok(None);
        }
        let mut end = Vec::new();
        tar::write_end(&mut end);
        // tar may leave as soon as it has seen the first of it.
        let _ = stdin.write_all(&end).await;
        let _ = stdin.shutdown().await;
        Ok::<_, Error>(Some(skipped))
    };
    let muted = async {
        let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
        Ok(())
    };
    let (fed, (), stderr, status) = tokio::try_join!(
        feeding,
        muted,
        async { Ok(complaint(stderr).await) },
        async { Ok(ended.await) }
    )?;
    match (Ended::of(&status, &stderr), fed) {
        (Ended::Well, Some(skipped)) => Ok(Verdict::Whole { skipped }),
        (Ended::Well, None) => Err(Error::Remote {
            program: "tar",
            how: "ended before everything was sent".to_owned(),
            stderr,
        }),
        (Ended::Cut(cause), sent) => Ok(Verdict::Cut { cause, sent }),
        (Ended::Missing, _) => Err(Error::Missing {
            program: "tar",
            needed: ", and no shell to do without it",
        }),
        (Ended::Badly(how), _) => Err(Error::Remote {
            program: "tar",
            how,
            stderr,
        }),
    }
}

fn gather(
    from: &Path,
    way: &Way,
    there: &There,
    options: &Options,
    tally: &Arc<Tally>,
    pieces: mpsc::Sender<Vec<u8>>,
) -> Result<Gathered, Error> {
    let (before, after) = way.around();
    let has = |name: &[u8], size, time| there.has(name, size, time);
    let sink = move |piece| pieces.blocking_send(piece).map_err(|_| Stopped);
    let gatherer = Gatherer::new(options, tally, &has, sink);
    gatherer.gather(from, way.name().as_bytes(), &before, &after)
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

    #[test]
    fn listings_are_read_line_by_line() {
        let listing =
            b"12 1700000000 /tmp/s/it/a b\nfind: x: denied\n0 -5 /tmp/s/it/c\n7 8 /else\n";
        let read = read_listing(listing, b"/tmp/");
        assert_eq!(read.len(), 2);
        assert_eq!(read[&b"s/it/a b".to_vec()], (12, 1_700_000_000));
        assert_eq!(read[&b"s/it/c".to_vec()], (0, -5));
    }
}

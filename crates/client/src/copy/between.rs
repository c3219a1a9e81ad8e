//! From a pod to a pod, through here. What comes from the one is checked by the same
//! rules as if it were written here, before the other one is given it.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::commands;
use super::contained::{self, Top};
use super::container::{Container, Ended, Process, Stdin, complaint};
use super::error::{Error, Skipped};
use super::options::{Again, Notice, Options, Retries};
use super::place::RemotePath;
use super::retry::Patience;
use super::stop::tidy;
use super::tally::Tally;
use super::tar::{self, Entry, Event, Kind, Reader};
use super::way::Way;

/// In what pieces it is moved.
const PIECE: usize = 64 << 10;

/// How many symlinks are kept in mind, so that nothing goes through them: by numbers of
/// 64 bits, whatever their names, which are about 16 MiB then.
const MAX_SYMLINKS: usize = 1 << 20;

/// Copies a file, or what is in a directory, from a container into another one, or
/// within one. A broken connection means to begin again.
pub async fn copy_between(
    source: (&dyn Container, &str),
    target: (&dyn Container, &str),
    options: &Options,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let path = RemotePath::new(source.1);
    let mut patience = Patience::new(options);
    // Once: what the first try has put in place is no place for the second to go into.
    let finding = find(target.0, &path, target.1, &mut patience);
    let way = options.stop.or(finding).await?;
    let mut copying = Between {
        source: source.0,
        path: &path,
        target: target.0,
        way: &way,
        options,
        tally,
        symlinks: Symlinks::default(),
    };
    let copied = options.stop.or_soon(copying.run(&mut patience)).await;
    // What a try without retries leaves is removed by its own shell.
    if copied.is_err() || options.retries != Retries::AtMost(0) {
        tidy(target.0, &way).await;
    }
    copied.and_then(Skipped::result)
}

async fn find(
    container: &dyn Container,
    path: &RemotePath,
    to: &str,
    patience: &mut Patience,
) -> Result<Way, Error> {
    loop {
        match Way::for_remote(container, path, to).await {
            Ok(way) => return Ok(way),
            Err(error) => {
                let cause = patience.cause(error)?;
                patience.again(&cause, 0).await?;
            }
        }
    }
}

/// One copy, by as many tries as it takes.
struct Between<'a> {
    source: &'a dyn Container,
    path: &'a RemotePath,
    target: &'a dyn Container,
    way: &'a Way,
    options: &'a Options,
    tally: &'a Arc<Tally>,
    /// Of all tries: in a directory that is filled, what a try has made stays there when
    /// it is cut.
    symlinks: Symlinks,
}

enum Moved {
    All {
        skipped: u64,
    },
    /// With what was left out, if everything had been passed on.
    Cut {
        cause: String,
        passed: Option<u64>,
    },
}

impl Between<'_> {
    /// How many entries were left out.
    async fn run(&mut self, patience: &mut Patience) -> Result<u64, Error> {
        loop {
            let (mut cause, passed) = match self.attempt().await {
                Ok(Moved::All { skipped }) => return Ok(skipped),
                Ok(Moved::Cut { cause, passed }) => (cause, passed),
                Err(error) => (patience.cause(error)?, None),
            };
            loop {
                patience.again(&cause, self.tally.bytes()).await?;
                self.tally.again();
                match (self.next().await, passed) {
                    (Ok(true), skipped) => return Ok(skipped.unwrap_or_default()),
                    (Ok(false), _) => break,
                    (Err(error), _) => cause = patience.cause(error)?,
                }
            }
            let from = Again::Beginning;
            self.options.tell(Notice::Again { cause, from });
            self.tally.restart();
        }
    }

    /// Makes room for another try; says whether there needs to be one no more.
    async fn next(&self) -> Result<bool, Error> {
        self.way.settle(self.target).await?;
        // Perhaps only the answer was lost.
        if self.way.is_done(self.target).await? {
            return Ok(true);
        }
        self.way.empty(self.target).await?;
        Ok(false)
    }

    async fn attempt(&mut self) -> Result<Moved, Error> {
        let no_tar = |needed| Error::Missing {
            program: "tar",
            needed,
        };
        if !self.way.has_tar() {
            return Err(no_tar(" that is copied to"));
        }
        let from = self.source.run(commands::pack(self.path), Stdin::Null);
        let from = from.await?;
        let into = self
            .target
            .run(self.way.command(self.options), Stdin::Piped);
        let Process {
            stdin,
            stdout: answer,
            stderr: into_complains,
            ended: into_ended,
        } = into.await?;
        let mut passage = Passage {
            top: self.path.top(),
            name: self.way.name(),
            around: self.way.around(),
            options: self.options,
            tally: self.tally,
            symlinks: &mut self.symlinks,
            skipped: 0,
            padding: &[],
            left: 0,
        };
        let (known, is_known) = oneshot::channel();
        let passing = async {
            let Some(stdin) = stdin else {
                return Ok(false);
            };
            let passing = async {
                let _ = is_known.await;
                passage.run(from.stdout, stdin).await
            };
            // Then the input of the tar there has come to its end, and so does it.
            tokio::select! {
                passed = passing => passed,
                () = self.options.stop.told() => Ok(false),
            }
        };
        let (passed, (), (said, status), (into_said, into_status)) = tokio::try_join!(
            passing,
            async {
                self.way.listen(answer, known).await;
                Ok(())
            },
            async { Ok(tokio::join!(complaint(from.stderr), from.ended)) },
            async { Ok(tokio::join!(complaint(into_complains), into_ended)) },
        )?;
        if !passed && self.options.stop.is_told() {
            return Err(Error::Stopped);
        }
        let into_ended = Ended::of(&into_status, &into_said);
        if !matches!(into_ended, Ended::Cut(_)) {
            self.way.has_ended();
        }
        let program = "tar";
        let badly = |how, stderr| Error::Remote {
            program,
            how,
            stderr,
        };
        let not_run = |message| Error::NotRun { program, message };
        let skipped = passage.skipped;
        let cut = |cause, passed| Ok(Moved::Cut { cause, passed });
        match (Ended::of(&status, &said), into_ended) {
            (Ended::Well, Ended::Cut(cause)) if passed => cut(cause, Some(skipped)),
            (Ended::Cut(cause), _) | (_, Ended::Cut(cause)) => cut(cause, None),
            (Ended::Missing, _) => Err(no_tar(" that is copied from")),
            (Ended::Badly(how), _) => Err(badly(how, said)),
            (_, Ended::Missing) => Err(no_tar(" that is copied to")),
            (_, Ended::Badly(how)) => Err(badly(how, into_said)),
            (Ended::NotRun(message), _) | (_, Ended::NotRun(message)) => Err(not_run(message)),
            (Ended::Well, Ended::Well) if passed => Ok(Moved::All { skipped }),
            (Ended::Well, Ended::Well) => cut("the archive has no end".to_owned(), None),
        }
    }
}

/// An archive that is given other names on its way.
struct Passage<'a> {
    top: Top,
    name: String,
    around: (Vec<Entry>, Vec<Entry>),
    options: &'a Options,
    tally: &'a Arc<Tally>,
    symlinks: &'a mut Symlinks,
    skipped: u64,
    /// How much padding the current file needs.
    padding: &'static [u8],
    left: u64,
}

impl Passage<'_> {
    /// Whether all has been passed on.
    async fn run(
        &mut self,
        mut from: impl AsyncRead + Unpin,
        mut into: impl AsyncWrite + Unpin,
    ) -> Result<bool, Error> {
        let mut reader = Reader::new();
        let mut input = Vec::with_capacity(PIECE);
        let mut output = Vec::with_capacity(2 * PIECE);
        for entry in &self.around.0 {
            tar::write_entry(entry, &mut output);
        }
        loop {
            input.clear();
            match from.read_buf(&mut input).await {
                Ok(0) | Err(_) => return Ok(reader.is_whole()),
                Ok(_) => {}
            }
            let was_whole = reader.is_whole();
            self.pass(&mut reader, &input, &mut output)?;
            let is_whole = reader.is_whole() && !was_whole;
            if into.write_all(&output).await.is_err() {
                return Ok(false);
            }
            output.clear();
            if is_whole {
                for entry in &self.around.1 {
                    tar::write_entry(entry, &mut output);
                }
                if into.write_all(&output).await.is_err() {
                    return Ok(false);
                }
                output.clear();
                tar::write_end(&mut output);
                // tar may leave as soon as it has seen the first of it.
                let _ = into.write_all(&output).await;
                let _ = into.shutdown().await;
                output.clear();
            }
        }
    }

    fn pass(
        &mut self,
        reader: &mut Reader,
        mut input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), Error> {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                Event::Entry(entry) => self.entry(entry, output)?,
                Event::Data(data) => {
                    let left = self.left.checked_sub(data.len() as u64);
                    self.left = left.ok_or_else(|| {
                        Error::Unexpected("the archive has contents that belong to nothing".into())
                    })?;
                    output.extend_from_slice(data);
                    self.tally.moved(data.len());
                    if self.left == 0 {
                        output.extend_from_slice(self.padding);
                    }
                }
                Event::End => {}
            }
        }
        Ok(())
    }

    fn entry(&mut self, mut entry: Entry, output: &mut Vec<u8>) -> Result<(), Error> {
        self.tally.entry(&entry.name);
        let parts = self.below(&entry.name)?;
        let depth = parts.len();
        let name = self.renamed(&parts);
        if (1..depth).any(|end| self.symlinks.has(&parts[..end])) {
            return Err(Error::Through(contained::shown(&entry.name).into()));
        }
        match entry.kind {
            Kind::Character | Kind::Block | Kind::Fifo => {
                self.skip(Notice::Special {
                    path: contained::shown(&entry.name).into(),
                    kind: entry.kind,
                });
                return Ok(());
            }
            Kind::Symlink => {
                if depth == 0 || !contained::stays(depth - 1, &entry.link) {
                    self.skip(Notice::Symlink {
                        path: contained::shown(&entry.name).into(),
                        target: contained::shown(&entry.link),
                    });
                    return Ok(());
                }
                self.symlinks.add(&parts)?;
            }
            Kind::HardLink => {
                let target = self.below(&entry.link)?;
                let renamed = self.renamed(&target);
                if (1..=target.len()).any(|end| self.symlinks.has(&target[..end])) {
                    return Err(Error::Through(contained::shown(&entry.link).into()));
                }
                entry.link = renamed;
            }
            // Some programs would take it for the directory that it leads to.
            Kind::Directory if self.symlinks.has(&parts) => {
                return Err(Error::Through(contained::shown(&entry.name).into()));
            }
            // It takes the place of a symlink of its name. That is known on for one: who
            // knows whether a tar whose connection was lost has come to this.
            Kind::Directory | Kind::File => {}
        }
        if name == b"." {
            // What is filled stays as it is. Contents without a header of ours would be
            // headers to the tar there.
            return match entry.kind {
                Kind::Directory => Ok(()),
                _ => Err(Error::Unexpected(format!(
                    "{} is a directory in the container, and {} is none",
                    self.name,
                    contained::shown(&entry.name)
                ))),
            };
        }
        entry.name = name;
        entry.mode &= 0o777;
        (self.left, self.padding) = (entry.size, tar::padding(entry.size));
        tar::write_entry(&entry, output);
        Ok(())
    }

    fn below<'n>(&self, name: &'n [u8]) -> Result<Vec<&'n [u8]>, Error> {
        contained::below(&self.top, name).map_err(|why| Error::Escapes {
            name: contained::shown(name),
            why,
        })
    }

    fn renamed(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut name = self.name.clone().into_bytes();
        for part in parts {
            name.push(b'/');
            name.extend_from_slice(part);
        }
        name
    }

    fn skip(&mut self, notice: Notice) {
        self.skipped += 1;
        self.options.tell(notice);
    }
}

/// Where there are symlinks, or were, by numbers: two names with the same one mean that
/// something is refused that need not be, and nobody outside can make them.
#[derive(Debug, Default)]
struct Symlinks {
    keys: RandomState,
    known: HashSet<u64>,
}

impl Symlinks {
    fn has(&self, parts: &[&[u8]]) -> bool {
        !self.known.is_empty() && self.known.contains(&self.keys.hash_one(parts))
    }

    fn add(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let key = self.keys.hash_one(parts);
        // Each try has most of those of the one before.
        if self.known.len() == MAX_SYMLINKS && !self.known.contains(&key) {
            return Err(Error::TooMuch {
                what: "symlinks",
                limit: MAX_SYMLINKS * size_of::<u64>(),
            });
        }
        self.known.insert(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::copy::container::Running;
    use crate::streams::{Cut, ExitStatus};

    /// Answers each command with the next of these, and is cut off after it.
    struct Scripted {
        answers: Mutex<Vec<(Vec<u8>, bool)>>,
        received: Arc<Mutex<Vec<u8>>>,
    }

    impl Scripted {
        fn new(mut answers: Vec<(Vec<u8>, bool)>) -> Self {
            answers.reverse();
            Self {
                answers: Mutex::new(answers),
                received: Arc::default(),
            }
        }
    }

    impl Container for Scripted {
        fn run(&self, _: Vec<String>, stdin: Stdin) -> Running<'_> {
            let (answer, is_cut) = self.answers.lock().unwrap().pop().unwrap_or_default();
            let (ours, mut theirs) = tokio::io::duplex(PIECE);
            let received = self.received.clone();
            let reading = stdin == Stdin::Piped;
            Box::pin(async move {
                Ok(Process {
                    stdin: reading.then(|| Box::new(ours) as _),
                    stdout: Box::new(std::io::Cursor::new(answer)),
                    stderr: Box::new(tokio::io::empty()),
                    ended: Box::pin(async move {
                        if reading {
                            let mut read = Vec::new();
                            theirs.read_to_end(&mut read).await.unwrap();
                            received.lock().unwrap().extend(read);
                        }
                        if is_cut {
                            return ExitStatus::Cut(Cut {
                                cause: "connection reset by peer".to_owned(),
                                sent: 0,
                                unsent: 0,
                                received: 0,
                            });
                        }
                        ExitStatus::Success
                    }),
                })
            })
        }
    }

    fn archive(entries: &[(&str, Kind, &str)]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (name, kind, link) in entries {
            let entry = Entry {
                link: link.as_bytes().to_vec(),
                ..Entry::new(*name, *kind)
            };
            tar::write_entry(&entry, &mut archive);
        }
        archive
    }

    #[tokio::test]
    async fn no_try_goes_through_a_symlink_of_an_earlier_one() {
        let up = ("top/a/b/c", Kind::Symlink, "../..");
        let through = ("top/a/b/c/evil", Kind::Symlink, "../../../etc");
        // What the first try says, and what the second.
        let rows: [(&[_], &[_]); 4] = [
            (&[up], &[through]),
            // Whether the file took the place of the symlink, nobody knows.
            (&[up, ("top/a/b/c", Kind::File, "")], &[through]),
            (&[up], &[("top/a/b/c/", Kind::Directory, "")]),
            (&[up], &[("top/evil", Kind::HardLink, "top/a/b/c/passwd")]),
        ];
        for (first, second) in rows {
            let source = Scripted::new(vec![(archive(first), true), (archive(second), true)]);
            let there = b"tar stage directory inner".to_vec();
            let target = Scripted::new(vec![(there, false)]);
            let options = Options {
                retries: Retries::AtMost(2),
                ..Options::default()
            };
            let tally = Arc::new(Tally::default());
            let copied = copy_between((&source, "top"), (&target, "dir"), &options, &tally).await;
            assert!(matches!(copied, Err(Error::Through(_))), "{copied:?}");
            assert_eq!(tally.retries(), 1, "{second:?}");
            let received = target.received.lock().unwrap();
            assert!(!received.windows(4).any(|it| it == b"evil"), "{second:?}");
        }
    }
}

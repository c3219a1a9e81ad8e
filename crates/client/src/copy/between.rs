//! From a pod to a pod, through here. What comes from the one is checked by the same
//! rules as if it were written here, before the other one is given it.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::commands;
use super::contained::{self, Top};
use super::container::{Container, Ended, Process, Stdin, complaint};
use super::error::{Error, Skipped};
use super::options::{Again, Notice, Options, Retries};
use super::place::RemotePath;
use super::retry::Patience;
use super::tally::Tally;
use super::tar::{self, Entry, Event, Kind, Reader};
use super::upload::Way;

/// In what pieces it is moved.
const PIECE: usize = 128 << 10;

/// How many symlinks are kept in mind, so that nothing goes through them.
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
    let way = loop {
        match Way::for_remote(target.0, &path, target.1).await {
            Ok(way) => break way,
            Err(error) => {
                let cause = patience.cause(error)?;
                patience.again(&cause, 0).await?;
            }
        }
    };
    loop {
        let cause = match attempt(source.0, &path, (target.0, &way), options, tally).await {
            Ok(Moved::All { skipped }) => return Skipped::result(skipped),
            Ok(Moved::Cut(cause)) => cause,
            Err(error) => patience.cause(error)?,
        };
        patience.again(&cause, tally.bytes()).await?;
        options.tell(Notice::Again {
            cause,
            from: Again::Beginning,
        });
        tally.again(0);
    }
}

enum Moved {
    All { skipped: u64 },
    Cut(String),
}

async fn attempt(
    source: &dyn Container,
    path: &RemotePath,
    (container, way): (&dyn Container, &Way),
    options: &Options,
    tally: &Arc<Tally>,
) -> Result<Moved, Error> {
    let no_tar = |needed| Error::Missing {
        program: "tar",
        needed,
    };
    let from = source.run(commands::pack(path), Stdin::Null).await?;
    if !way.has_tar() {
        return Err(no_tar(" that is copied to"));
    }
    let into = container.run(way.command(options), Stdin::Piped).await?;
    let Process {
        stdin,
        stdout: mut answer,
        stderr: into_complains,
        ended: into_ended,
    } = into;
    let mut passage = Passage::new(path.top(), way, options, tally);
    let passing = async {
        let Some(stdin) = stdin else {
            return Ok(false);
        };
        passage.run(from.stdout, stdin).await
    };
    let muted = async {
        let _ = tokio::io::copy(&mut answer, &mut tokio::io::sink()).await;
        Ok(())
    };
    let moved = tokio::try_join!(
        passing,
        muted,
        async { Ok(tokio::join!(complaint(from.stderr), from.ended)) },
        async { Ok(tokio::join!(complaint(into_complains), into_ended)) },
    );
    let (passed, (), (said, status), (into_said, into_status)) = match moved {
        Ok(moved) => moved,
        Err(error) => {
            way.clean_up(container).await;
            return Err(error);
        }
    };
    let badly = |how, stderr| Error::Remote {
        program: "tar",
        how,
        stderr,
    };
    let ended = Ended::of(&status, &said);
    let into_ended = Ended::of(&into_status, &into_said);
    let all = Moved::All {
        skipped: passage.skipped,
    };
    let result = match (ended, into_ended) {
        // Only the answer was lost.
        (Ended::Well, Ended::Cut(_)) if passed && way.is_done(container).await => Ok(all),
        (Ended::Cut(cause), _) | (_, Ended::Cut(cause)) => Ok(Moved::Cut(cause)),
        (Ended::Missing, _) => Err(no_tar(" that is copied from")),
        (Ended::Badly(how), _) => Err(badly(how, said)),
        (_, Ended::Missing) => Err(no_tar(" that is copied to")),
        (_, Ended::Badly(how)) => Err(badly(how, into_said)),
        (Ended::Well, Ended::Well) if passed => Ok(all),
        (Ended::Well, Ended::Well) => Ok(Moved::Cut("the archive has no end".to_owned())),
    };
    // Of what is in its place nothing is left there but, for who asks again, the word.
    let is_clean = matches!(result, Ok(Moved::All { .. })) && options.retries == Retries::AtMost(0);
    if !is_clean {
        way.clean_up(container).await;
    }
    result
}

/// An archive that is given other names on its way.
struct Passage<'a> {
    top: Top,
    name: String,
    around: (Vec<Entry>, Vec<Entry>),
    options: &'a Options,
    tally: &'a Arc<Tally>,
    symlinks: HashSet<Vec<u8>>,
    skipped: u64,
    /// How much padding the current file needs.
    padding: &'static [u8],
    left: u64,
}

impl<'a> Passage<'a> {
    fn new(top: Top, way: &Way, options: &'a Options, tally: &'a Arc<Tally>) -> Self {
        Self {
            top,
            name: way.name(),
            around: way.around(),
            options,
            tally,
            symlinks: HashSet::new(),
            skipped: 0,
            padding: &[],
            left: 0,
        }
    }

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
        for end in 1..depth {
            if self.symlinks.contains(&parts[..end].join(&b'/')) {
                return Err(Error::Through(contained::shown(&entry.name).into()));
            }
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
                if self.symlinks.len() == MAX_SYMLINKS {
                    return Err(Error::Unexpected(format!(
                        "there are more than {MAX_SYMLINKS} symlinks"
                    )));
                }
                self.symlinks.insert(parts.join(&b'/'));
            }
            Kind::HardLink => {
                let target = self.below(&entry.link)?;
                let renamed = self.renamed(&target);
                for end in 1..=target.len() {
                    if self.symlinks.contains(&target[..end].join(&b'/')) {
                        return Err(Error::Through(contained::shown(&entry.link).into()));
                    }
                }
                entry.link = renamed;
            }
            Kind::File | Kind::Directory => {
                self.symlinks.remove(&parts.join(&b'/'));
            }
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

//! One file out of a container without tar: by its `cat`, and its `tail` after a lost
//! connection.
//!
//! A file has no header by which it would be known again, so what is put together from
//! two tries has to have the checksum that `cksum` there says, before it has its name.
//! Without those programs a lost connection means to begin again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use super::append::sum_and_size;
use super::cksum::Sum;
use super::commands;
use super::container::{Answer, Container, Ended, Process, Stdin, ask, beside, complaint};
use super::download::{Came, State, extract};
use super::error::Error;
use super::options::{Again, Notice, Options};
use super::place::RemotePath;
use super::retry::Patience;
use super::tally::Tally;
use super::tar::{self, Entry, Kind};
use super::way::cut;

/// How long the answer of a program that counts bytes may be: it repeats the name.
const COUNT: u64 = 64 << 10;

/// Copies one file, by as many tries as it takes.
pub(super) async fn download(
    container: &dyn Container,
    path: &RemotePath,
    mut state: Box<State>,
    options: &Options,
    patience: &mut Patience,
    tally: &Arc<Tally>,
) -> Result<(), Error> {
    let Some(base) = &path.base else {
        return Err(missing());
    };
    let file = Source {
        container,
        place: path.whole(),
        name: base,
    };
    options.tell(Notice::Instead(
        "there is no tar in the container: copying by cat, without times and permissions",
    ));
    let mut begun = None;
    let mut can_go_on = true;
    loop {
        let (back, verdict) = file.attempt(state, begun).await;
        state = back;
        let mut lost = false;
        let cause = match verdict {
            Ok(Verdict::Whole) => return state.extractor.finish(),
            Ok(Verdict::Cut(cause, come)) => {
                lost = true;
                begun = Some(come).filter(|_| can_go_on);
                cause
            }
            // These two come once after each connection that was lost.
            Ok(Verdict::Changed) => {
                begun = None;
                "the file has changed".to_owned()
            }
            Ok(Verdict::NoProgram(program)) => {
                begun = None;
                can_go_on = false;
                format!("there is no {program} to go on with it")
            }
            // It could not even be started.
            Err(error) => {
                lost = true;
                patience.cause(error)?
            }
        };
        if lost {
            patience.again(&cause, tally.bytes()).await?;
            tally.again();
        }
        let from = match &begun {
            Some(begun) => Again::At(begun.sum.length()),
            None => Again::Beginning,
        };
        options.tell(Notice::Again { cause, from });
        if begun.is_none() {
            state.begin_again(tally);
        }
    }
}

fn missing() -> Error {
    Error::Missing {
        program: "tar",
        needed: ": without it only single files can be copied from there, by cat and wc",
    }
}

/// The file in the container.
struct Source<'a> {
    container: &'a dyn Container,
    place: String,
    name: &'a str,
}

/// What has come of it.
#[derive(Debug, Clone, Copy)]
struct Begun {
    sum: Sum,
    /// How large it was.
    size: u64,
}

enum Verdict {
    Whole,
    Cut(String, Begun),
    /// It is another file now.
    Changed,
    /// This one is missing, without which it cannot be gone on with.
    NoProgram(&'static str),
}

/// What the container says before a byte of it is asked for.
enum Look {
    New {
        size: u64,
    },
    /// It may be the one that has been begun, if this is its checksum.
    Known {
        sum: u32,
    },
    Changed,
    NoProgram(&'static str),
}

impl Source<'_> {
    /// One try: from the beginning, or after what has come.
    async fn attempt(
        &self,
        state: Box<State>,
        begun: Option<Begun>,
    ) -> (Box<State>, Result<Verdict, Error>) {
        let look = match begun {
            None => self.count().await,
            Some(begun) => self.recognise(begun).await,
        };
        let (begun, known) = match (look, begun) {
            (Ok(Look::New { size }), _) => (
                Begun {
                    sum: Sum::default(),
                    size,
                },
                None,
            ),
            (Ok(Look::Known { sum }), Some(begun)) => (begun, Some(sum)),
            (Ok(Look::Known { .. }), None) | (Ok(Look::Changed), _) => {
                return (state, Ok(Verdict::Changed));
            }
            (Ok(Look::NoProgram(program)), _) => {
                return (state, Ok(Verdict::NoProgram(program)));
            }
            (Err(error), _) => return (state, Err(error)),
        };
        if begun.sum.length() == begun.size && known == Some(begun.sum.finish()) {
            // Only how it ended was lost.
            return (state, Ok(Verdict::Whole));
        }
        let command = match known {
            None => commands::cat(&self.place),
            Some(_) => commands::tail(&self.place, begun.sum.length()),
        };
        match self.container.run(command, Stdin::Null).await {
            Ok(process) => self.take(process, state, begun, known).await,
            Err(error) => (state, Err(error.into())),
        }
    }

    async fn take(
        &self,
        process: Process,
        state: Box<State>,
        begun: Begun,
        known: Option<u32>,
    ) -> (Box<State>, Result<Verdict, Error>) {
        let size = begun.size;
        let header = match known {
            None => self.header(size),
            Some(_) => Vec::new(),
        };
        let mut contents = Summed {
            inner: process.stdout,
            sum: begun.sum,
            whole: known.map(|sum| (size, sum)),
            differs: false,
        };
        let reading = async move {
            let mut end = tar::padding(size).to_vec();
            tar::write_end(&mut end);
            // The file as an archive of one: neither less nor more than it is said to be.
            let archive = io::Cursor::new(header)
                .chain(&mut contents)
                .chain(io::Cursor::new(end));
            let (state, came) = extract(archive, state).await;
            (state, came, contents.sum, contents.differs)
        };
        let ending = async { tokio::join!(complaint(process.stderr), process.ended) };
        tokio::pin!(ending);
        let ((state, came, sum, differs), ended) = beside(reading, ending.as_mut()).await;
        // Who sends what nobody wants is left, not waited for.
        let verdict = match came {
            _ if differs => Ok(Verdict::Changed),
            Came::Wrong(error @ (Error::Local { .. } | Error::NoRoom { .. })) => Err(error),
            Came::Wrong(_) => Err(self.other_size(size)),
            came => {
                let (stderr, status) = match ended {
                    Some(ended) => ended,
                    None => ending.await,
                };
                let is_whole = matches!(came, Came::All) && state.reader.is_whole();
                match Ended::of(&status, &stderr) {
                    Ended::Well if is_whole => Ok(Verdict::Whole),
                    Ended::Well => Err(self.other_size(size)),
                    Ended::Cut(cause) => Ok(Verdict::Cut(cause, Begun { sum, size })),
                    Ended::Missing if known.is_some() => Ok(Verdict::NoProgram("tail")),
                    Ended::Missing => Err(missing()),
                    Ended::Badly(how) => Err(Error::Remote {
                        program: "cat",
                        how,
                        stderr,
                    }),
                    Ended::NotRun(message) => Err(Error::NotRun {
                        program: "cat",
                        message,
                    }),
                }
            }
        };
        (state, verdict)
    }

    fn other_size(&self, size: u64) -> Error {
        Error::Unexpected(format!(
            "{} is not as large as it was said to be ({size} bytes): does something write to it?",
            self.place
        ))
    }

    fn header(&self, size: u64) -> Vec<u8> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let entry = Entry {
            size,
            mtime: now.map_or(0, |now| now.as_secs().cast_signed()),
            ..Entry::new(self.name, Kind::File)
        };
        let mut header = Vec::new();
        tar::write_entry(&entry, &mut header);
        header
    }

    /// How large it is, so that a cut is seen.
    async fn count(&self) -> Result<Look, Error> {
        let counted = ask(self.container, commands::count(&self.place), COUNT).await?;
        let Answer {
            ended,
            stdout,
            stderr,
        } = counted;
        match ended {
            Ended::Well => {
                let said = String::from_utf8_lossy(&stdout);
                let size = said.split_whitespace().next();
                let size = size.and_then(|size| size.parse().ok());
                let size = size.ok_or_else(missing)?;
                Ok(Look::New { size })
            }
            Ended::Missing => Err(missing()),
            Ended::Badly(how) => Err(Error::Remote {
                program: "wc (there is no tar)",
                how,
                stderr,
            }),
            Ended::NotRun(message) => Err(Error::NotRun {
                program: "wc",
                message,
            }),
            Ended::Cut(cause) => Err(cut(cause)),
        }
    }

    /// Whether what has come can be the beginning of what is there now.
    async fn recognise(&self, begun: Begun) -> Result<Look, Error> {
        let summed = ask(self.container, commands::sum(&self.place), COUNT).await?;
        match summed.ended {
            Ended::Well => Ok(match sum_and_size(&summed.stdout) {
                Some((sum, size)) if size == begun.size => Look::Known { sum },
                _ => Look::Changed,
            }),
            Ended::Cut(cause) => Err(cut(cause)),
            _ => Ok(Look::NoProgram("cksum")),
        }
    }
}

/// Adds up what passes, and holds back the last of it if the sum is wrong.
struct Summed<R> {
    inner: R,
    sum: Sum,
    /// What it has to come to, and when.
    whole: Option<(u64, u32)>,
    differs: bool,
}

impl<R: AsyncRead + Unpin> AsyncRead for Summed<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        self.sum.add(&buf.filled()[before..]);
        if let Some((size, sum)) = self.whole
            && self.sum.length() >= size
            && self.sum.finish() != sum
        {
            self.differs = true;
            buf.set_filled(before);
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

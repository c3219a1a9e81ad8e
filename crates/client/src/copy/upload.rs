//! From here to a pod.

use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};

use super::cat;
use super::container::{Container, Ended, Process, Stdin, complaint};
use super::error::{Error, Skipped};
use super::gather::{Gathered, Gatherer, Stopped};
use super::options::{Again, Notice, Options, Retries};
use super::retry::Patience;
use super::stop::tidy;
use super::tally::Tally;
use super::tar;
use super::there::There;
use super::way::Way;

/// How many pieces of [`super::gather::PIECE`] wait for the connection, beside one that
/// is made and one that is sent.
const WAITING: usize = 1;

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
    let finding = find(container, from, to, &mut patience);
    let way = Arc::new(options.stop.or(finding).await?);
    if !way.has_tar() {
        if !status.is_file() {
            return Err(Error::Missing {
                program: "tar",
                needed: ": without it only single files can be copied to there, by sh and cat",
            });
        }
        options.tell(Notice::Instead(
            "there is no tar in the container: copying by cat, without times",
        ));
        let copying = cat::upload(container, from, way.target(), options, &mut patience, tally);
        return options.stop.or(copying).await;
    }
    let copying = Upload {
        container,
        from,
        way: &way,
        options,
        tally,
    };
    let copied = options.stop.or_soon(copying.run(&mut patience)).await;
    // What a try without retries leaves is removed by its own shell.
    if copied.is_err() || options.retries != Retries::AtMost(0) {
        tidy(container, &way).await;
    }
    copied.and_then(Skipped::result)
}

async fn find(
    container: &dyn Container,
    from: &Path,
    to: &str,
    patience: &mut Patience,
) -> Result<Way, Error> {
    loop {
        match Way::for_local(container, from, to).await {
            Ok(way) => return Ok(way),
            Err(error) => {
                let cause = patience.cause(error)?;
                patience.again(&cause, 0).await?;
            }
        }
    }
}

/// One copy, by as many tries as it takes.
struct Upload<'a> {
    container: &'a dyn Container,
    from: &'a Path,
    way: &'a Arc<Way>,
    options: &'a Options,
    tally: &'a Arc<Tally>,
}

/// What is to be done after a lost connection.
enum Next {
    /// Nothing: everything is in its place.
    Done,
    /// Send what is not there.
    Send(Arc<There>),
}

impl Upload<'_> {
    /// How many entries were left out.
    async fn run(&self, patience: &mut Patience) -> Result<u64, Error> {
        let mut there = Arc::new(There::default());
        loop {
            let sent = self.attempt(&there).await;
            let (mut cause, sent) = match sent {
                Ok(Verdict::Whole { skipped }) => return Ok(skipped),
                Ok(Verdict::Cut { cause, sent }) => (cause, sent),
                Err(error) => (patience.cause(error)?, None),
            };
            there = loop {
                patience.again(&cause, self.tally.bytes()).await?;
                self.tally.again();
                match (self.next().await, sent) {
                    (Ok(Next::Done), skipped) => return Ok(skipped.unwrap_or_default()),
                    (Ok(Next::Send(there)), _) => break there,
                    (Err(error), _) => cause = patience.cause(error)?,
                }
            };
            let from = match there.count() {
                0 => Again::Beginning,
                count => Again::Without(count),
            };
            self.options.tell(Notice::Again { cause, from });
            self.tally.restart();
        }
    }

    /// Asks the container how far it has come.
    async fn next(&self) -> Result<Next, Error> {
        self.way.settle(self.container).await?;
        if self.way.is_done(self.container).await? {
            return Ok(Next::Done);
        }
        let asking = There::ask(
            self.container,
            self.from,
            self.way,
            self.options,
            self.tally,
        );
        Ok(Next::Send(Arc::new(asking.await?)))
    }

    async fn attempt(&self, there: &Arc<There>) -> Result<Verdict, Error> {
        let command = self.way.command(self.options);
        let process = self.container.run(command, Stdin::Piped).await?;
        let Process {
            stdin,
            stdout,
            stderr,
            ended,
        } = process;
        let (pieces, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
        let gathering = {
            let (from, way) = (self.from.to_path_buf(), self.way.clone());
            let (options, tally) = (self.options.clone(), self.tally.clone());
            let there = there.clone();
            tokio::task::spawn_blocking(move || {
                gather(&from, &way, &there, &options, &tally, pieces)
            })
        };
        let (known, is_known) = oneshot::channel();
        let feeding = async {
            let Some(mut stdin) = stdin else {
                return Ok(None);
            };
            let sending = async {
                let _ = is_known.await;
                while let Some(piece) = waiting.recv().await {
                    if stdin.write_all(&piece).await.is_err() {
                        return false;
                    }
                }
                true
            };
            // What comes after the end of its input, tar there does not wait for.
            let is_sent = tokio::select! {
                is_sent = sending => is_sent,
                () = self.options.stop.told() => false,
            };
            // Whoever gathers stops when nobody listens.
            drop(waiting);
            let gathered = match gathering.await {
                Ok(gathered) => gathered?,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            };
            let Gathered::All { skipped } = gathered else {
                return Ok(None);
            };
            if !is_sent {
                return Ok(None);
            }
            let mut end = Vec::new();
            tar::write_end(&mut end);
            // tar may leave as soon as it has seen the first of it.
            let _ = stdin.write_all(&end).await;
            let _ = stdin.shutdown().await;
            Ok::<_, Error>(Some(skipped))
        };
        let (fed, (), stderr, status) = tokio::try_join!(
            feeding,
            async {
                self.way.listen(stdout, known).await;
                Ok(())
            },
            async { Ok(complaint(stderr).await) },
            async { Ok(ended.await) }
        )?;
        if fed.is_none() && self.options.stop.is_told() {
            return Err(Error::Stopped);
        }
        let ended = Ended::of(&status, &stderr);
        if !matches!(ended, Ended::Cut(_)) {
            self.way.has_ended();
        }
        match (ended, fed) {
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
            (Ended::NotRun(message), _) => Err(Error::NotRun {
                program: "tar",
                message,
            }),
        }
    }
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

fn gather(
    from: &Path,
    way: &Way,
    there: &There,
    options: &Options,
    tally: &Arc<Tally>,
    pieces: mpsc::Sender<Vec<u8>>,
) -> Result<Gathered, Error> {
    let (before, after) = way.around();
    let has = |name: &[u8], file: &File, status: &Metadata| there.has(name, file, status);
    let sink = move |piece| pieces.blocking_send(piece).map_err(|_| Stopped);
    let gatherer = Gatherer::new(options, tally, &has, sink);
    gatherer.gather(from, way.name().as_bytes(), &before, &after)
}

//! What ends a plugin, watched for from before there is one: to prepare its signers may
//! take as long as a user takes to type a PIN, and the client may be gone by then.

use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::signal::unix::SignalKind;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::Error;
use crate::asked::Asked;
use crate::client_life::ClientLife;
use crate::harness::{Ended, LockFile};
use crate::ignored::{Heard, IgnoredSignals};

/// How long a client whose end of our output is closed has to be gone as a whole. If it
/// lives on, it is not waiting for us.
const AFTER_SILENCE: Duration = Duration::from_secs(1);

/// The same, after a signal: the client lives on as a rule, and does not need us.
const AFTER_SIGNAL: Duration = Duration::from_millis(300);

/// Watches the client, by its lock and by its end of our standard output, and signals.
///
/// ```no_run
/// use skewbridge_exec_proxy::{Asked, Harness, LockFile, Vigil};
///
/// # async fn example() -> Result<(), skewbridge_exec_proxy::Error> {
/// let asked = Asked::from_environment()?;
/// let mut vigil = Vigil::begin(&asked, LockFile::Required)?;
/// // Asks the user for a PIN, say.
/// match vigil.prepare(Harness::new).await {
///     Ok(harness) => harness.run_under(&asked, vigil).await?,
///     Err(ended) => ended,
/// };
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Vigil {
    client: Option<ClientLife>,
    /// The client's end of our standard output, until the client is told.
    reader: Option<pipe::Sender>,
    signals: Signals,
}

impl Vigil {
    /// Begins. It needs a runtime of tokio with I/O.
    pub fn begin(asked: &Asked, lock: LockFile) -> Result<Self, Error> {
        let client = match (&asked.lock_file, lock) {
            (Some(path), _) => Some(ClientLife::watch(path)?),
            (None, LockFile::Required) => return Err(Error::NoLockFile),
            (None, LockFile::Optional) => None,
        };
        Ok(Self {
            client,
            reader: our_output(),
            signals: Signals::new()?,
        })
    }

    /// Does what may block, unless the end comes first. Then it goes on without us, and
    /// the process had better end.
    pub async fn prepare<T: Send + 'static>(
        &mut self,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Ended> {
        let prepared = spawn_blocking(what);
        tokio::select! {
            prepared = prepared => match prepared.map_err(tokio::task::JoinError::try_into_panic) {
                Ok(prepared) => Ok(prepared),
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // Only whoever shuts the runtime down does that.
                Err(Err(_)) => Err(Ended::Signal),
            },
            ended = self.ended() => Err(ended),
        }
    }

    /// The client is about to be told: whether it reads is no sign any more, and our
    /// output is as it was.
    pub(crate) fn will_tell(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.into_blocking_fd();
        }
    }

    /// From here on the process is nobody's in particular.
    pub(crate) fn forget_client(&mut self) {
        self.client = None;
    }

    /// Returns when the plugin has to end.
    pub async fn ended(&mut self) -> Ended {
        let attention = match &self.client {
            Some(_) => Attention::ClientJudges,
            None => Attention::Alone,
        };
        let (ended, grace) = tokio::select! {
            () = gone(self.client.as_mut()) => return Ended::ClientGone,
            () = unread(self.reader.as_ref()) => (Ended::ClientGone, AFTER_SILENCE),
            () = self.signals.told_to_stop(attention) => (Ended::Signal, AFTER_SIGNAL),
        };
        // A client that dies closes its files one after the other, and a terminal that is
        // gone takes both of us along: the lock is to be removed nevertheless.
        if self.client.is_some() {
            let _ = timeout(grace, gone(self.client.as_mut())).await;
        }
        ended
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        // Others may write to it, and wait.
        self.will_tell();
    }
}

async fn gone(client: Option<&mut ClientLife>) {
    match client {
        Some(client) => client.ended().await,
        None => std::future::pending().await,
    }
}

/// Our standard output, if it is a pipe: a file can be written to for ever.
fn our_output() -> Option<pipe::Sender> {
    let output = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
    pipe::Sender::from_owned_fd(output).ok()
}

/// Returns when nobody is left who could read our standard output.
async fn unread(reader: Option<&pipe::Sender>) {
    if let Some(reader) = reader
        && reader.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Signals are caught from when this is made.
#[derive(Debug)]
struct Signals {
    terminate: Heard,
    hang_up: Heard,
    interrupt: Heard,
    quit: Heard,
}

/// What an interrupt by a key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attention {
    /// ^C and ^\ in a terminal are sent to all that run in it. It is for the client to
    /// say what they mean: a shell goes on, and needs us.
    ClientJudges,
    /// It is for us.
    Alone,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let ignored = IgnoredSignals::now();
        let caught = |kind| ignored.listen(kind).map_err(Error::Signals);
        Ok(Self {
            terminate: caught(SignalKind::terminate())?,
            hang_up: caught(SignalKind::hangup())?,
            interrupt: caught(SignalKind::interrupt())?,
            quit: caught(SignalKind::quit())?,
        })
    }

    async fn told_to_stop(&mut self, attention: Attention) {
        let (interrupt, quit) = (&mut self.interrupt, &mut self.quit);
        let interrupted = async {
            tokio::select! {
                () = interrupt.recv() => {}
                () = quit.recv() => {}
            }
            if attention == Attention::ClientJudges {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.terminate.recv() => {}
            () = self.hang_up.recv() => {}
            () = interrupted => {}
        }
    }
}

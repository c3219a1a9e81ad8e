//! The conditions that end a plugin. They are watched before the plugin serves, because preparing
//! its signers may take as long as a user needs to type a PIN, and the client may exit meanwhile.

use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::signal::unix::SignalKind;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::Error;
use crate::client_lock_watcher::ClientLockWatcher;
use crate::exec_info::ExecInfo;
use crate::signals::{IgnoredSignals, SignalStream};

/// How long to wait for the release of the client's lock after the client has closed its end of
/// the standard output of this plugin. A client that still runs does not wait for this plugin any more.
const LOCK_GRACE_AFTER_CLOSED_OUTPUT: Duration = Duration::from_secs(1);

/// How long to wait for the release of the client's lock after a signal. The client usually
/// still runs, and does not need this plugin.
const LOCK_GRACE_AFTER_SIGNAL: Duration = Duration::from_millis(300);

/// Whether the client must have a lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockFile {
    /// A client without a lock file does not support plugins that are proxies, and would wait
    /// for the plugin to exit.
    #[default]
    Required,
    /// If a client without a lock file exits, the plugin ends only by the idle timeout.
    Optional,
}

/// Why a plugin has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownReason {
    /// Its client exited.
    ClientGone,
    /// No request arrived during the idle timeout.
    Idle(Duration),
    /// It received a terminating signal.
    Signal,
}

impl std::fmt::Display for ShutdownReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ClientGone => f.write_str("the client exited"),
            Self::Idle(time) => write!(f, "no request for {} s", time.as_secs_f64()),
            Self::Signal => f.write_str("terminated by a signal"),
        }
    }
}

/// Watches the client, by its lock and by its end of the standard output of this plugin, and
/// terminating signals.
///
/// ```no_run
/// use skewbridge_exec_proxy::{ExecInfo, ExecProxy, LockFile, ShutdownWatcher};
///
/// # async fn example() -> Result<(), skewbridge_exec_proxy::Error> {
/// let exec_info = ExecInfo::from_environment()?;
/// let mut shutdown = ShutdownWatcher::start(&exec_info, LockFile::Required)?;
/// // The closure may block, for example on a PIN prompt.
/// match shutdown.run_blocking(ExecProxy::new).await {
///     Ok(proxy) => proxy.run_with_watcher(&exec_info, shutdown).await?,
///     Err(reason) => reason,
/// };
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ShutdownWatcher {
    client: Option<ClientLockWatcher>,
    /// The standard output of this plugin, until the credential is printed.
    stdout: Option<pipe::Sender>,
    signals: Signals,
}

impl ShutdownWatcher {
    /// Starts watching. Must be called in a tokio runtime with I/O enabled.
    pub fn start(exec_info: &ExecInfo, lock: LockFile) -> Result<Self, Error> {
        let client = match (&exec_info.lock_file, lock) {
            (Some(path), _) => Some(ClientLockWatcher::start(path)?),
            (None, LockFile::Required) => return Err(Error::NoLockFile),
            (None, LockFile::Optional) => None,
        };
        Ok(Self {
            client,
            stdout: stdout_pipe(),
            signals: Signals::new()?,
        })
    }

    /// Runs a blocking closure, unless the plugin must end first. In that case the closure keeps
    /// running in the background, and the process should exit.
    pub async fn run_blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ShutdownReason> {
        let work = spawn_blocking(work);
        tokio::select! {
            output = work => match output.map_err(tokio::task::JoinError::try_into_panic) {
                Ok(output) => Ok(output),
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // Only a shutdown of the runtime cancels it.
                Err(Err(_)) => Err(ShutdownReason::Signal),
            },
            reason = self.requested() => Err(reason),
        }
    }

    /// Stops watching standard output, because the credential is about to be printed: from then
    /// on a client that does not read is no sign that it has exited. Standard output is blocking
    /// again.
    pub(crate) fn release_stdout(&mut self) {
        if let Some(stdout) = self.stdout.take() {
            let _ = stdout.into_blocking_fd();
        }
    }

    /// Stops watching the client, for an instance that several clients share.
    pub(crate) fn detach_client(&mut self) {
        self.client = None;
    }

    /// Returns when the plugin has to end.
    pub async fn requested(&mut self) -> ShutdownReason {
        let keyboard = match &self.client {
            Some(_) => KeyboardSignals::ForClient,
            None => KeyboardSignals::ForPlugin,
        };
        let (reason, lock_grace) = tokio::select! {
            () = client_exit(self.client.as_mut()) => return ShutdownReason::ClientGone,
            () = stdout_closed(self.stdout.as_ref()) => {
                (ShutdownReason::ClientGone, LOCK_GRACE_AFTER_CLOSED_OUTPUT)
            }
            () = self.signals.terminated(keyboard) => {
                (ShutdownReason::Signal, LOCK_GRACE_AFTER_SIGNAL)
            }
        };
        // A client process that ends closes its files one after the other, and a terminal that hangs up
        // ends client and plugin: the client's lock file has to be removed nevertheless.
        if self.client.is_some() {
            let _ = timeout(lock_grace, client_exit(self.client.as_mut())).await;
        }
        reason
    }
}

impl Drop for ShutdownWatcher {
    fn drop(&mut self) {
        // Other code may write to standard output and expects it to block.
        self.release_stdout();
    }
}

async fn client_exit(client: Option<&mut ClientLockWatcher>) {
    match client {
        Some(client) => client.released().await,
        None => std::future::pending().await,
    }
}

/// The standard output of this plugin, if it is a pipe: only a pipe shows that its reader has
/// closed it.
fn stdout_pipe() -> Option<pipe::Sender> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
    pipe::Sender::from_owned_fd(stdout).ok()
}

/// Returns when no process can read the standard output of this plugin any more.
async fn stdout_closed(stdout: Option<&pipe::Sender>) {
    if let Some(stdout) = stdout
        && stdout.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Terminating signals. They are caught from the construction on.
#[derive(Debug)]
struct Signals {
    terminate: SignalStream,
    hang_up: SignalStream,
    interrupt: SignalStream,
    quit: SignalStream,
}

/// The meaning of SIGINT and SIGQUIT, which a terminal sends for ^C and ^\.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyboardSignals {
    /// The terminal sends them to all processes of its foreground group. The client decides how to
    /// handle them: a shell continues, and needs the plugin.
    ForClient,
    /// They end the plugin.
    ForPlugin,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let ignored = IgnoredSignals::current();
        let listen = |kind| ignored.listen(kind).map_err(Error::Signals);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
        })
    }

    async fn terminated(&mut self, keyboard: KeyboardSignals) {
        let (interrupt, quit) = (&mut self.interrupt, &mut self.quit);
        let interrupted = async {
            tokio::select! {
                () = interrupt.recv() => {}
                () = quit.recv() => {}
            }
            if keyboard == KeyboardSignals::ForClient {
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

//! One plugin for one user at one cluster: when it is run, and what it has given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use rustls::ClientConfig;
use tokio::sync::{Mutex as Queue, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::understand;
use super::calls::{self, CallStatus};
use super::deadline::{self, Deadline};
use super::lock::LockFile;
use super::process::{Answered, Call, Failure, Staying};
use super::question::{Stdin, is_interactive, question};
use super::{Gate, Wire, said};
use crate::authorities::Authorities;
use crate::credential::{self, Certificate};
use crate::error::Error;
use crate::kubeconfig::{Cluster, Exec};
use crate::secret::Secret;
use crate::tls;

/// Those that may ask the user come one at a time: there is one terminal.
static TERMINAL: Queue<()> = Queue::const_new(());

/// How often a call is begun again that was broken off with the runtime in which it ran.
const ATTEMPTS: usize = 3;

/// How long a call that has ended with the time of whoever waits may take to tell why.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A plugin, and what it gave last. A call that is under way ends with it.
#[derive(Debug)]
pub(crate) struct Plugin {
    program: Arc<Program>,
}

/// What a call needs, which is a task of its own: whoever has begun it may leave, and
/// others wait for it.
#[derive(Debug)]
struct Program {
    exec: Exec,
    cluster: Cluster,
    user: String,
    gate: Gate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    issued: Option<Arc<Issued>>,
    /// At most one at a time, whoever waits for it.
    calling: Option<Calling>,
    /// Taken before the first call, and held for life (KEP-2718, "Proxy Shutdown").
    lock: Option<LockFile>,
}

/// A call that is under way.
#[derive(Debug)]
struct Calling {
    outcome: watch::Receiver<Option<Outcome>>,
    deadline: Arc<Deadline>,
    task: AbortHandle,
}

/// What came of a call, for all who wait for it.
type Outcome = Result<Arc<Issued>, Failed>;

/// Why nothing came of it.
#[derive(Debug, Clone)]
struct Failed {
    cause: String,
    hint: Option<String>,
}

impl Failed {
    fn because(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            hint: None,
        }
    }
}

/// What a plugin gave, and the process that stands behind it.
#[derive(Debug)]
pub(crate) struct Issued {
    /// Kept so that it is overwritten: a header is made of it for each connection.
    token: Option<Secret>,
    expires: Option<SystemTime>,
    /// It had expired when it came, and nobody has used it yet. As client-go does, we use
    /// it once: a clock may be wrong, and some plugins mean that it is not to be kept.
    good_for_once: AtomicBool,
    /// The cluster does not take it: as client-go, we ask the plugin for another.
    refused: AtomicBool,
    way: Way,
    /// The process that is the proxy, or has started one, or has found one.
    staying: Option<Arc<Staying>>,
}

/// How to get to the cluster.
#[derive(Debug)]
pub(crate) enum Way {
    /// Straight, with this certificate.
    Straight(Straight),
    /// Through the plugin's proxy.
    Proxy(Arc<Wire>),
}

/// A credential for the cluster itself.
pub(crate) struct Straight {
    certificate: Option<Certificate>,
    made: Mutex<Option<Made>>,
}

/// What handshakes need, made when it is needed first, and of what.
struct Made {
    authorities: Authorities,
    certificate: Option<Certificate>,
    config: Arc<ClientConfig>,
}

impl Plugin {
    pub(super) fn new(exec: Exec, cluster: Cluster, user: String, gate: Gate) -> Self {
        Self {
            program: Arc::new(Program {
                exec,
                cluster,
                user,
                gate,
                state: Mutex::default(),
            }),
        }
    }

    /// What it has given, unless that has expired or was refused: then it is run again.
    pub(crate) async fn current(&self, patience: Duration) -> Result<Arc<Issued>, Error> {
        let obtained = self.obtain(patience, Issued::is_good).await;
        let Err(error) = obtained else {
            return obtained;
        };
        // As client-go: what was refused may have been refused for another reason, and
        // there is nothing better.
        match self.unexpired() {
            Some(issued) => {
                // All who waited come here; the first has said it for them.
                if issued.refused.swap(false, Ordering::Relaxed) {
                    said::note(&format!("refreshing credentials: {error}"));
                }
                Ok(issued)
            }
            None => Err(error),
        }
    }

    /// What it gives instead of this, which is of no use any more.
    pub(crate) async fn instead_of(
        &self,
        useless: &Arc<Issued>,
        patience: Duration,
    ) -> Result<Arc<Issued>, Error> {
        self.obtain(patience, |issued| {
            !std::ptr::eq(issued, &raw const **useless)
        })
        .await
    }

    /// An error that names the plugin and whose it is.
    pub(crate) fn error(&self, cause: String) -> Error {
        self.program.error(Failed { cause, hint: None })
    }

    async fn obtain(
        &self,
        patience: Duration,
        is_good: impl Fn(&Issued) -> bool,
    ) -> Result<Arc<Issued>, Error> {
        let now = Instant::now();
        let until = deadline::after(now, patience);
        for _ in 0..ATTEMPTS {
            let (outcome, deadline) = {
                let mut state = self.program.lock();
                if let Some(issued) = state.issued.as_ref().filter(|issued| is_good(issued)) {
                    return Ok(issued.clone());
                }
                let under_way = state.calling.take();
                let calling = under_way
                    .filter(|calling| !calling.is_over())
                    .unwrap_or_else(|| self.program.clone().begin(now, patience));
                calling.deadline.extend(patience);
                let calling = state.calling.insert(calling);
                (calling.outcome.clone(), calling.deadline.clone())
            };
            let mut told = timeout_at(until, told(outcome.clone())).await;
            let is_over = deadline.is_over();
            if told.is_err() && is_over {
                told = timeout(LAST_WORDS, self::told(outcome)).await;
            }
            match told {
                Ok(Some(outcome)) => return outcome.map_err(|failed| self.program.error(failed)),
                Ok(None) => {}
                Err(_) => {
                    let still = if is_over {
                        ""
                    } else {
                        "; others wait for it still"
                    };
                    return Err(self.error(format!(
                        "did not give a credential within {} s{still}",
                        patience.as_secs_f64()
                    )));
                }
            }
        }
        Err(self.error("its call was broken off".to_owned()))
    }

    /// What is there and has not expired, be it that it was refused.
    fn unexpired(&self) -> Option<Arc<Issued>> {
        let now = SystemTime::now();
        let issued = self.program.lock().issued.clone();
        issued.filter(|issued| !issued.has_expired(now))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(calling) = self.program.lock().calling.take() {
            calling.task.abort();
        }
    }
}

/// What comes of a call; nothing if it was broken off.
async fn told(mut outcome: watch::Receiver<Option<Outcome>>) -> Option<Outcome> {
    let told = outcome.wait_for(Option::is_some).await.ok()?;
    told.clone()
}

impl Calling {
    /// Broken off, with the runtime in which it ran.
    fn is_over(&self) -> bool {
        self.outcome.has_changed().is_err()
    }
}

impl Program {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, failed: Failed) -> Error {
        Error::Exec {
            command: self.exec.command.display().to_string(),
            user: self.user.clone(),
            cause: failed.cause,
            hint: failed.hint,
        }
    }

    /// Begins a call. It is ended by whoever drops the [`Plugin`].
    fn begin(self: Arc<Self>, now: Instant, patience: Duration) -> Calling {
        let (tell, outcome) = watch::channel(None);
        let deadline = Arc::new(Deadline::new(now, patience));
        let limit = deadline.clone();
        let task = tokio::spawn(async move {
            let called = self.call(&limit).await;
            let mut state = self.lock();
            state.calling = None;
            if let Ok(issued) = &called {
                // The one before goes when its last connection does.
                state.issued = Some(issued.clone());
            }
            drop(state);
            tell.send_replace(Some(called));
        });
        Calling {
            outcome,
            deadline,
            task: task.abort_handle(),
        }
    }

    async fn call(&self, deadline: &Deadline) -> Outcome {
        let mode = self.exec.interactive_mode;
        let interactive = is_interactive(mode, Stdin::now()).map_err(Failed::because)?;
        let (lock, before) = {
            let mut state = self.lock();
            if self.gate == Gate::On && state.lock.is_none() {
                let lock = LockFile::take().map_err(|error| {
                    Failed::because(format!(
                        "no lock file for it can be made: {error}; set $TMPDIR to a directory \
                         that is yours alone, where files can be locked"
                    ))
                })?;
                state.lock = Some(lock);
            }
            let lock = state.lock.as_ref().map(|lock| lock.path().to_owned());
            (lock, state.issued.clone())
        };
        let question = question(&self.exec, &self.cluster, interactive, lock)
            .map_err(|error| Failed::because(error.to_string()))?;
        let _terminal = if interactive {
            tokio::select! {
                biased;
                turn = TERMINAL.lock() => Some(turn),
                () = deadline.passed() => {
                    return Err(Failed::because(format!(
                        "did not give a credential within {} s: another plugin has the terminal",
                        deadline.seconds()
                    )));
                }
            }
        } else {
            None
        };
        let call = Call {
            plugin: &self.exec,
            question: &question,
            interactive,
            deadline,
        };
        let called = call.make().await;
        let issued = called.and_then(|answered| self.issue(answered, before.as_ref()));
        match issued {
            Ok(issued) => {
                if issued.wire().is_some() {
                    calls::count(0, CallStatus::NoError);
                }
                Ok(Arc::new(issued))
            }
            Err(failure) => {
                if self.gate == Gate::On {
                    calls::count(failure.code, failure.status);
                }
                let hint = failure
                    .is_of_plugin()
                    .then(|| self.exec.install_hint.clone());
                Err(Failed {
                    cause: failure.cause,
                    hint: hint.flatten(),
                })
            }
        }
    }

    /// What a plugin's answer is good for, if it is, after what it gave before.
    fn issue(&self, answered: Answered, before: Option<&Arc<Issued>>) -> Result<Issued, Failure> {
        let given = understand(answered.credential, self.exec.api_version, self.gate)
            .map_err(Failure::of_answer)?;
        if given
            .token
            .as_ref()
            .is_some_and(|it| !credential::can_stand_in_header(it))
        {
            return Err(Failure::of_answer(
                "plugin returned a token that no header can hold".to_owned(),
            ));
        }
        let way = match (given.proxy, given.certificate) {
            (Some(proxy), Some(certificate)) => {
                let wire = before.and_then(|it| it.wire());
                let wire = match wire.filter(|wire| wire.is(&proxy, &certificate)) {
                    Some(wire) => {
                        let before = before.and_then(|it| it.staying.clone());
                        if let (Some(staying), Some(before)) = (&answered.staying, before) {
                            staying.may_have_found(before);
                        }
                        wire.clone()
                    }
                    None => Arc::new(Wire::new(proxy, certificate).map_err(Failure::of_answer)?),
                };
                Way::Proxy(wire)
            }
            (_, certificate) => Way::Straight(Straight {
                certificate,
                made: Mutex::default(),
            }),
        };
        let now = SystemTime::now();
        Ok(Issued {
            token: given.token,
            expires: given.expires,
            good_for_once: AtomicBool::new(given.expires.is_some_and(|at| at <= now)),
            refused: AtomicBool::new(false),
            way,
            staying: answered.staying.map(Arc::new),
        })
    }
}

impl Issued {
    /// The header for each request, if there is one.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.token.as_ref().and_then(credential::bearer)
    }

    /// How to get to the cluster.
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// What the process behind a proxy has said, for an error.
    pub(crate) fn said(&self) -> String {
        let staying = self.staying.as_deref();
        staying.map(Staying::said).unwrap_or_default()
    }

    fn wire(&self) -> Option<&Arc<Wire>> {
        match &self.way {
            Way::Proxy(wire) => Some(wire),
            Way::Straight(_) => None,
        }
    }

    /// Whether requests may still be sent with it.
    pub(crate) fn is_good(&self) -> bool {
        let is_in_time =
            || self.good_for_once.load(Ordering::Relaxed) || !self.has_expired(SystemTime::now());
        !self.refused.load(Ordering::Relaxed) && is_in_time()
    }

    /// A connection is opened with it.
    pub(crate) fn used(&self) {
        self.good_for_once.store(false, Ordering::Relaxed);
    }

    /// The cluster has answered 401 to a request that was sent with it.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Straight {
    /// What a handshake with the cluster needs, for those who believe these authorities, and
    /// show this certificate where the plugin gave none. It is made once for as long as
    /// they are the same: sessions are remembered in it.
    pub(crate) fn config(
        &self,
        authorities: &Authorities,
        otherwise: Option<&Certificate>,
    ) -> Result<Arc<ClientConfig>, String> {
        let certificate = self.certificate.as_ref().or(otherwise);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |made: &&Made| {
            made.authorities == *authorities && made.certificate.as_ref() == certificate
        };
        if let Some(made) = made.as_ref().filter(is_same) {
            return Ok(made.config.clone());
        }
        let config = tls::config(&authorities.for_cluster(), certificate)?;
        *made = Some(Made {
            authorities: authorities.clone(),
            certificate: certificate.cloned(),
            config: config.clone(),
        });
        Ok(config)
    }
}

impl std::fmt::Debug for Straight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Straight").field(&self.certificate).finish()
    }
}

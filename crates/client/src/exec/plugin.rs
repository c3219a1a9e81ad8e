//! One plugin for one user at one cluster: when it is run, and what it has given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use rustls::ClientConfig;
use tokio::sync::Mutex;

use super::answer::understand;
use super::calls::{self, CallStatus};
use super::lock::LockFile;
use super::process::{Call, Failure, Staying};
use super::question::{Stdin, is_interactive, question};
use super::{Gate, Wire};
use crate::credential::{self, Certificate};
use crate::error::Error;
use crate::kubeconfig::{Cluster, Exec};

/// Those that may ask the user come one at a time: there is one terminal.
static TERMINAL: Mutex<()> = Mutex::const_new(());

/// A plugin, and what it gave last.
#[derive(Debug)]
pub(crate) struct Plugin {
    exec: Exec,
    cluster: Cluster,
    user: String,
    gate: Gate,
    /// Held while it runs: at most one call at a time, whoever waits for it.
    state: Mutex<State>,
    /// How many calls have ended.
    calls: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    issued: Option<Arc<Issued>>,
    /// Why the last call failed, for all who waited for it.
    failed: Option<String>,
    /// Taken before the first call, and held for life (KEP-2718, "Proxy Shutdown").
    lock: Option<LockFile>,
}

/// What a plugin gave, and the process that stands behind it.
#[derive(Debug)]
pub(crate) struct Issued {
    authorization: Option<HeaderValue>,
    expires: Option<SystemTime>,
    way: Way,
    /// The process that is the proxy, or has started one.
    staying: Option<Staying>,
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
    /// Made when it is needed first.
    config: std::sync::OnceLock<Arc<ClientConfig>>,
}

impl Plugin {
    pub(super) fn new(exec: Exec, cluster: Cluster, user: String, gate: Gate) -> Self {
        Self {
            exec,
            cluster,
            user,
            gate,
            state: Mutex::default(),
            calls: AtomicU64::new(0),
        }
    }

    /// What it has given, unless that has expired: then it is run again.
    pub(crate) async fn current(&self, patience: Duration) -> Result<Arc<Issued>, Error> {
        let now = SystemTime::now();
        self.obtain(patience, |issued| !issued.has_expired(now))
            .await
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
        self.error_with(cause, None)
    }

    fn error_with(&self, cause: String, hint: Option<String>) -> Error {
        Error::Exec {
            command: self.exec.command.display().to_string(),
            user: self.user.clone(),
            cause,
            hint,
        }
    }

    async fn obtain(
        &self,
        patience: Duration,
        is_good: impl Fn(&Issued) -> bool,
    ) -> Result<Arc<Issued>, Error> {
        let calls = self.calls.load(Ordering::Acquire);
        let mut state = self.state.lock().await;
        if let Some(issued) = state.issued.as_ref().filter(|issued| is_good(issued)) {
            return Ok(issued.clone());
        }
        if self.calls.load(Ordering::Acquire) != calls
            && let Some(cause) = &state.failed
        {
            return Err(self.error(cause.clone()));
        }
        let called = self.call(&mut state, patience).await;
        self.calls.fetch_add(1, Ordering::AcqRel);
        match called {
            Ok(issued) => {
                state.failed = None;
                // The one before goes when its last connection does.
                state.issued = Some(issued.clone());
                Ok(issued)
            }
            Err(error) => {
                if let Error::Exec { cause, .. } = &error {
                    state.failed = Some(cause.clone());
                }
                Err(error)
            }
        }
    }

    async fn call(&self, state: &mut State, patience: Duration) -> Result<Arc<Issued>, Error> {
        let mode = self.exec.interactive_mode;
        let interactive = is_interactive(mode, Stdin::now()).map_err(|cause| self.error(cause))?;
        if self.gate == Gate::On && state.lock.is_none() {
            let lock = LockFile::take().map_err(|error| {
                self.error(format!(
                    "no lock file for it can be made: {error}; set $TMPDIR to a directory that is \
                     yours alone"
                ))
            })?;
            state.lock = Some(lock);
        }
        let lock = state.lock.as_ref().map(|lock| lock.path().to_owned());
        let question = question(&self.exec, &self.cluster, interactive, lock)?;
        let _terminal = if interactive {
            Some(TERMINAL.lock().await)
        } else {
            None
        };
        let call = Call {
            plugin: &self.exec,
            question: &question,
            interactive,
            patience,
        };
        let before = state.issued.as_deref().and_then(Issued::wire);
        let called = call.make().await;
        let issued = called.and_then(|answered| {
            let given = understand(answered.credential, self.exec.api_version, self.gate)
                .map_err(Failure::of_answer)?;
            let authorization = match &given.token {
                None => None,
                Some(token) => Some(credential::bearer(token).ok_or_else(|| {
                    Failure::of_answer("plugin returned a token that no header can hold".to_owned())
                })?),
            };
            let way = match (given.proxy, given.certificate) {
                (Some(proxy), Some(certificate)) => {
                    let known = before.filter(|wire| wire.is(&proxy, &certificate));
                    let wire = match known {
                        Some(wire) => wire.clone(),
                        None => {
                            Arc::new(Wire::new(proxy, certificate).map_err(Failure::of_answer)?)
                        }
                    };
                    Way::Proxy(wire)
                }
                (_, certificate) => Way::Straight(Straight {
                    certificate,
                    config: std::sync::OnceLock::new(),
                }),
            };
            Ok(Issued {
                authorization,
                expires: given.expires,
                way,
                staying: answered.staying,
            })
        });
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
                Err(self.error_with(failure.cause, hint.flatten()))
            }
        }
    }
}

impl Issued {
    /// The header for each request, if there is one.
    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// How to get to the cluster.
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// What the process behind a proxy has said, for an error.
    pub(crate) fn said(&self) -> String {
        self.staying.as_ref().map(Staying::said).unwrap_or_default()
    }

    fn wire(&self) -> Option<&Arc<Wire>> {
        match &self.way {
            Way::Proxy(wire) => Some(wire),
            Way::Straight(_) => None,
        }
    }

    fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Straight {
    /// What a handshake with the cluster needs, made once.
    pub(crate) fn config<E>(
        &self,
        make: impl FnOnce(Option<&Certificate>) -> Result<Arc<ClientConfig>, E>,
    ) -> Result<Arc<ClientConfig>, E> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let config = make(self.certificate.as_ref())?;
        Ok(self.config.get_or_init(|| config).clone())
    }
}

impl std::fmt::Debug for Straight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Straight").field(&self.certificate).finish()
    }
}

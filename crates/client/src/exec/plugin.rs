//! One plugin for one user at one cluster: when it is run, and what it has given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use rustls::ClientConfig;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::deadline::{self, Deadline};
use super::exec_info::{Stdin, exec_info, is_interactive};
use super::lock_file::LockFile;
use super::metrics::{self, CallStatus};
use super::plugin_output::validate_output;
use super::process::{Call, CallFailure, CallOutput, RunningPlugin};
use super::{FeatureGate, ProxyConnector, stderr_capture};
use crate::ca_roots::CaRoots;
use crate::credential::{self, Certificate};
use crate::error::Error;
use crate::kubeconfig::{Cluster, Exec};
use crate::secret::Secret;
use crate::tls;

/// Those that may ask the user come one at a time: there is one terminal.
static TERMINAL_LOCK: AsyncMutex<()> = AsyncMutex::const_new(());

/// How often a call is begun again that was broken off with the runtime in which it ran.
const MAX_ATTEMPTS: usize = 3;

/// How long a call that has ended with the time of whoever waits may take to tell why.
const RESULT_GRACE: Duration = Duration::from_secs(2);

/// A plugin, and what it gave last. A call that is under way ends with it.
#[derive(Debug)]
pub(crate) struct Plugin {
    inner: Arc<PluginInner>,
}

/// What a call needs, which is a task of its own: whoever has begun it may leave, and
/// others wait for it.
#[derive(Debug)]
struct PluginInner {
    exec: Exec,
    cluster: Cluster,
    user: String,
    gate: FeatureGate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    issued: Option<Arc<IssuedCredential>>,
    /// At most one at a time, whoever waits for it.
    pending_call: Option<PendingCall>,
    /// Taken before the first call, and held for life (KEP-2718, "Proxy Shutdown").
    lock: Option<LockFile>,
}

/// A call that is under way.
#[derive(Debug)]
struct PendingCall {
    outcome: watch::Receiver<Option<Outcome>>,
    deadline: Arc<Deadline>,
    task: AbortHandle,
}

/// What came of a call, for all who wait for it.
type Outcome = Result<Arc<IssuedCredential>, CallError>;

/// Why nothing came of it.
#[derive(Debug, Clone)]
struct CallError {
    cause: String,
    hint: Option<String>,
}

impl CallError {
    fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            hint: None,
        }
    }
}

/// What a plugin gave, and the process that stands behind it.
#[derive(Debug)]
pub(crate) struct IssuedCredential {
    /// Kept so that it is overwritten: a header is made of it for each connection.
    token: Option<Secret>,
    expires: Option<SystemTime>,
    /// It had expired when it came, and nobody has used it yet. As client-go does, we use
    /// it once: a clock may be wrong, and some plugins mean that it is not to be kept.
    usable_once: AtomicBool,
    /// The cluster does not take it: as client-go, we ask the plugin for another.
    unauthorized: AtomicBool,
    route: Route,
    /// The process that is the proxy, or has started one, or has found one.
    running: Option<Arc<RunningPlugin>>,
}

/// How to get to the cluster.
#[derive(Debug)]
pub(crate) enum Route {
    /// Straight, with this certificate.
    Direct(Direct),
    /// Through the plugin's proxy.
    Proxy(Arc<ProxyConnector>),
}

/// A credential for the cluster itself.
pub(crate) struct Direct {
    certificate: Option<Certificate>,
    tls_config: Mutex<Option<CachedTlsConfig>>,
}

/// What handshakes need, made when it is needed first, and of what.
struct CachedTlsConfig {
    ca_roots: CaRoots,
    certificate: Option<Certificate>,
    config: Arc<ClientConfig>,
}

impl Plugin {
    pub(super) fn new(exec: Exec, cluster: Cluster, user: String, gate: FeatureGate) -> Self {
        Self {
            inner: Arc::new(PluginInner {
                exec,
                cluster,
                user,
                gate,
                state: Mutex::default(),
            }),
        }
    }

    /// What it has given, unless that has expired or was refused: then it is run again.
    pub(crate) async fn current(&self, timeout: Duration) -> Result<Arc<IssuedCredential>, Error> {
        let obtained = self.obtain(timeout, IssuedCredential::is_valid).await;
        let Err(error) = obtained else {
            return obtained;
        };
        // As client-go: what was refused may have been refused for another reason, and
        // there is nothing better.
        match self.unexpired() {
            Some(issued) => {
                // All who waited come here; the first has said it for them.
                if issued.unauthorized.swap(false, Ordering::Relaxed) {
                    stderr_capture::print_note(&format!("refreshing credentials: {error}"));
                }
                Ok(issued)
            }
            None => Err(error),
        }
    }

    /// What it gives instead of this, which is of no use any more.
    pub(crate) async fn replace(
        &self,
        unusable: &Arc<IssuedCredential>,
        timeout: Duration,
    ) -> Result<Arc<IssuedCredential>, Error> {
        self.obtain(timeout, |issued| {
            !std::ptr::eq(issued, &raw const **unusable)
        })
        .await
    }

    /// An error that names the plugin and whose it is.
    pub(crate) fn error(&self, cause: String) -> Error {
        self.inner.error(CallError { cause, hint: None })
    }

    async fn obtain(
        &self,
        timeout: Duration,
        is_valid: impl Fn(&IssuedCredential) -> bool,
    ) -> Result<Arc<IssuedCredential>, Error> {
        let now = Instant::now();
        let until = deadline::deadline_after(now, timeout);
        for _ in 0..MAX_ATTEMPTS {
            let (outcome, deadline) = {
                let mut state = self.inner.lock();
                if let Some(issued) = state.issued.as_ref().filter(|issued| is_valid(issued)) {
                    return Ok(issued.clone());
                }
                let current = state.pending_call.take();
                let pending_call = current
                    .filter(|pending_call| !pending_call.is_aborted())
                    .unwrap_or_else(|| self.inner.clone().begin(now, timeout));
                pending_call.deadline.extend(timeout);
                let pending_call = state.pending_call.insert(pending_call);
                (pending_call.outcome.clone(), pending_call.deadline.clone())
            };
            let mut result = timeout_at(until, wait_for_result(outcome.clone())).await;
            let has_expired = deadline.has_expired();
            if result.is_err() && has_expired {
                result = tokio::time::timeout(RESULT_GRACE, wait_for_result(outcome)).await;
            }
            match result {
                Ok(Some(outcome)) => return outcome.map_err(|error| self.inner.error(error)),
                Ok(None) => {}
                Err(_) => {
                    let waiting_suffix = if has_expired {
                        ""
                    } else {
                        "; others wait for it still"
                    };
                    return Err(self.error(format!(
                        "did not give a credential within {} s{waiting_suffix}",
                        timeout.as_secs_f64()
                    )));
                }
            }
        }
        Err(self.error("its call was broken off".to_owned()))
    }

    /// What is there and has not expired, be it that it was refused.
    fn unexpired(&self) -> Option<Arc<IssuedCredential>> {
        let now = SystemTime::now();
        let issued = self.inner.lock().issued.clone();
        issued.filter(|issued| !issued.has_expired(now))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(pending_call) = self.inner.lock().pending_call.take() {
            pending_call.task.abort();
        }
    }
}

/// What comes of a call; nothing if it was broken off.
async fn wait_for_result(mut outcome: watch::Receiver<Option<Outcome>>) -> Option<Outcome> {
    let result = outcome.wait_for(Option::is_some).await.ok()?;
    result.clone()
}

impl PendingCall {
    /// Broken off, with the runtime in which it ran.
    fn is_aborted(&self) -> bool {
        self.outcome.has_changed().is_err()
    }
}

impl PluginInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, error: CallError) -> Error {
        Error::Exec {
            command: self.exec.command.display().to_string(),
            user: self.user.clone(),
            cause: error.cause,
            hint: error.hint,
        }
    }

    /// Begins a call. It is ended by whoever drops the [`Plugin`].
    fn begin(self: Arc<Self>, now: Instant, timeout: Duration) -> PendingCall {
        let (sender, outcome) = watch::channel(None);
        let deadline = Arc::new(Deadline::new(now, timeout));
        let call_deadline = deadline.clone();
        let task = tokio::spawn(async move {
            let result = self.call(&call_deadline).await;
            let mut state = self.lock();
            state.pending_call = None;
            if let Ok(issued) = &result {
                // The one before goes when its last connection does.
                state.issued = Some(issued.clone());
            }
            drop(state);
            sender.send_replace(Some(result));
        });
        PendingCall {
            outcome,
            deadline,
            task: task.abort_handle(),
        }
    }

    async fn call(&self, deadline: &Deadline) -> Outcome {
        let mode = self.exec.interactive_mode;
        let interactive = is_interactive(mode, Stdin::current()).map_err(CallError::new)?;
        let (lock, previous) = {
            let mut state = self.lock();
            if self.gate == FeatureGate::On && state.lock.is_none() {
                let lock = LockFile::create().map_err(|error| {
                    CallError::new(format!(
                        "no lock file for it can be made: {error}; set $TMPDIR to a directory \
                         that is yours alone, where files can be locked"
                    ))
                })?;
                state.lock = Some(lock);
            }
            let lock = state.lock.as_ref().map(|lock| lock.path().to_owned());
            (lock, state.issued.clone())
        };
        let exec_info = exec_info(&self.exec, &self.cluster, interactive, lock)
            .map_err(|error| CallError::new(error.to_string()))?;
        let _terminal = if interactive {
            tokio::select! {
                biased;
                guard = TERMINAL_LOCK.lock() => Some(guard),
                () = deadline.expired() => {
                    return Err(CallError::new(format!(
                        "did not give a credential within {} s: another plugin has the terminal",
                        deadline.total_seconds()
                    )));
                }
            }
        } else {
            None
        };
        let call = Call {
            plugin: &self.exec,
            exec_info: &exec_info,
            interactive,
            deadline,
        };
        let result = call.run().await;
        let issued = result.and_then(|output| self.issue(output, previous.as_ref()));
        match issued {
            Ok(issued) => {
                if issued.connector().is_some() {
                    metrics::record_call(0, CallStatus::NoError);
                }
                Ok(Arc::new(issued))
            }
            Err(failure) => {
                if self.gate == FeatureGate::On {
                    metrics::record_call(failure.code, failure.status);
                }
                let hint = failure
                    .is_plugin_failure()
                    .then(|| self.exec.install_hint.clone());
                Err(CallError {
                    cause: failure.cause,
                    hint: hint.flatten(),
                })
            }
        }
    }

    /// What a plugin's answer is good for, if it is, after what it gave before.
    fn issue(
        &self,
        output: CallOutput,
        previous: Option<&Arc<IssuedCredential>>,
    ) -> Result<IssuedCredential, CallFailure> {
        let validated = validate_output(output.credential, self.exec.api_version, self.gate)
            .map_err(CallFailure::bad_output)?;
        if validated
            .token
            .as_ref()
            .is_some_and(|it| !credential::is_valid_header_value(it))
        {
            return Err(CallFailure::bad_output(
                "plugin returned a token that no header can hold".to_owned(),
            ));
        }
        let route = match (validated.proxy, validated.certificate) {
            (Some(proxy), Some(certificate)) => {
                let connector = previous.and_then(|it| it.connector());
                let connector = match connector
                    .filter(|connector| connector.matches(&proxy, &certificate))
                {
                    Some(connector) => {
                        let previous = previous.and_then(|it| it.running.clone());
                        if let (Some(running), Some(previous)) = (&output.running, previous) {
                            running.set_predecessor(previous);
                        }
                        connector.clone()
                    }
                    None => Arc::new(
                        ProxyConnector::new(proxy, certificate).map_err(CallFailure::bad_output)?,
                    ),
                };
                Route::Proxy(connector)
            }
            (_, certificate) => Route::Direct(Direct {
                certificate,
                tls_config: Mutex::default(),
            }),
        };
        let now = SystemTime::now();
        Ok(IssuedCredential {
            token: validated.token,
            expires: validated.expires,
            usable_once: AtomicBool::new(validated.expires.is_some_and(|at| at <= now)),
            unauthorized: AtomicBool::new(false),
            route,
            running: output.running.map(Arc::new),
        })
    }
}

impl IssuedCredential {
    /// The header for each request, if there is one.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.token.as_ref().and_then(credential::bearer_header)
    }

    /// How to get to the cluster.
    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    /// What the process behind a proxy has said, for an error.
    pub(crate) fn stderr_suffix(&self) -> String {
        let running = self.running.as_deref();
        running
            .map(RunningPlugin::stderr_suffix)
            .unwrap_or_default()
    }

    fn connector(&self) -> Option<&Arc<ProxyConnector>> {
        match &self.route {
            Route::Proxy(connector) => Some(connector),
            Route::Direct(_) => None,
        }
    }

    /// Whether requests may still be sent with it.
    pub(crate) fn is_valid(&self) -> bool {
        let is_unexpired =
            || self.usable_once.load(Ordering::Relaxed) || !self.has_expired(SystemTime::now());
        !self.unauthorized.load(Ordering::Relaxed) && is_unexpired()
    }

    /// A connection is opened with it.
    pub(crate) fn mark_used(&self) {
        self.usable_once.store(false, Ordering::Relaxed);
    }

    /// The cluster has answered 401 to a request that was sent with it.
    pub(crate) fn mark_unauthorized(&self) {
        self.unauthorized.store(true, Ordering::Relaxed);
    }

    fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Direct {
    /// What a handshake with the cluster needs, for those who believe these authorities, and
    /// show this certificate where the plugin gave none. It is made once for as long as
    /// they are the same: sessions are remembered in it.
    pub(crate) fn config(
        &self,
        ca_roots: &CaRoots,
        fallback: Option<&Certificate>,
    ) -> Result<Arc<ClientConfig>, String> {
        let certificate = self.certificate.as_ref().or(fallback);
        let mut tls_config = self
            .tls_config
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_same = |tls_config: &&CachedTlsConfig| {
            tls_config.ca_roots == *ca_roots && tls_config.certificate.as_ref() == certificate
        };
        if let Some(tls_config) = tls_config.as_ref().filter(is_same) {
            return Ok(tls_config.config.clone());
        }
        let config = tls::config(&ca_roots.for_cluster(), certificate)?;
        *tls_config = Some(CachedTlsConfig {
            ca_roots: ca_roots.clone(),
            certificate: certificate.cloned(),
            config: config.clone(),
        });
        Ok(config)
    }
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Straight").field(&self.certificate).finish()
    }
}

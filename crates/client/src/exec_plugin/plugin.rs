//! One plugin for one user at one cluster: when it runs, and the credential it issued.

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
use crate::Secret;
use crate::error::Error;
use crate::kubeconfig::{Cluster, Exec};
use crate::transport::{CaRoots, Certificate, bearer_header, is_valid_header_value, tls_config};

/// Interactive plugins run one at a time: there is one terminal.
static TERMINAL_LOCK: AsyncMutex<()> = AsyncMutex::const_new(());

/// How often a call is restarted that was aborted together with its runtime.
const MAX_ATTEMPTS: usize = 3;

/// How long a call that ended at its deadline may take to report why.
const RESULT_GRACE: Duration = Duration::from_secs(2);

/// A plugin with the credential it issued last. Dropping it aborts a pending call.
#[derive(Debug)]
pub(crate) struct Plugin {
    inner: Arc<PluginInner>,
}

/// Shared with the call's task: the caller that started the call may leave while others wait
/// for it.
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
    /// At most one at a time, shared by all callers.
    pending_call: Option<PendingCall>,
    /// Created before the first call, and held until the plugin is dropped (KEP-2718, "Proxy
    /// Shutdown").
    lock: Option<LockFile>,
}

/// A call in progress.
#[derive(Debug)]
struct PendingCall {
    outcome: watch::Receiver<Option<Outcome>>,
    deadline: Arc<Deadline>,
    task: AbortHandle,
}

/// The result of a call, for all callers.
type Outcome = Result<Arc<IssuedCredential>, CallError>;

/// Why a call failed.
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

/// A credential that a plugin issued, and the process behind it.
#[derive(Debug)]
pub(crate) struct IssuedCredential {
    /// Stored as a secret so that it is zeroed; the header is made for each connection.
    token: Option<Secret>,
    expires: Option<SystemTime>,
    /// The credential had already expired when it was issued, and is unused so far. As in
    /// client-go, it is used once: a clock may be wrong, and some plugins mark credentials as
    /// not cacheable this way.
    usable_once: AtomicBool,
    /// The cluster answered 401. As in client-go, the plugin is then run again.
    unauthorized: AtomicBool,
    route: Route,
    /// The process that is the proxy, started the proxy, or found a running one.
    running: Option<Arc<RunningPlugin>>,
}

/// How connections reach the cluster.
#[derive(Debug)]
pub(crate) enum Route {
    /// Directly, with this client certificate.
    Direct(Direct),
    /// Through the plugin's proxy.
    Proxy(Arc<ProxyConnector>),
}

/// A credential for direct connections to the cluster.
pub(crate) struct Direct {
    certificate: Option<Certificate>,
    tls_config: Mutex<Option<CachedTlsConfig>>,
}

/// A TLS configuration, made on first use, and its inputs.
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

    /// The issued credential. The plugin runs again if the credential has expired or was
    /// answered with 401.
    pub(crate) async fn current(&self, timeout: Duration) -> Result<Arc<IssuedCredential>, Error> {
        let obtained = self.obtain(timeout, IssuedCredential::is_valid).await;
        let Err(error) = obtained else {
            return obtained;
        };
        // As in client-go: the 401 may have had another reason, and there is no better
        // credential.
        match self.unexpired() {
            Some(issued) => {
                // All waiting callers get here; only the first one prints the note.
                if issued.unauthorized.swap(false, Ordering::Relaxed) {
                    stderr_capture::print_note(&format!("refreshing credentials: {error}"));
                }
                Ok(issued)
            }
            None => Err(error),
        }
    }

    /// Gets a replacement for a credential that does not work any more.
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

    /// An error that names the plugin and its user.
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
                        "; other requests still wait for it"
                    };
                    return Err(self.error(format!(
                        "did not give a credential within {} s{waiting_suffix}",
                        timeout.as_secs_f64()
                    )));
                }
            }
        }
        Err(self.error("its call was aborted".to_owned()))
    }

    /// The issued credential if it has not expired, even if it was answered with 401.
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

/// Waits for the result of a call; `None` if it was aborted.
async fn wait_for_result(mut outcome: watch::Receiver<Option<Outcome>>) -> Option<Outcome> {
    let result = outcome.wait_for(Option::is_some).await.ok()?;
    result.clone()
}

impl PendingCall {
    /// Whether the call was aborted together with its runtime.
    fn is_aborted(&self) -> bool {
        self.outcome.has_changed().is_err()
    }
}

impl PluginInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under this lock.
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

    /// Starts a call. Dropping the [`Plugin`] aborts it.
    fn begin(self: Arc<Self>, now: Instant, timeout: Duration) -> PendingCall {
        let (sender, outcome) = watch::channel(None);
        let deadline = Arc::new(Deadline::new(now, timeout));
        let call_deadline = deadline.clone();
        let task = tokio::spawn(async move {
            let result = self.call(&call_deadline).await;
            let mut state = self.lock();
            state.pending_call = None;
            if let Ok(issued) = &result {
                // The previous credential is dropped with its last connection.
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

    /// Turns a plugin's output into a credential; a proxy connection to the same address is
    /// kept.
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
            .is_some_and(|it| !is_valid_header_value(it))
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
    /// The `Authorization` header, if the credential has a token.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.token.as_ref().and_then(bearer_header)
    }

    /// How connections reach the cluster.
    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    /// The stderr of the proxy's process, as a suffix of an error message.
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

    /// Whether requests may still use this credential.
    pub(crate) fn is_valid(&self) -> bool {
        let is_unexpired =
            || self.usable_once.load(Ordering::Relaxed) || !self.has_expired(SystemTime::now());
        !self.unauthorized.load(Ordering::Relaxed) && is_unexpired()
    }

    /// Records that a connection was opened with this credential.
    pub(crate) fn mark_used(&self) {
        self.usable_once.store(false, Ordering::Relaxed);
    }

    /// Records that the cluster answered 401 to a request with this credential.
    pub(crate) fn mark_unauthorized(&self) {
        self.unauthorized.store(true, Ordering::Relaxed);
    }

    fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Direct {
    /// The TLS configuration for the cluster, with these CA roots, and with the `fallback`
    /// certificate if the plugin gave none. It is cached while these inputs stay the same,
    /// because TLS sessions are remembered in it.
    pub(crate) fn config(
        &self,
        ca_roots: &CaRoots,
        fallback: Option<&Certificate>,
    ) -> Result<Arc<ClientConfig>, String> {
        let certificate = self.certificate.as_ref().or(fallback);
        let mut cached = self
            .tls_config
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_same = |cached: &&CachedTlsConfig| {
            cached.ca_roots == *ca_roots && cached.certificate.as_ref() == certificate
        };
        if let Some(cached) = cached.as_ref().filter(is_same) {
            return Ok(cached.config.clone());
        }
        let config = tls_config(&ca_roots.for_cluster(), certificate)?;
        *cached = Some(CachedTlsConfig {
            ca_roots: ca_roots.clone(),
            certificate: certificate.cloned(),
            config: config.clone(),
        });
        Ok(config)
    }
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Direct").field(&self.certificate).finish()
    }
}

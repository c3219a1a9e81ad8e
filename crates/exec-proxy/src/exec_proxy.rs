//! A plugin process from start to shutdown.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_k8s_api::exec_credential::{ExecCredential, ProxyConfig, Status, Version};

use crate::Error;
use crate::client_key::ClientKey;
use crate::cluster::Cluster;
use crate::ephemeral_ca::EphemeralCa;
use crate::exec_info::ExecInfo;
use crate::forward::{Forwarder, Listener, ServerThread};
use crate::modifier::RequestModifier;
use crate::shared_instance::{InstancePath, READY_LINE, serve_credentials};
use crate::shutdown_watcher::{LockFile, ShutdownReason, ShutdownWatcher};
use crate::socket::{self, Listen, ListenAddress};
use crate::stdio::{self, StdStream};

/// How long the shutdown waits for requests to be aborted. They need no time unless one blocks
/// its thread.
const ABORT_TIMEOUT: Duration = Duration::from_millis(300);

/// How long a plugin runs without a request (KEP-2718, "Proxy Shutdown").
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(5);

/// A plugin that is a proxy, with its request modifiers and its key.
///
/// ```no_run
/// use skewbridge_exec_proxy::forward::BoxFuture;
/// use skewbridge_exec_proxy::{ExecInfo, ExecProxy, ModifyError, Outgoing, RequestModifier};
///
/// struct Badge;
///
/// impl RequestModifier for Badge {
///     fn name(&self) -> &str {
///         "badge"
///     }
///
///     fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
///         Box::pin(async move {
///             request.headers.insert("x-badge", http::HeaderValue::from_static("4711"));
///             Ok(())
///         })
///     }
/// }
///
/// # async fn example() -> Result<(), skewbridge_exec_proxy::Error> {
/// let reason = ExecProxy::new().modifier(Badge).run(&ExecInfo::from_environment()?).await?;
/// eprintln!("{reason}");
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct ExecProxy {
    key: Option<Arc<dyn ClientKey>>,
    modifiers: Vec<Box<dyn RequestModifier>>,
    listen: Listen,
    idle_timeout: Option<Duration>,
    lock: LockFile,
    body_limit: Option<usize>,
}

impl ExecProxy {
    /// A plugin that forwards requests unchanged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the certificate of this key to the cluster.
    #[must_use]
    pub fn key(mut self, key: Arc<dyn ClientKey>) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds a modifier, which runs after those added before.
    #[must_use]
    pub fn modifier(mut self, modifier: impl RequestModifier) -> Self {
        self.modifiers.push(Box::new(modifier));
        self
    }

    /// Like [`ExecProxy::modifier`], for a boxed modifier.
    #[must_use]
    pub fn boxed_modifier(mut self, modifier: Box<dyn RequestModifier>) -> Self {
        self.modifiers.push(modifier);
        self
    }

    /// Sets what the plugin listens on, instead of a Unix socket.
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// Ends after this time without a request, instead of [`IDLE_TIMEOUT`].
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Sets whether the client must have a lock file.
    #[must_use]
    pub fn lock_file(mut self, lock: LockFile) -> Self {
        self.lock = lock;
        self
    }

    /// Sets the longest body that is buffered for modifiers, instead of
    /// [`DEFAULT_MAX_BODY_BYTES`](crate::forward::DEFAULT_MAX_BODY_BYTES).
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = Some(bytes);
        self
    }

    /// Serves one client in this process: prints the credential on standard output, closes
    /// standard output, and serves until the client exits, the idle timeout expires or a signal
    /// arrives. Then it removes all its files.
    pub async fn run(self, exec_info: &ExecInfo) -> Result<ShutdownReason, Error> {
        let shutdown = ShutdownWatcher::start(exec_info, self.lock)?;
        self.run_with_watcher(exec_info, shutdown).await
    }

    /// Like [`ExecProxy::run`], with a watcher that was started before. The lock file setting of
    /// the watcher applies.
    pub async fn run_with_watcher(
        self,
        exec_info: &ExecInfo,
        mut shutdown: ShutdownWatcher,
    ) -> Result<ShutdownReason, Error> {
        let instance = self.start(exec_info).await?;
        let credential = instance.credential(exec_info.version)?;
        shutdown.release_stdout();
        stdio::print(&credential)?;
        drop(credential);
        stdio::redirect_to_null(&[StdStream::Stdin, StdStream::Stdout]);
        instance.serve(shutdown, std::future::pending()).await
    }

    /// Serves all clients that request a credential at this path, until the idle timeout expires
    /// or a signal arrives. When it is ready, it prints a line on standard output and leaves its
    /// terminal. Until then it ends with the client that has started it. The client's side is
    /// [`InstancePath::request_credential`].
    pub async fn run_shared(
        self,
        exec_info: &ExecInfo,
        path: &InstancePath,
    ) -> Result<ShutdownReason, Error> {
        let shutdown = ShutdownWatcher::start(exec_info, LockFile::Optional)?;
        self.run_shared_with_watcher(exec_info, path, shutdown)
            .await
    }

    /// Like [`ExecProxy::run_shared`], with a watcher that was started before.
    pub async fn run_shared_with_watcher(
        self,
        exec_info: &ExecInfo,
        path: &InstancePath,
        mut shutdown: ShutdownWatcher,
    ) -> Result<ShutdownReason, Error> {
        let instance = Arc::new(self.start(exec_info).await?);
        let (listener, _guard) = path.bind()?;
        shutdown.release_stdout();
        let mut stdout = std::io::stdout();
        stdout
            .write_all(READY_LINE)
            .and_then(|()| stdout.flush())
            .map_err(Error::Output)?;
        shutdown.detach_client();
        stdio::redirect_to_null(&[StdStream::Stdin, StdStream::Stdout, StdStream::Stderr]);
        // Fails for the leader of a process group, which has left its terminal before.
        let _ = rustix::process::setsid();
        let issue = {
            let instance = instance.clone();
            move |version| instance.credential(version)
        };
        let activity = instance.forwarder.activity().clone();
        let credentials = serve_credentials(listener, activity, issue);
        instance.serve(shutdown, credentials).await
    }

    async fn start(self, exec_info: &ExecInfo) -> Result<Instance, Error> {
        let cluster = Cluster::new(&exec_info.cluster, self.key)?;
        let host = cluster.authority().host();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut names = vec![host.to_owned()];
        names.extend(exec_info.cluster.tls_server_name.clone());
        let ca = EphemeralCa::new()?;
        let tls = ca.server_config(&names)?;
        let host = cluster.authority().clone();
        let mut forwarder = Forwarder::new(cluster, host, self.modifiers);
        if let Some(limit) = self.body_limit {
            forwarder = forwarder.body_limit(limit);
        }
        let (listener, address) = socket::listen(self.listen).await?;
        Ok(Instance {
            ca,
            tls,
            forwarder: Arc::new(forwarder),
            listener: std::sync::Mutex::new(Some(listener)),
            address: std::sync::Mutex::new(address),
            idle_timeout: self.idle_timeout.unwrap_or(IDLE_TIMEOUT),
        })
    }
}

impl std::fmt::Debug for ExecProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modifiers: Vec<_> = self.modifiers.iter().map(|it| it.name()).collect();
        f.debug_struct("ExecProxy")
            .field("key", &self.key)
            .field("modifiers", &modifiers)
            .finish_non_exhaustive()
    }
}

/// A listening proxy.
struct Instance {
    ca: EphemeralCa,
    tls: Arc<rustls::ServerConfig>,
    forwarder: Arc<Forwarder>,
    listener: std::sync::Mutex<Option<Listener>>,
    address: std::sync::Mutex<ListenAddress>,
    idle_timeout: Duration,
}

impl Instance {
    /// Issues a credential to one client: the proxy's URL, its CA, and a client certificate with
    /// its key (KEP-2718, "Authentication to Proxy", option 1).
    fn credential(&self, version: Version) -> Result<ExecCredential, Error> {
        let client = self.ca.issue_client()?;
        let status = Status {
            client_certificate_data: Some(client.certificate),
            client_key_data: Some(client.key),
            proxy_config: Some(ProxyConfig {
                url: lock(&self.address).url.clone(),
                certificate_authority_data: self.ca.pem().as_bytes().to_vec(),
            }),
            ..Status::default()
        };
        Ok(ExecCredential::response(version, status))
    }

    /// Serves until shutdown. Then removes the socket and aborts all requests. `credentials`
    /// runs concurrently and does not end.
    async fn serve(
        &self,
        mut shutdown: ShutdownWatcher,
        credentials: impl Future<Output = ()>,
    ) -> Result<ShutdownReason, Error> {
        let Some(listener) = lock(&self.listener).take() else {
            return Ok(ShutdownReason::Signal);
        };
        let server = ServerThread::start(listener, self.tls.clone(), self.forwarder.clone());
        let mut server = server.map_err(|cause| Error::Listen {
            at: lock(&self.address).url.clone(),
            cause,
        })?;
        let idle_timeout = self.idle_timeout;
        let reason = tokio::select! {
            () = server.ended() => ShutdownReason::Signal,
            () = credentials => ShutdownReason::Signal,
            reason = shutdown.requested() => reason,
            () = self.forwarder.activity().wait_until_idle(idle_timeout) => ShutdownReason::Idle(idle_timeout),
        };
        lock(&self.address).remove();
        server.stop(ABORT_TIMEOUT).await;
        Ok(reason)
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code panics while it holds these locks.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

//! A plugin from its start to its end.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_k8s_api::exec_credential::{ExecCredential, ProxyConfig, Status, Version};

use crate::asked::Asked;
use crate::cluster::Cluster;
use crate::forward::{Apart, Forwarder, Listener};
use crate::identity::Authority;
use crate::key::ClientKey;
use crate::modifier::RequestModifier;
use crate::shared::Seat;
use crate::socket::{self, Listen, Place};
use crate::vigil::Vigil;
use crate::{Error, shared};

/// How long what is under way may take to be cut: no time, if nothing blocks.
const FAREWELL: Duration = Duration::from_millis(300);

/// How long a plugin stays without a request (KEP-2718, "Proxy Shutdown").
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(5);

/// A plugin that is a proxy: what it does to requests is given to it, and the rest
/// it does itself.
///
/// ```no_run
/// use skewbridge_exec_proxy::forward::BoxFuture;
/// use skewbridge_exec_proxy::{Asked, Harness, ModifyError, Outgoing, RequestModifier};
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
/// let ended = Harness::new().modifier(Badge).run(&Asked::from_environment()?).await?;
/// eprintln!("{ended}");
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Harness {
    key: Option<Arc<dyn ClientKey>>,
    modifiers: Vec<Box<dyn RequestModifier>>,
    listen: Listen,
    idle: Option<Duration>,
    lock: LockFile,
    body_limit: Option<usize>,
}

/// Whether the client has to have a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockFile {
    /// A client without one does not know what to do with a proxy, and would wait
    /// for the plugin to end.
    #[default]
    Required,
    /// A client without one is only noticed to be gone when nothing is asked.
    Optional,
}

/// Why a plugin has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its client has.
    ClientGone,
    /// Nothing was asked for so long.
    Idle(Duration),
    /// It was told to.
    Signal,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ClientGone => f.write_str("the client is gone"),
            Self::Idle(time) => write!(f, "nothing was asked for {} s", time.as_secs_f64()),
            Self::Signal => f.write_str("told to stop by a signal"),
        }
    }
}

impl Harness {
    /// A plugin that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows a certificate to the cluster.
    #[must_use]
    pub fn key(mut self, key: Arc<dyn ClientKey>) -> Self {
        self.key = Some(key);
        self
    }

    /// Changes requests, after those that were named before.
    #[must_use]
    pub fn modifier(mut self, modifier: impl RequestModifier) -> Self {
        self.modifiers.push(Box::new(modifier));
        self
    }

    /// The same, for one that is on the heap.
    #[must_use]
    pub fn boxed_modifier(mut self, modifier: Box<dyn RequestModifier>) -> Self {
        self.modifiers.push(modifier);
        self
    }

    /// Listens there instead of on a Unix socket.
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// Ends when nothing was asked for so long, instead of [`IDLE_TIMEOUT`].
    #[must_use]
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.idle = Some(time);
        self
    }

    /// Says whether the client has to have a lock.
    #[must_use]
    pub fn lock_file(mut self, lock: LockFile) -> Self {
        self.lock = lock;
        self
    }

    /// Holds bodies of this length for modifiers that want to see them, instead of
    /// [`BODY_LIMIT`](crate::forward::BODY_LIMIT).
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = Some(bytes);
        self
    }

    /// Serves the client that has asked, as this very process: prints where on
    /// standard output, closes it, and stays until the client is gone, nothing is
    /// asked any more, or a signal comes. Nothing is left behind then.
    pub async fn run(self, asked: &Asked) -> Result<Ended, Error> {
        let vigil = Vigil::begin(asked, self.lock)?;
        self.run_under(asked, vigil).await
    }

    /// The same, for whoever has watched the client since before there was a harness:
    /// whether it has to have a lock was said then.
    pub async fn run_under(self, asked: &Asked, mut vigil: Vigil) -> Result<Ended, Error> {
        let instance = self.start(asked).await?;
        let credential = instance.credential(asked.version)?;
        vigil.will_tell();
        print(&credential)?;
        drop(credential);
        silence(&[Output::Stdin, Output::Stdout]);
        instance.serve(vigil, std::future::pending()).await
    }

    /// Serves all clients that ask at this seat, until nothing is asked any more or
    /// a signal comes. It says so on standard output when it is there, and then
    /// belongs to no terminal. Until then it ends with who has started it. See
    /// [`Seat::ask`] for the other end.
    pub async fn run_shared(self, asked: &Asked, seat: &Seat) -> Result<Ended, Error> {
        let vigil = Vigil::begin(asked, LockFile::Optional)?;
        self.run_shared_under(asked, seat, vigil).await
    }

    /// The same, for whoever has watched since before there was a harness.
    pub async fn run_shared_under(
        self,
        asked: &Asked,
        seat: &Seat,
        mut vigil: Vigil,
    ) -> Result<Ended, Error> {
        let instance = Arc::new(self.start(asked).await?);
        let (listener, _seated) = seat.take()?;
        vigil.will_tell();
        let mut out = std::io::stdout();
        out.write_all(shared::READY)
            .and_then(|()| out.flush())
            .map_err(Error::Output)?;
        vigil.forget_client();
        silence(&[Output::Stdin, Output::Stdout, Output::Stderr]);
        // Fails where it leads a group, and then it has left its terminal before.
        let _ = rustix::process::setsid();
        let issue = {
            let instance = instance.clone();
            move |version| instance.credential(version)
        };
        let activity = instance.forwarder.activity().clone();
        let answering = shared::answer_all(listener, activity, issue);
        instance.serve(vigil, answering).await
    }

    async fn start(self, asked: &Asked) -> Result<Instance, Error> {
        let cluster = Cluster::new(&asked.cluster, self.key)?;
        let host = cluster.authority().host();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut names = vec![host.to_owned()];
        names.extend(asked.cluster.tls_server_name.clone());
        let authority = Authority::new()?;
        let tls = authority.server(&names)?;
        let host = cluster.authority().clone();
        let mut forwarder = Forwarder::new(cluster, host, self.modifiers);
        if let Some(limit) = self.body_limit {
            forwarder = forwarder.body_limit(limit);
        }
        let (listener, place) = socket::open(self.listen).await?;
        Ok(Instance {
            authority,
            tls,
            forwarder: Arc::new(forwarder),
            listener: std::sync::Mutex::new(Some(listener)),
            place: std::sync::Mutex::new(place),
            idle: self.idle.unwrap_or(IDLE_TIMEOUT),
        })
    }
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modifiers: Vec<_> = self.modifiers.iter().map(|it| it.name()).collect();
        f.debug_struct("Harness")
            .field("key", &self.key)
            .field("modifiers", &modifiers)
            .finish_non_exhaustive()
    }
}

/// A proxy that listens.
struct Instance {
    authority: Authority,
    tls: Arc<rustls::ServerConfig>,
    forwarder: Arc<Forwarder>,
    listener: std::sync::Mutex<Option<Listener>>,
    place: std::sync::Mutex<Place>,
    idle: Duration,
}

impl Instance {
    /// For one client: where to connect, whom to believe and what to show (KEP-2718,
    /// "Authentication to Proxy", option 1).
    fn credential(&self, version: Version) -> Result<ExecCredential, Error> {
        let client = self.authority.client()?;
        let status = Status {
            client_certificate_data: Some(client.certificate),
            client_key_data: Some(client.key),
            proxy_config: Some(ProxyConfig {
                url: lock(&self.place).url.clone(),
                certificate_authority_data: self.authority.pem().as_bytes().to_vec(),
            }),
            ..Status::default()
        };
        Ok(ExecCredential::response(version, status))
    }

    /// To the end, which is also the end of the socket and of all that is under way.
    async fn serve(
        &self,
        mut vigil: Vigil,
        beside: impl Future<Output = ()>,
    ) -> Result<Ended, Error> {
        let Some(listener) = lock(&self.listener).take() else {
            return Ok(Ended::Signal);
        };
        let serving = Apart::begin(listener, self.tls.clone(), self.forwarder.clone());
        let mut serving = serving.map_err(|cause| Error::Listen {
            at: lock(&self.place).url.clone(),
            cause,
        })?;
        let ended = tokio::select! {
            () = serving.ended() => Ended::Signal,
            () = beside => Ended::Signal,
            ended = vigil.ended() => ended,
            () = self.forwarder.activity().idle(self.idle) => Ended::Idle(self.idle),
        };
        lock(&self.place).leave();
        serving.end(FAREWELL).await;
        Ok(ended)
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing that panics is done under these locks.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tells the client, in one line.
pub(crate) fn print(credential: &ExecCredential) -> Result<(), Error> {
    let json = credential.to_json();
    // Past the buffer of standard output, in which a key would stay.
    let told = || -> std::io::Result<()> {
        let stdout = std::io::stdout();
        let mut rest = json.expose().as_bytes();
        while !rest.is_empty() {
            let written = rustix::io::write(stdout.as_fd(), rest)?;
            rest = &rest[written..];
        }
        rustix::io::write(stdout.as_fd(), b"\n")?;
        Ok(())
    };
    told().map_err(Error::Output)
}

#[derive(Clone, Copy)]
enum Output {
    Stdin,
    Stdout,
    Stderr,
}

/// Lets go of what the client has given: whoever reads to its end is not to wait for
/// ours.
fn silence(outputs: &[Output]) {
    let nothing = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null");
    let Ok(nothing) = nothing else { return };
    for output in outputs {
        let _ = match output {
            Output::Stdin => rustix::stdio::dup2_stdin(&nothing),
            Output::Stdout => rustix::stdio::dup2_stdout(&nothing),
            Output::Stderr => rustix::stdio::dup2_stderr(&nothing),
        };
    }
}

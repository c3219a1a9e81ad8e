//! A running bridge: built, started, and brought to its end.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use skewbridge_k8s_api::forwarding_headers::ViaToken;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::admin::{self, Admin};
use crate::authentication_limit::AuthenticationLimit;
use crate::cluster_state::{ClusterHandle, Requests};
use crate::config::Config;
use crate::connection_slots::ConnectionSlots;
use crate::control::{peer_controller, self_test, upstream_probe};
use crate::discovery_view::Complete;
use crate::frontend::listener;
use crate::frontend::worker::Worker;
use crate::health::{Health, UpstreamHealth};
use crate::live_config::{Files, LiveConfig, LoadError};
use crate::local_identity::LocalIdentity;
use crate::metrics::Metrics;
use crate::peer_config::{Membership, PeeringDisabled};
use crate::self_test::SelfTest;
use crate::signatures::Signatures;
use crate::state::GatewayState;
use crate::streams::Streams;
use skewbridge_http_engine::buffer_budget::BufferBudget;
use skewbridge_http_engine::drain::{Drain, DrainTrigger, announcement};
use skewbridge_http_engine::server::ClientTimeouts;

/// Why a bridge does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate, key or CA bundle cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A port cannot be opened.
    #[error("{}", unbound(flag, *address, cause))]
    Bind {
        /// Which flag named it.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        cause: io::Error,
    },
    /// The directory for what is to outlive the bridge cannot be used.
    #[error(
        "--state-dir: {}: {cause}; give a directory that the bridge may create and write to",
        path.display()
    )]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The system gives no thread, or no randomness.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// Somebody would not wait for the end of draining.
    #[error("a second signal: what was still running has been cut")]
    Interrupted,
}

/// Why a port cannot be opened, and what to do.
fn unbound(flag: &str, address: SocketAddr, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{flag}: {address} is in use by another program (`ss -ltnp` shows which); choose another port"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!(
                "{flag}: {address}: this machine does not have the address {}",
                address.ip()
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "{flag}: {address}: port {} needs root or CAP_NET_BIND_SERVICE",
                address.port()
            )
        }
        _ => format!("{flag}: {address}: {cause}"),
    }
}

/// SIGTERMs within this time are one: service managers and wrappers each send their own.
const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT, then drains. A second signal ends it at
/// once and is an error, as with kube-apiserver; a SIGTERM within a second of the first is
/// no second signal.
pub fn run(config: &Config) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Before anything serves: whoever sees it serve may ask it to end.
    let (mut term, mut int) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    let mut handle = start(config)?;
    runtime.block_on(async {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        let first_at = Instant::now();
        tracing::info!(signal = name, "leaving");
        let second_term = async {
            while term.recv().await.is_some() {
                if !is_repeated_term(name, first_at.elapsed()) {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = handle.finish() => {
                tracing::info!("done");
                Ok(())
            }
            () = second_term => Err(Error::Interrupted),
            _ = int.recv() => Err(Error::Interrupted),
        }
    })
}

/// Whether a SIGTERM so long after the first signal repeats it.
fn is_repeated_term(first: &str, after: Duration) -> bool {
    first == "SIGTERM" && after < DUPLICATE_SIGNAL_WINDOW
}

/// Starts a bridge in threads of its own.
pub fn start(config: &Config) -> Result<Handle, Error> {
    crate::metrics::process::started_now();
    raise_open_files();
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let metrics = Metrics::new();
    let (files, live) = Files::load(config, metrics.clone())?;
    let stored = stored(config)?;
    let ports = {
        let _inside = control.enter();
        Ports::bind(config)?
    };
    let address = ports.main.local_addr()?;
    let admin_address = ports.admin.local_addr()?;

    let (leave, drain) = announcement();
    let live = Arc::new(live);
    let membership = Membership::of(config, &live, address.port());
    let (cluster_handle, requests, membership) = match membership {
        Ok(membership) => {
            let (cluster_handle, requests) = cluster_handle_of(&membership);
            (Ok(cluster_handle), Some(requests), Some(membership))
        }
        Err(why) => {
            tracing::warn!(%why, "no peers: everything is served by the local kube-apiserver alone");
            (Err(why), None, None)
        }
    };
    metrics.peers().taking_part(cluster_handle.is_ok());
    let self_test = Arc::new(SelfTest::default());
    let bridge = Arc::new(GatewayState {
        live: live.clone(),
        metrics: metrics.clone(),
        drain: drain.clone(),
        via: ViaToken::new(random()?),
        upstream_version: ArcSwapOption::empty(),
        upstream_seen_ready: AtomicBool::new(false),
        limits: config.limits.clone(),
        default_host: default_host(config),
        access_log: config.logs.verbosity >= 2,
        next_drain_slot: AtomicU8::new(0),
        peering_unavailable: matches!(&cluster_handle, Err(why) if *why != PeeringDisabled::GateOff),
        complete: Complete::of(&config.features),
        cluster_handle: cluster_handle.as_ref().ok().cloned(),
        turns: AtomicU64::new(random()?),
        streams: Streams::new(config),
        self_test: self_test.clone(),
        own_user: config.upstream.bridge_user.clone(),
        signatures: Signatures::of(config, metrics.signatures()),
        authentication_limit: AuthenticationLimit::of(&config.limits),
        buffers: BufferBudget::new(
            config.limits.max_buffered_bytes,
            config.limits.unauthenticated_stall_timeout,
            Some(Box::new(metrics.buffers().clone())),
        ),
    });
    let workers = start_workers(config, &bridge)?;
    let (stop_reload, stopped) = mpsc::channel();
    let reload = watch_files(files, live.clone(), stopped)?;
    let health = Health {
        drain: drain.clone(),
        upstream: Arc::new(ArcSwap::from_pointee(UpstreamHealth::Unknown)),
        cluster_handle,
        self_test,
        live,
    };
    tracing::info!(%address, %admin_address, upstream = %default_host(config).to_str().unwrap_or_default(), workers = workers.len(), "serving");
    let (drained, on_drained) = oneshot::channel();
    let plan = Plan::of(config, &metrics);
    let (stop_control, stop) = oneshot::channel();
    let (parted, on_parted) = oneshot::channel();
    let peering = {
        let (bridge, upstream) = (bridge.clone(), health.upstream.clone());
        async move {
            if let (Some(membership), Some(requests)) = (membership, requests) {
                peer_controller::run(bridge, membership, upstream, requests, stored, parted).await;
            } else {
                let _ = parted.send(());
            }
        }
    };
    let control = std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            // Ends with the runtime at the latest.
            control.spawn(peering);
            govern(
                &control, ports, &plan, bridge, health, workers, drained, stop,
            );
        })?;
    Ok(Handle {
        address,
        admin_address,
        delay: config.shutdown.delay,
        drain: config.shutdown.drain,
        leave,
        drained: Some(on_drained),
        parted: Some(on_parted),
        stop_control: Some(stop_control),
        stop_reload: Some(stop_reload),
        threads: vec![control, reload],
    })
}

fn cluster_handle_of(membership: &Membership) -> (Arc<ClusterHandle>, Requests) {
    let mut local = LocalIdentity::new(membership.identity.clone(), membership.address);
    local.host = Some(membership.hostname.clone());
    let (mut cluster_handle, requests) = ClusterHandle::new(local);
    cluster_handle.registry = membership.registry_status();
    (Arc::new(cluster_handle), requests)
}

fn start_workers(config: &Config, bridge: &Arc<GatewayState>) -> io::Result<Vec<Worker>> {
    (0..config.workers.get())
        .map(|number| Worker::start(number, bridge.clone()))
        .collect()
}

/// What an earlier process of this bridge has stored.
fn stored(config: &Config) -> Result<Option<peer_controller::Stored>, Error> {
    let Some(path) = &config.peers.state_dir else {
        return Ok(None);
    };
    let state = peer_controller::StateDir::open(path).map_err(|cause| Error::StateDir {
        path: path.clone(),
        cause,
    })?;
    let records = state.read();
    Ok(Some(peer_controller::Stored { state, records }))
}

/// Reads files again when they change, in a thread of its own.
fn watch_files(
    files: Files,
    live: Arc<LiveConfig>,
    stopped: mpsc::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("reload".to_owned())
        .spawn(move || files.keep_fresh(&live, &stopped))
}

/// Open ports, on which nobody answers yet.
struct Ports {
    main: TcpListener,
    admin: TcpListener,
}

impl Ports {
    fn bind(config: &Config) -> Result<Self, Error> {
        let main = SocketAddr::new(config.listen.bind_address, config.listen.secure_port);
        let open = |flag, address| {
            listener::bind(address).map_err(|cause| Error::Bind {
                flag,
                address,
                cause,
            })
        };
        Ok(Self {
            main: open("--secure-port", main)?,
            admin: open("--admin-address", config.admin.address)?,
        })
    }
}

struct Plan {
    slots: Arc<ConnectionSlots>,
    patience: ClientTimeouts,
}

impl Plan {
    fn of(config: &Config, metrics: &Metrics) -> Self {
        Self {
            slots: ConnectionSlots::new(&config.limits, metrics.connections().clone()),
            patience: ClientTimeouts {
                head: config.limits.read_header_timeout,
                idle: config.limits.idle_timeout,
                stall: config.limits.stall_timeout,
            },
        }
    }
}

/// How often the end of draining is looked for.
const COUNT_EVERY: Duration = Duration::from_millis(20);

/// Everything that is not a request: accepting, admin, probing upstream, and
/// the end.
#[allow(clippy::too_many_arguments)] // the owner of all parts
fn govern(
    runtime: &Runtime,
    ports: Ports,
    plan: &Plan,
    bridge: Arc<GatewayState>,
    health: Health,
    workers: Vec<Worker>,
    drained: oneshot::Sender<()>,
    stop: oneshot::Receiver<()>,
) {
    let drain: Drain = bridge.drain.clone();
    runtime.block_on(async {
        let admin = Admin {
            metrics: bridge.metrics.clone(),
            health: health.clone(),
        };
        let serve_admin = admin::run(ports.admin, admin, plan.patience);
        let test = self_test::run(bridge.clone(), health.upstream.clone());
        let ask = upstream_probe::run(bridge, health.upstream);
        let serve = async {
            listener::run(ports.main, &workers, &plan.slots, drain).await;
            while workers.iter().any(|worker| worker.connections() > 0) {
                sleep(COUNT_EVERY).await;
            }
            let _ = drained.send(());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serve => {}
            () = serve_admin => {}
            () = ask => {}
            () = test => {}
            _ = stop => {}
        }
    });
    for worker in workers {
        worker.stop();
    }
}

/// A running bridge. Dropping it ends it at once.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    admin_address: SocketAddr,
    delay: Duration,
    drain: Duration,
    leave: DrainTrigger,
    drained: Option<oneshot::Receiver<()>>,
    parted: Option<oneshot::Receiver<()>>,
    stop_control: Option<oneshot::Sender<()>>,
    stop_reload: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Handle {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where metrics and health are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Goes away: not ready, and known to peers no more; then after the delay no
    /// new connections, then waits for what is running, up to the limit.
    pub async fn finish(&mut self) {
        self.leave.leave();
        let left = Instant::now();
        if let Some(parted) = self.parted.take() {
            // Has a limit of its own.
            let _ = parted.await;
        }
        sleep_until(left + self.delay).await;
        let deadline = Instant::now() + self.drain;
        self.leave.drain(self.drain);
        if let Some(drained) = self.drained.take()
            && tokio::time::timeout_at(deadline, drained).await.is_err()
        {
            tracing::warn!("some requests were still running at --shutdown-drain-timeout");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.stop_control.take());
        drop(self.stop_reload.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn default_host(config: &Config) -> HeaderValue {
    let upstream = &config.upstream;
    let host = if upstream.host.contains(':') {
        format!("[{}]:{}", upstream.host, upstream.port)
    } else {
        format!("{}:{}", upstream.host, upstream.port)
    };
    // A host that came out of a URL is a header value.
    HeaderValue::try_from(host).unwrap_or_else(|_| HeaderValue::from_static("localhost"))
}

/// Marks this bridge in Via, and differs from every other's.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("no randomness"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// As Go does for every program: each connection is a file, and the usual limit
/// of 1,024 is for programs that use `select`.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sigterm_soon_after_another_repeats_it() {
        for (first, millis, expected) in [
            ("SIGTERM", 0, true),
            ("SIGTERM", 999, true),
            ("SIGTERM", 1000, false),
            ("SIGINT", 0, false),
        ] {
            let after = Duration::from_millis(millis);
            assert_eq!(is_repeated_term(first, after), expected, "{first} {millis}");
        }
    }
}

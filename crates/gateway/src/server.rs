//! Start, drain and stop of a bridge.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use skewbridge_http_engine::buffer_budget::BufferBudget;
use skewbridge_http_engine::drain::{Drain, DrainTrigger, drain_channel};
use skewbridge_http_engine::server::ClientTimeouts;
use skewbridge_k8s_api::forwarding_headers::ViaToken;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::admin::{self, Admin};
use crate::authentication_limit::AuthenticationLimit;
use crate::cluster_state::{ClusterHandle, ControllerRequests};
use crate::config::Config;
use crate::connection_slots::ConnectionSlots;
use crate::control::{peer_controller, self_test, upstream_probe};
use crate::discovery_view::CompleteDiscovery;
use crate::frontend::listener;
use crate::frontend::worker::Worker;
use crate::health::{Health, UpstreamHealth};
use crate::live_config::{Files, LiveConfig, LoadError};
use crate::local_identity::LocalIdentity;
use crate::metrics::Metrics;
use crate::peer_config::{PeeringConfig, PeeringDisabled};
use crate::self_test::SelfTest;
use crate::signatures::Signatures;
use crate::state::GatewayState;
use crate::streams::Streams;

/// Why a bridge does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate, key or CA bundle cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A port cannot be opened.
    #[error("{}", bind_error(flag, *address, cause))]
    Bind {
        /// The flag that sets the address.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The directory for state that survives a restart cannot be used.
    #[error(
        "--state-dir: {}: {cause}; set a directory that the bridge may create and write to",
        path.display()
    )]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The operating system provides no thread, or no randomness.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// A second signal has ended the drain.
    #[error("second signal received: running requests were aborted")]
    Interrupted,
}

/// Why a port cannot be opened, and what to do.
fn bind_error(flag: &str, address: SocketAddr, cause: &io::Error) -> String {
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

/// Serves until SIGTERM or SIGINT, then drains. A second signal ends the process at once with an
/// error, as with kube-apiserver. A SIGTERM within a second of the first does not count as a second
/// signal.
pub fn run(config: &Config) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Before the ports are open: a client that sees an open port may send a signal.
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
        tracing::info!(signal = name, "shutting down");
        let second_term = async {
            while term.recv().await.is_some() {
                if !is_duplicate_term(name, first_at.elapsed()) {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = handle.finish() => {
                tracing::info!("shutdown complete");
                Ok(())
            }
            () = second_term => Err(Error::Interrupted),
            _ = int.recv() => Err(Error::Interrupted),
        }
    })
}

/// Whether a SIGTERM this long after the first signal is a duplicate of it.
fn is_duplicate_term(first: &str, after: Duration) -> bool {
    first == "SIGTERM" && after < DUPLICATE_SIGNAL_WINDOW
}

/// Starts a bridge in its own threads.
pub fn start(config: &Config) -> Result<Handle, Error> {
    crate::metrics::process::started_now();
    raise_open_file_limit();
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let metrics = Metrics::new();
    let (files, live) = Files::load(config, metrics.clone())?;
    let stored = stored_records(config)?;
    let ports = {
        let _inside = control.enter();
        Ports::bind(config)?
    };
    let address = ports.main.local_addr()?;
    let admin_address = ports.admin.local_addr()?;

    let (drain_trigger, drain) = drain_channel();
    let live = Arc::new(live);
    let peering_config = PeeringConfig::of(config, &live, address.port());
    let (cluster_handle, requests, peering_config) = match peering_config {
        Ok(peering_config) => {
            let (cluster_handle, requests) = cluster_handle_of(&peering_config);
            (Ok(cluster_handle), Some(requests), Some(peering_config))
        }
        Err(why) => {
            tracing::warn!(%why, "peering is disabled: all requests go to the local kube-apiserver");
            (Err(why), None, None)
        }
    };
    metrics.peers().set_peering_enabled(cluster_handle.is_ok());
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
        complete_discovery: CompleteDiscovery::of(&config.features),
        cluster_handle: cluster_handle.as_ref().ok().cloned(),
        lb_seed: AtomicU64::new(random()?),
        streams: Streams::new(config),
        self_test: self_test.clone(),
        bridge_user: config.upstream.bridge_user.clone(),
        signatures: Signatures::of(config, metrics.signatures()),
        guarded_components: config.peers.guarded_components.clone(),
        logged_components: Mutex::default(),
        authentication_limit: AuthenticationLimit::of(&config.limits),
        buffers: buffer_budget(config, &metrics),
    });
    let workers = start_workers(config, &bridge)?;
    let (stop_reload, stopped) = mpsc::channel();
    let reload = spawn_reload(files, live.clone(), stopped)?;
    let health = Health {
        drain: drain.clone(),
        upstream: Arc::new(ArcSwap::from_pointee(UpstreamHealth::Unknown)),
        cluster_handle,
        self_test,
        live,
    };
    tracing::info!(%address, %admin_address, upstream = %default_host(config).to_str().unwrap_or_default(), workers = workers.len(), "serving");
    let (drained, on_drained) = oneshot::channel();
    let listen = ListenConfig::of(config, &metrics);
    let (stop_control, stop) = oneshot::channel();
    let (departed, on_departed) = oneshot::channel();
    let peering = {
        let (bridge, upstream) = (bridge.clone(), health.upstream.clone());
        async move {
            if let (Some(peering_config), Some(requests)) = (peering_config, requests) {
                peer_controller::run(bridge, peering_config, upstream, requests, stored, departed)
                    .await;
            } else {
                let _ = departed.send(());
            }
        }
    };
    let control = std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            // The task ends with the runtime at the latest.
            control.spawn(peering);
            run_control(
                &control, ports, &listen, bridge, health, workers, drained, stop,
            );
        })?;
    Ok(Handle {
        address,
        admin_address,
        shutdown_delay: config.shutdown.delay,
        drain_timeout: config.shutdown.drain,
        drain_trigger,
        drained: Some(on_drained),
        departed: Some(on_departed),
        stop_control: Some(stop_control),
        stop_reload: Some(stop_reload),
        threads: vec![control, reload],
    })
}

fn cluster_handle_of(peering_config: &PeeringConfig) -> (Arc<ClusterHandle>, ControllerRequests) {
    let mut local = LocalIdentity::new(peering_config.identity.clone(), peering_config.address);
    local.host = Some(peering_config.hostname.clone());
    let (mut cluster_handle, requests) = ClusterHandle::new(local);
    cluster_handle.registry = peering_config.registry_status();
    (Arc::new(cluster_handle), requests)
}

fn buffer_budget(config: &Config, metrics: &Metrics) -> Arc<BufferBudget> {
    let limits = &config.limits;
    let buffers = Box::new(metrics.buffers().clone());
    let stall_timeout = limits.unauthenticated_stall_timeout;
    BufferBudget::new(limits.max_buffered_bytes, stall_timeout, Some(buffers))
}

fn start_workers(config: &Config, bridge: &Arc<GatewayState>) -> io::Result<Vec<Worker>> {
    (0..config.workers.get())
        .map(|number| Worker::start(number, bridge.clone()))
        .collect()
}

/// The records that an earlier process of this bridge has stored.
fn stored_records(config: &Config) -> Result<Option<peer_controller::StoredRecords>, Error> {
    let Some(path) = &config.peers.state_dir else {
        return Ok(None);
    };
    let state = peer_controller::StateDir::open(path).map_err(|cause| Error::StateDir {
        path: path.clone(),
        cause,
    })?;
    let records = state.read();
    Ok(Some(peer_controller::StoredRecords { state, records }))
}

/// Reloads files when they change, in its own thread.
fn spawn_reload(
    files: Files,
    live: Arc<LiveConfig>,
    stopped: mpsc::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("reload".to_owned())
        .spawn(move || files.watch(&live, &stopped))
}

/// Open ports that are not served yet.
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

/// The settings of the listeners.
struct ListenConfig {
    slots: Arc<ConnectionSlots>,
    timeouts: ClientTimeouts,
}

impl ListenConfig {
    fn of(config: &Config, metrics: &Metrics) -> Self {
        Self {
            slots: ConnectionSlots::new(&config.limits, metrics.connections().clone()),
            timeouts: ClientTimeouts {
                head: config.limits.read_header_timeout,
                idle: config.limits.idle_timeout,
                stall: config.limits.stall_timeout,
            },
        }
    }
}

/// The interval between two checks whether the drain has ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the control thread: accepts connections, serves the admin port, probes upstream, runs the
/// self-test, and stops the workers at the end.
#[allow(clippy::too_many_arguments)] // the owner of all parts
fn run_control(
    runtime: &Runtime,
    ports: Ports,
    listen: &ListenConfig,
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
            guarded_components: bridge.guarded_components.clone(),
        };
        let serve_admin = admin::run(ports.admin, admin, listen.timeouts);
        let test = self_test::run(bridge.clone(), health.upstream.clone());
        let probe = upstream_probe::run(bridge, health.upstream);
        let serve = async {
            listener::run(ports.main, &workers, &listen.slots, drain).await;
            while workers.iter().any(|worker| worker.connections() > 0) {
                sleep(DRAIN_CHECK_INTERVAL).await;
            }
            let _ = drained.send(());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serve => {}
            () = serve_admin => {}
            () = probe => {}
            () = test => {}
            _ = stop => {}
        }
    });
    for worker in workers {
        worker.stop();
    }
}

/// A running bridge. Dropping the handle stops the bridge at once.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    admin_address: SocketAddr,
    shutdown_delay: Duration,
    drain_timeout: Duration,
    drain_trigger: DrainTrigger,
    drained: Option<oneshot::Receiver<()>>,
    departed: Option<oneshot::Receiver<()>>,
    stop_control: Option<oneshot::Sender<()>>,
    stop_reload: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Handle {
    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for metrics and health checks.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Shuts the bridge down: it becomes not ready and announces its departure to peers. After the
    /// shutdown delay it accepts no new connections. Then it waits for running requests, up to the
    /// drain timeout.
    pub async fn finish(&mut self) {
        self.drain_trigger.mark_not_ready();
        let begun = Instant::now();
        if let Some(departed) = self.departed.take() {
            // The departure has its own timeout.
            let _ = departed.await;
        }
        sleep_until(begun + self.shutdown_delay).await;
        let deadline = Instant::now() + self.drain_timeout;
        self.drain_trigger.drain(self.drain_timeout);
        if let Some(drained) = self.drained.take()
            && tokio::time::timeout_at(deadline, drained).await.is_err()
        {
            tracing::warn!("requests were still running at --shutdown-drain-timeout");
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
    // A host that was parsed from a URL is a valid header value.
    HeaderValue::try_from(host).unwrap_or_else(|_| HeaderValue::from_static("localhost"))
}

/// A random number, which identifies this bridge in `Via`.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustls::crypto::aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("no randomness"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Raises the limit of open files, as the Go runtime does: each connection is a file, and the usual
/// limit of 1,024 exists for programs that use `select`.
fn raise_open_file_limit() {
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
    fn a_sigterm_within_a_second_of_another_is_a_duplicate() {
        for (first, millis, expected) in [
            ("SIGTERM", 0, true),
            ("SIGTERM", 999, true),
            ("SIGTERM", 1000, false),
            ("SIGINT", 0, false),
        ] {
            let after = Duration::from_millis(millis);
            assert_eq!(
                is_duplicate_term(first, after),
                expected,
                "{first} {millis}"
            );
        }
    }
}

//! Start, drain and stop of a bridge.

mod backends;
mod endpoint_backends;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use skewbridge_http_engine::drain::{Drain, DrainTrigger, drain_channel};
use skewbridge_http_engine::server::ClientTimeouts;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use self::backends::{BackendFactory, BackendParts};
use self::endpoint_backends::EndpointBackends;
use crate::activity::Activity;
use crate::admin::secure::SecurePort;
use crate::admin::status::StatusSampler;
use crate::admin::{self, Admin};
use crate::balancer::Backends;
use crate::balancer::upstream_list::UpstreamList;
use crate::config::{Config, UpstreamServer};
use crate::connection_slots::ConnectionSlots;
use crate::control::peer_controller::{StateDir, StoredRecords};
use crate::control::vanishing;
use crate::frontend::listener;
use crate::frontend::proxy_header::LoadBalancers;
use crate::frontend::worker::Worker;
use crate::health::Health;
use crate::live_config::{ConfigFiles, LiveConfig, LoadError};
use crate::metrics::Metrics;
use crate::vanishing::ledger::Ledger;
use crate::vanishing::token_users::UnreviewedCall;

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
    // Before the ports are open: a client that detects an open port may send a signal.
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
    let (files, live) = ConfigFiles::load(config, metrics.clone())?;
    let ports = {
        let _inside = control.enter();
        Ports::bind(config)?
    };
    let address = ports.main.local_addr()?;
    let admin_address = ports.admin.local_addr()?;
    let secure_port = secure_port(config)?;
    let secure_port_address = secure_port.as_ref().map(SecurePort::local_addr);
    let admin_secure_address = secure_port_address.transpose()?;

    let (drain_trigger, drain) = drain_channel();
    let live = Arc::new(live);
    let state = open_state_dir(config)?;
    let (ledger, unreviewed) = Ledger::new(config.admin.watch_target, &metrics);
    let activity = Arc::new(Activity::default());
    let shared = (&metrics, &activity);
    let servers = config.upstream.servers();
    let mut list = UpstreamList::new(servers.clone(), config.upstream.endpoints.clone());
    if let Some(state) = &state {
        list.add_stored(&state.addresses());
    }
    let port = address.port();
    let factory = BackendFactory::new(config, &live, shared, &drain, &ledger, port, state)?;
    factory.set_servers(&list);
    let stored: Vec<_> = (list.entries().iter())
        .map(|entry| factory.stored_records(entry, &Vec::new()))
        .collect();
    let mut members = Vec::new();
    for entry in list.entries() {
        members.push(factory.build(entry)?);
    }
    let all = members.iter().map(|it| it.backend.clone()).collect();
    let is_balanced = config.upstream.is_balanced();
    let backends = Backends::new(all, is_balanced, random()?);
    let backends = backends.ok_or_else(|| io::Error::other("--upstream has no value"))?;
    let workers = start_workers(config, &backends)?;
    let (stop_reload, stopped) = mpsc::channel();
    let reload = spawn_reload(files, live.clone(), stopped)?;
    let backend_health = members.iter().map(|it| it.health.clone()).collect();
    let health_of_backends = Arc::new(ArcSwap::from_pointee(backend_health));
    let health = Health {
        drain: drain.clone(),
        backends: health_of_backends.clone(),
        is_balanced,
        live,
    };
    let upstream = authorities(&servers);
    tracing::info!(%address, %admin_address, admin_secure_address = admin_secure_address.map(tracing::field::display), %upstream, workers = workers.len(), "serving");
    let status = Arc::new(StatusSampler::new(health.clone(), activity, ledger.clone()));
    let admin = Admin {
        metrics: metrics.clone(),
        health,
        status,
        guards: config.peers.guards.clone(),
        flags: Arc::new(config.admin.flags.clone()),
        ledger,
    };
    let (stop_secure_port, stopped) = oneshot::channel();
    let secure_port = secure_port.map(|port| port.start(admin.clone(), backends.clone(), stopped));
    let secure_port = secure_port.transpose()?;
    let (drained, on_drained) = oneshot::channel();
    let listen = ListenConfig::of(config, &metrics);
    let (stop_control, stop) = oneshot::channel();
    let (starting, on_departed) = with_departures(members.into_iter().zip(stored));
    let endpoints = (config.upstream.endpoints.is_some())
        .then(|| EndpointBackends::new(list, factory, backends.clone(), health_of_backends));
    let control = std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            let members = Members {
                backends,
                starting,
                endpoints,
                unreviewed,
            };
            run_control(
                &control, ports, &listen, members, admin, workers, drained, stop,
            );
        })?;
    Ok(Handle {
        address,
        admin_address,
        admin_secure_address,
        shutdown_delay: config.shutdown.delay,
        drain_timeout: config.shutdown.drain,
        drain_trigger,
        drained: Some(on_drained),
        departed: on_departed,
        stop_control: Some(stop_control),
        stop_reload: Some(stop_reload),
        stop_secure_port: Some(stop_secure_port),
        threads: [control, reload].into_iter().chain(secure_port).collect(),
    })
}

/// The backends with the sender that is notified when each has departed, and the receivers.
fn with_departures(
    members: impl Iterator<Item = (BackendParts, StoredRecords)>,
) -> (Vec<StartingBackend>, Vec<oneshot::Receiver<()>>) {
    let with_channel = members.map(|(member, stored)| {
        let (departed, departure) = oneshot::channel();
        ((member, stored, departed), departure)
    });
    with_channel.unzip()
}

/// The values of `--upstream`, for the log.
fn authorities(servers: &[UpstreamServer]) -> String {
    let authorities: Vec<_> = servers.iter().map(UpstreamServer::authority).collect();
    authorities.join(",")
}

/// Opens `--admin-secure-address`.
fn secure_port(config: &Config) -> Result<Option<SecurePort>, Error> {
    let Some(address) = config.admin.secure_address else {
        return Ok(None);
    };
    SecurePort::open(|| open_port("--admin-secure-address", address)).map(Some)
}

fn open_port(flag: &'static str, address: SocketAddr) -> Result<TcpListener, Error> {
    listener::bind(address).map_err(|cause| Error::Bind {
        flag,
        address,
        cause,
    })
}

fn start_workers(config: &Config, backends: &Arc<Backends>) -> io::Result<Vec<Worker>> {
    (0..config.workers.get())
        .map(|number| Worker::start(number, backends.clone()))
        .collect()
}

/// `--state-dir`.
fn open_state_dir(config: &Config) -> Result<Option<StateDir>, Error> {
    let Some(path) = &config.peers.state_dir else {
        return Ok(None);
    };
    let state = StateDir::open(path).map_err(|cause| Error::StateDir {
        path: path.clone(),
        cause,
    })?;
    Ok(Some(state))
}

/// Reloads files when they change, in its own thread.
fn spawn_reload(
    files: ConfigFiles,
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
        Ok(Self {
            main: open_port("--secure-port", main)?,
            admin: open_port("--admin-address", config.admin.address)?,
        })
    }
}

/// The settings of the listeners.
struct ListenConfig {
    slots: Arc<ConnectionSlots>,
    timeouts: ClientTimeouts,
    load_balancers: LoadBalancers,
}

impl ListenConfig {
    fn of(config: &Config, metrics: &Metrics) -> Self {
        Self {
            slots: ConnectionSlots::new(&config.limits, metrics.connections().slots.clone()),
            timeouts: ClientTimeouts {
                head: config.limits.read_header_timeout,
                idle: config.limits.idle_timeout,
                stall: config.limits.stall_timeout,
            },
            load_balancers: LoadBalancers {
                networks: config.listen.proxy_protocol_cidrs.clone(),
                header_timeout: config.limits.handshake_timeout,
            },
        }
    }
}

/// A backend, what is stored of its cluster, and the sender for its departure.
type StartingBackend = (BackendParts, StoredRecords, oneshot::Sender<()>);

/// The servers behind the bridge, which the control thread starts.
struct Members {
    backends: Arc<Backends>,
    starting: Vec<StartingBackend>,
    /// With `--upstream=endpoints`.
    endpoints: Option<EndpointBackends>,
    /// Calls whose users are to be found out.
    unreviewed: tokio::sync::mpsc::Receiver<Box<UnreviewedCall>>,
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
    members: Members,
    admin: Admin,
    workers: Vec<Worker>,
    drained: oneshot::Sender<()>,
    stop: oneshot::Receiver<()>,
) {
    let Members {
        backends,
        starting,
        endpoints,
        unreviewed,
    } = members;
    let bridge = backends.client_facing().clone();
    let drain: Drain = bridge.drain.clone();
    runtime.block_on(async {
        // These tasks end when this future is dropped.
        let starting = starting.into_iter();
        let tasks: HashMap<_, _> = starting
            .map(|(parts, stored, departed)| {
                let name = parts.health.check_name.clone();
                (name, parts.spawn(stored, departed))
            })
            .collect();
        let follow_endpoints = async move {
            if let Some(endpoints) = endpoints {
                endpoints.run(tasks).await;
            } else {
                let _tasks = tasks;
                std::future::pending::<()>().await;
            }
        };
        let fill_ledger = vanishing::run(backends.clone(), admin.ledger.clone(), unreviewed);
        let status = admin.status.clone();
        let serve_admin = admin::run(ports.admin, admin, listen.timeouts);
        let serve = async {
            let (slots, load_balancers) = (&listen.slots, &listen.load_balancers);
            let metrics = &bridge.metrics;
            listener::run(ports.main, &workers, slots, load_balancers, metrics, drain).await;
            while workers.iter().any(|worker| worker.connections() > 0) {
                sleep(DRAIN_CHECK_INTERVAL).await;
            }
            let _ = drained.send(());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serve => {}
            () = serve_admin => {}
            () = status.run() => {}
            () = backends.clone().follow_readiness() => {}
            () = follow_endpoints => {}
            () = fill_ledger => {}
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
    admin_secure_address: Option<SocketAddr>,
    shutdown_delay: Duration,
    drain_timeout: Duration,
    drain_trigger: DrainTrigger,
    drained: Option<oneshot::Receiver<()>>,
    departed: Vec<oneshot::Receiver<()>>,
    stop_control: Option<oneshot::Sender<()>>,
    stop_reload: Option<mpsc::Sender<()>>,
    stop_secure_port: Option<oneshot::Sender<()>>,
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

    /// The address for metrics and health checks over TLS, if there is one.
    pub fn admin_secure_address(&self) -> Option<SocketAddr> {
        self.admin_secure_address
    }

    /// Shuts the bridge down: it becomes not ready and announces its departure to peers. After the
    /// shutdown delay it accepts no new connections. Then it waits for running requests, up to the
    /// drain timeout.
    pub async fn finish(&mut self) {
        self.drain_trigger.mark_not_ready();
        let begun = Instant::now();
        for departed in self.departed.drain(..) {
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
        drop(self.stop_secure_port.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
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

//! The whole playground: three API servers of three versions over one store, a node,
//! a bridge in front of each server, and a kubeconfig for all of them.

mod bridge_config;
mod kubeconfig;
mod pki;
mod reserved_port;
mod samples;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use skewbridge_gateway::Handle;
use skewbridge_gateway::tls::files::{FileError, load_ca};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::registry::SharedMemoryRegistry;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::catalogue::Release;
use crate::node::{Node, NodeConfig, Program};
use crate::rbac::VISITOR;
use crate::server::shared_store::SharedStoreError;
use crate::server::{ApiServer, RunningServer, ServerConfig, SharedStore, StartError};
use pki::Pki;
pub use pki::PkiError;
use reserved_port::ReservedPort;
pub use samples::{POD, POD_PORT, POLICY_PATH};

/// The number of servers: one of each release.
const SERVER_COUNT: usize = Release::ALL.len();

/// Time for bridges to shut down; then they are aborted.
const BRIDGE_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Configuration of a playground.
#[derive(Debug)]
pub struct ClusterConfig {
    /// An existing, empty, private directory.
    pub directory: PathBuf,
    /// Its ports.
    pub ports: Ports,
    /// The program that starts processes of pods.
    pub program: Program,
}

/// The ports of a playground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// Any free ports.
    Free,
    /// From this port on: the servers, the bridges, the admin ports of the bridges.
    From(u16),
}

/// A running playground. Dropping it ends everything.
pub struct Cluster {
    servers: Vec<Server>,
    bridges: Vec<Bridge>,
    kubeconfig: PathBuf,
    pki: Pki,
    store: SharedStore,
    // Last, so that servers are dropped before the node.
    node: Arc<Node>,
}

/// An API server at an address, of any version.
#[derive(Debug)]
pub struct Server {
    name: String,
    hostname: String,
    port: ReservedPort,
    release: Release,
    running: Option<RunningServer>,
}

/// A bridge in front of one of them.
#[derive(Debug)]
pub struct Bridge {
    name: String,
    handle: Handle,
}

/// Why a playground does not start, or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A port cannot be bound.
    #[error("{}", no_port(*address, cause))]
    Port {
        /// The address.
        address: SocketAddr,
        /// The system error.
        cause: io::Error,
    },
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Files that were just written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store.
    #[error(transparent)]
    Store(#[from] SharedStoreError),
    /// The objects in it.
    #[error("the sample objects cannot be created: {}", .0.message)]
    Samples(Status),
    /// A server.
    #[error("the server {0} does not start: {1}")]
    Server(String, StartError),
    /// A bridge.
    #[error("the bridge {0} does not start: {1}")]
    Bridge(String, skewbridge_gateway::Error),
    /// The node.
    #[error("the node does not start: {0}")]
    Node(io::Error),
    /// Unknown server.
    #[error("no server {0:?}; the servers are 1.28, 1.34 and 1.36")]
    Unknown(String),
}

fn no_port(address: SocketAddr, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{address} is in use by another program (`ss -ltnp` shows which); choose another \
             --port-base, or none for ports that are free"
        ),
        _ => format!("{address}: {cause}"),
    }
}

impl Ports {
    /// The n-th port.
    pub fn number(self, index: usize) -> u16 {
        match (self, u16::try_from(index)) {
            (Self::From(first), Ok(index)) => first.saturating_add(index),
            _ => 0,
        }
    }
}

impl Cluster {
    /// Starts a playground. Servers run on the runtime of the caller, bridges and the node on
    /// threads of their own.
    pub async fn start(config: ClusterConfig) -> Result<Self, ClusterError> {
        let pki = Pki::make(&config.directory)?;
        let store = SharedStore::new()?;
        samples::create(&store).map_err(ClusterError::Samples)?;
        let node = Node::start(NodeConfig {
            store: store.clone(),
            directory: config.directory.join("pods"),
            program: config.program,
        });
        let mut cluster = Self {
            servers: Vec::new(),
            bridges: Vec::new(),
            kubeconfig: PathBuf::new(),
            pki,
            store,
            node: Arc::new(node.map_err(ClusterError::Node)?),
        };
        for (index, release) in Release::ALL.into_iter().enumerate() {
            let address = loopback(config.ports.number(index));
            let port = ReservedPort::take(address)
                .map_err(|cause| ClusterError::Port { address, cause })?;
            cluster.servers.push(Server {
                name: format!("server-{release}"),
                hostname: format!("playground-{release}"),
                port,
                release,
                running: None,
            });
            cluster.start_server(index).await?;
        }
        let exchange = SharedMemoryRegistry::default();
        for (index, server) in cluster.servers.iter().enumerate() {
            let name = format!("bridge-{}", server.release);
            let (port, admin) = (SERVER_COUNT + index, 2 * SERVER_COUNT + 1 + index);
            let config = bridge_config::config(
                &cluster.pki,
                &exchange,
                &server.hostname,
                server.address(),
                config.ports.number(port),
                config.ports.number(admin),
            );
            let handle = skewbridge_gateway::start(&config).map_err(|error| match error {
                skewbridge_gateway::Error::Bind { address, cause, .. } => {
                    ClusterError::Port { address, cause }
                }
                error => ClusterError::Bridge(name.clone(), error),
            })?;
            cluster.bridges.push(Bridge { name, handle });
        }
        cluster.kubeconfig = cluster.write_kubeconfig(&config.directory)?;
        Ok(cluster)
    }

    fn write_kubeconfig(&self, directory: &Path) -> Result<PathBuf, PkiError> {
        let servers = self.servers.iter().map(|server| kubeconfig::ContextTarget {
            name: &server.name,
            address: server.address(),
        });
        let bridges = self.bridges.iter().map(|bridge| kubeconfig::ContextTarget {
            name: &bridge.name,
            address: bridge.handle.address(),
        });
        let places: Vec<_> = servers.chain(bridges).collect();
        let oldest = format!("bridge-{}", Release::V1_28);
        let text = kubeconfig::kubeconfig(
            &places,
            &oldest,
            &oldest,
            &self.pki.ca_pem,
            &self.pki.admin,
            &self.pki.visitor_token,
        );
        pki::write_private(directory, "kubeconfig", &text)
    }

    /// The path of the kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// All servers, the oldest first.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// All bridges, in the order of their servers.
    pub fn bridges(&self) -> &[Bridge] {
        &self.bridges
    }

    /// The index of a server by its name (`server-1.28`, or `1.28` for short).
    pub fn find(&self, name: &str) -> Result<usize, ClusterError> {
        let short = name.strip_prefix("server-").unwrap_or(name);
        let mut all = self.servers.iter();
        let found = all.position(|it| it.name.strip_prefix("server-") == Some(short));
        found.ok_or_else(|| ClusterError::Unknown(name.to_owned()))
    }

    /// Ends a server as by a power failure.
    pub async fn kill(&mut self, index: usize) {
        if let Some(running) = self.running(index) {
            running.kill().await;
        }
    }

    /// Stops a server gracefully.
    pub async fn stop(&mut self, index: usize) {
        if let Some(running) = self.running(index) {
            running.stop().await;
        }
    }

    /// Starts a server that does not run.
    pub async fn start_server(&mut self, index: usize) -> Result<(), ClusterError> {
        let Some(server) = self.servers.get_mut(index) else {
            return Ok(());
        };
        if server.is_running() {
            return Ok(());
        }
        let listener = server.port.listen().map_err(|cause| ClusterError::Port {
            address: server.address(),
            cause,
        })?;
        let visitor = User {
            name: VISITOR.to_owned(),
            ..User::default()
        };
        let config = ServerConfig {
            release: server.release,
            listener,
            serving: self.pki.serving.load()?,
            client_ca: load_ca(&self.pki.ca)?,
            front_proxy_ca: load_ca(&self.pki.front_proxy_ca)?,
            front_proxy_names: vec![pki::FRONT_PROXY.to_owned()],
            tokens: HashMap::from([(self.pki.visitor_token.0.clone(), visitor)]),
            hostname: server.hostname.clone(),
            store: self.store.clone(),
            streams: self.node.clone(),
        };
        let running = ApiServer::start(config).await;
        let running = running.map_err(|error| ClusterError::Server(server.name.clone(), error))?;
        server.running = Some(running);
        Ok(())
    }

    /// Replaces a server by one of another release, at the same address.
    pub async fn set_release(
        &mut self,
        index: usize,
        release: Release,
    ) -> Result<(), ClusterError> {
        self.stop(index).await;
        if let Some(server) = self.servers.get_mut(index) {
            server.release = release;
        }
        self.start_server(index).await
    }

    fn running(&mut self, index: usize) -> Option<RunningServer> {
        self.servers.get_mut(index)?.running.take()
    }

    /// Shuts down in order: bridges first, so that they do not report missing servers, then
    /// servers, then the node with its processes.
    pub async fn end(mut self) {
        let bridges = std::mem::take(&mut self.bridges);
        let mut leaving = JoinSet::new();
        for mut bridge in bridges {
            leaving.spawn(async move { bridge.handle.finish().await });
        }
        let _ = timeout(BRIDGE_SHUTDOWN_TIMEOUT, leaving.join_all()).await;
        for index in 0..self.servers.len() {
            self.kill(index).await;
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("servers", &self.servers)
            .field("bridges", &self.bridges)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// `server-1.28`, by its initial version.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its current version.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

impl Bridge {
    /// `bridge-1.28`: as its server at the beginning.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.handle.address()
    }

    /// The address of metrics and health.
    pub fn admin_address(&self) -> SocketAddr {
        self.handle.admin_address()
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

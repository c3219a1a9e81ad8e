//! API servers over the rules of this crate: HTTPS on loopback, of any release of the
//! catalogue, over one [`SharedStore`].
//!
//! HTTP, TLS and the judging of certificates are the gateway's own; here is what a
//! kube-apiserver does with a request.

pub mod pod_streams;
pub mod shared;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use skewbridge_api::identity::User;
use skewbridge_gateway::tls::material::{CaBundle, KeyPair};

use crate::catalogue::Release;
use pod_streams::PodStreams;
pub use shared::{SharedStore, StoreWatch};

/// What a server needs.
pub struct ServerConfig {
    /// Which version it is.
    pub release: Release,
    /// Where it listens: bound already, to loopback.
    pub listener: std::net::TcpListener,
    /// What it presents.
    pub serving: KeyPair,
    /// Who signs the certificates of its users (CN is the name, O are the groups).
    pub client_ca: CaBundle,
    /// Who signs the certificates of those whose X-Remote-* headers are believed.
    pub front_proxy_ca: CaBundle,
    /// Their names; none: any.
    pub front_proxy_names: Vec<String>,
    /// Who has which bearer token.
    pub tokens: HashMap<String, User>,
    /// What its identity is made of: another one for each server.
    pub hostname: String,
    /// All objects.
    pub store: SharedStore,
    /// Who runs pods.
    pub streams: Arc<dyn PodStreams>,
}

/// Serves.
#[derive(Debug)]
pub struct ApiServer;

/// A server that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The listener.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] std::io::Error),
}

impl ApiServer {
    /// Starts one on the runtime of the caller.
    #[allow(clippy::unused_async)]
    pub async fn start(config: ServerConfig) -> Result<RunningServer, StartError> {
        let address = config.listener.local_addr()?;
        Ok(RunningServer { address })
    }
}

impl RunningServer {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Finishes what is running and goes, as a server that is told to terminate.
    #[allow(clippy::unused_async)]
    pub async fn stop(self) {}

    /// Ends at once, as a server whose machine has lost its power: connections are cut.
    pub fn kill(self) {}
}

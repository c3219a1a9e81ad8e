//! The connection to a pod. A lost connection is replaced, by one to another pod if there is
//! one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_client::remote_command::{
    Port, PortForwardOptions, PortForwarder, TransportPreference,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::printer::print_stderr;
use super::retries::{Retries, Uptime};
use super::spec::{Remote, Resolved, resolve};
use crate::client_command::Failure;
use crate::exec::explain;
use crate::pods::{Pods, Reference};
use crate::session::{describe_transport, is_off};

/// kubectl's switch for WebSocket in port-forward.
const WEBSOCKET_SWITCH: &str = "KUBECTL_PORT_FORWARD_WEBSOCKETS";

/// A connection to a pod, and the resolved ports.
#[derive(Debug)]
pub(crate) struct PodConnection {
    pub(crate) forwarder: PortForwarder,
    pub(crate) pod: String,
    pub(crate) ports: Vec<Resolved>,
}

/// Opens connections.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) pods: Pods,
    pub(crate) reference: Reference,
    pub(crate) remotes: Vec<Remote>,
    pub(crate) max_wait: Duration,
    pub(crate) verbosity: u8,
}

/// The current connection, for those that wait for one.
pub(crate) type ConnectionReceiver = watch::Receiver<Option<Arc<PodConnection>>>;

impl Connector {
    /// Finds a pod, waiting up to `max_wait`, and connects to it.
    pub(crate) async fn connect(&self, max_wait: Duration) -> Result<PodConnection, Failure> {
        let found = self.pods.find(&self.reference, max_wait).await?;
        let pod = found.pod;
        if pod.status.phase != "Running" {
            let failure = Failure::new(format!(
                "unable to forward port because pod is not running. Current status={}",
                pod.status.phase
            ));
            let container = pod.spec.containers.first();
            let why = container.and_then(|it| pod.why_not_running(&it.name));
            return Err(why.into_iter().fold(failure, Failure::hint));
        }
        let service = found.service.as_ref();
        let service = service.map(|it| (self.reference.name.as_str(), it));
        let ports = self
            .remotes
            .iter()
            .map(|remote| resolve(remote, &pod, service));
        let ports = ports.collect::<Result<_, _>>()?;
        let (namespace, name) = (&self.pods.namespace, &pod.metadata.name);
        let transport = if is_off(WEBSOCKET_SWITCH) {
            TransportPreference::Spdy
        } else {
            TransportPreference::Auto
        };
        let options = PortForwardOptions {
            transport,
            ..PortForwardOptions::default()
        };
        let endpoint = &self.pods.endpoint;
        let forwarder = PortForwarder::connect_with(endpoint, namespace, name, options).await;
        let forwarder =
            forwarder.map_err(|error| explain(error, "pods/portforward", namespace, None))?;
        if self.verbosity > 0 {
            print_stderr(describe_transport(forwarder.transport()));
        }
        Ok(PodConnection {
            forwarder,
            pod: pod.metadata.name,
            ports,
        })
    }

    /// Keeps a connection open; ends when reconnecting has failed for too long.
    pub(crate) async fn keep(
        mut self,
        first: Arc<PodConnection>,
        connections: watch::Sender<Option<Arc<PodConnection>>>,
    ) -> Failure {
        let mut connection = first;
        let mut made = Instant::now();
        let mut retries = Retries::new(self.max_wait, made);
        loop {
            let cause = connection.forwarder.closed().await;
            connections.send_replace(None);
            let lost = format!("lost connection to pod {}: {cause}", connection.pod);
            print_stderr(format_args!("{lost}; connecting again"));
            let uptime = Uptime {
                time: made.elapsed(),
                served: connection.forwarder.has_received_data(),
            };
            drop(connection);
            retries.on_disconnect(uptime, Instant::now());
            connection = match self.reconnect(&mut retries, Failure::new(lost)).await {
                Ok(again) => Arc::new(again),
                Err(failure) => return failure,
            };
            made = Instant::now();
            print_stderr(format_args!("connected to pod {} again", connection.pod));
            connections.send_replace(Some(connection.clone()));
        }
    }

    /// Reconnects with backoff, because servers restart and pods are replaced. Returns the last
    /// error at the limit.
    async fn reconnect(
        &mut self,
        retries: &mut Retries,
        lost: Failure,
    ) -> Result<PodConnection, Failure> {
        let mut why = lost;
        while let Some(pause) = retries.next(Instant::now()) {
            sleep(pause).await;
            let left = retries.remaining(Instant::now());
            match timeout(left, self.renewed(left)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(failure)) => why = failure,
                Err(_) => {
                    let limit = self.max_wait;
                    return Err(why.hint(format!(
                        "the server did not answer within --pod-running-timeout ({limit:?})"
                    )));
                }
            }
            if self.verbosity > 0 {
                print_stderr(&why);
            }
        }
        Err(why)
    }

    /// A connection with current credentials: files may have changed, and the credential of a
    /// plugin may have expired or been refused.
    async fn renewed(&mut self, max_wait: Duration) -> Result<PodConnection, Failure> {
        if let Ok(endpoint) = self.pods.endpoint.renewed().await {
            self.pods.endpoint = endpoint;
        }
        self.connect(max_wait).await
    }
}

/// The port of a connection.
pub(crate) fn port(connection: &PodConnection, at: usize) -> Option<Port> {
    connection.ports.get(at).map(|it| it.remote)
}

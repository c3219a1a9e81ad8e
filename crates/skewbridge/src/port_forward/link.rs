//! The connection to a pod, kept up: when it is lost, another one is made, to another pod
//! if there is one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_client::PortForwarder;
use skewbridge_client::streams::{Port, PortForwardOptions, TransportPreference};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::retries::{Lived, Retries};
use super::spec::{Remote, Resolved, resolve};
use super::tell::say;
use crate::client_command::Failure;
use crate::exec::explain;
use crate::pods::{Pods, Reference};
use crate::session::{is_off, told};

/// What kubectl calls its switch for WebSocket in port-forward.
const BY_WEBSOCKET: &str = "KUBECTL_PORT_FORWARD_WEBSOCKETS";

/// A pod that is connected to, and what its ports are.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) forwarder: PortForwarder,
    pub(crate) pod: String,
    pub(crate) ports: Vec<Resolved>,
}

/// Makes links.
#[derive(Debug)]
pub(crate) struct Linker {
    pub(crate) pods: Pods,
    pub(crate) reference: Reference,
    pub(crate) remotes: Vec<Remote>,
    pub(crate) patience: Duration,
    pub(crate) verbosity: u8,
}

/// Those who wait for a link look here.
pub(crate) type Links = watch::Receiver<Option<Arc<Link>>>;

impl Linker {
    /// Finds a pod, which is waited for so long, and connects to it.
    pub(crate) async fn link(&self, patience: Duration) -> Result<Link, Failure> {
        let found = self.pods.find(&self.reference, patience).await?;
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
        let transport = if is_off(BY_WEBSOCKET) {
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
            say(told(forwarder.transport()));
        }
        Ok(Link {
            forwarder,
            pod: pod.metadata.name,
            ports,
        })
    }

    /// Keeps a link up; ends when there has been none for too long.
    pub(crate) async fn keep(
        mut self,
        first: Arc<Link>,
        links: watch::Sender<Option<Arc<Link>>>,
    ) -> Failure {
        let mut link = first;
        let mut made = Instant::now();
        let mut retries = Retries::new(self.patience, made);
        loop {
            let cause = link.forwarder.closed().await;
            links.send_replace(None);
            let lost = format!("lost connection to pod {}: {cause}", link.pod);
            say(format_args!("{lost}; connecting again"));
            let lived = Lived {
                time: made.elapsed(),
                served: link.forwarder.has_received_data(),
            };
            drop(link);
            retries.lost(lived, Instant::now());
            link = match self.again(&mut retries, Failure::new(lost)).await {
                Ok(again) => Arc::new(again),
                Err(failure) => return failure,
            };
            made = Instant::now();
            say(format_args!("connected to pod {} again", link.pod));
            links.send_replace(Some(link.clone()));
        }
    }

    /// Another link, with patience: servers restart, and pods are replaced. Why there is
    /// none, if there is none in time.
    async fn again(&mut self, retries: &mut Retries, lost: Failure) -> Result<Link, Failure> {
        let mut why = lost;
        while let Some(pause) = retries.next(Instant::now()) {
            sleep(pause).await;
            let left = retries.left(Instant::now());
            match timeout(left, self.renewed(left)).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(failure)) => why = failure,
                Err(_) => {
                    let limit = self.patience;
                    return Err(why.hint(format!(
                        "the server did not answer within --pod-running-timeout ({limit:?})"
                    )));
                }
            }
            if self.verbosity > 0 {
                say(&why);
            }
        }
        Err(why)
    }

    /// A link by what is good now: files may hold another credential, and what a plugin
    /// gave may have run out or been refused.
    async fn renewed(&mut self, patience: Duration) -> Result<Link, Failure> {
        if let Ok(endpoint) = self.pods.endpoint.renewed().await {
            self.pods.endpoint = endpoint;
        }
        self.link(patience).await
    }
}

/// The port of a link.
pub(crate) fn port(link: &Link, at: usize) -> Option<Port> {
    link.ports.get(at).map(|it| it.remote)
}

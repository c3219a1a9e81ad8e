//! The identity Lease of the local server: renewed by that server, or by the bridge if the server
//! has none.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use skewbridge_peer_directory::registry::{Activity, StatusReporter};
use skewbridge_peer_directory::{
    ClockReading, Identity, IdentityLease, LeaseAction, LeaseController, LeaseDeletion, Peers,
    Upstream, lease, stale_leases,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::control::internal_client::{InternalClient, InternalRequest, InternalTarget};
use crate::local_identity::LeaseRenewer;
use crate::state::GatewayState;

/// The timeout of a request to the local server, and the pause between two annotations.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of a request that goes through a peer while this bridge departs.
const PEER_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval between two checks for stale Leases of this host.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// After so many renewals by the bridge, the server would have renewed the Lease too if it were
/// its own: both renew every 10 s. Then the bridge checks whether the server has another Lease.
const RENEWALS_BEFORE_LEASE_CHECK: u32 = 2;

/// After so many conflicts in a row a Lease counts as not writable. A single conflict means that
/// another process has written the Lease first.
const MAX_CONFLICTS: u32 = 3;

/// How many Leases an error text lists: more than a cluster has control-plane nodes.
const MAX_LISTED_LEASES: usize = 10;

/// What bridges write in annotations of identity Leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Annotations {
    /// Nothing: the registry has addresses and served records.
    Nothing,
    /// Served records alone: `--peer-registry=file:PATH`.
    Records,
    /// Addresses and served records: `--peer-registry=leases`.
    AddressesAndRecords,
}

/// Performs the actions of [`LeaseController`] on the Lease.
pub(super) struct OwnLease {
    client: Arc<InternalClient>,
    identity: Identity,
    hostname: String,
    controller: LeaseController,
    address: SocketAddr,
    /// Also written to a Lease that the server renews.
    annotations: Annotations,
    /// Reports the outcomes of writes.
    status: Arc<StatusReporter>,
    /// The Lease as last watched.
    lease: Option<IdentityLease>,
    next_annotation_at: Instant,
    write: Option<JoinHandle<()>>,
    next_sweep: Instant,
    /// Consecutive renewals by the bridge.
    renewals: u32,
    /// Whether the server has been checked for another Lease.
    lease_check_done: Arc<AtomicBool>,
    /// Consecutive conflicts of writes on behalf of the server.
    conflicts: Arc<AtomicU32>,
}

impl OwnLease {
    pub(super) fn new(
        client: Arc<InternalClient>,
        identity: &Identity,
        hostname: &str,
        address: SocketAddr,
        annotations: Annotations,
        status: Arc<StatusReporter>,
    ) -> Self {
        let holder_id = uuid(client.bridge.via.number(), client.bridge.next_lb_seed());
        Self {
            controller: LeaseController::new(identity.clone(), hostname, &holder_id)
                .with_peer_address(address),
            client,
            identity: identity.clone(),
            hostname: hostname.to_owned(),
            address,
            annotations,
            status,
            lease: None,
            next_annotation_at: Instant::now(),
            write: None,
            next_sweep: Instant::now(),
            renewals: 0,
            lease_check_done: Arc::default(),
            conflicts: Arc::default(),
        }
    }

    /// Starts the write that the controller decides on, if any. There is one write at a time: the
    /// next decision is made after its end. `served` is the served record of the server as an
    /// annotation.
    pub(super) fn reconcile(
        &mut self,
        leases: &BTreeMap<Identity, IdentityLease>,
        ready: bool,
        served: Option<&str>,
    ) {
        if self
            .write
            .as_ref()
            .is_some_and(|write| !write.is_finished())
        {
            return;
        }
        if ready {
            self.remove_stale(leases.values());
        }
        self.lease = leases.get(&self.identity).cloned();
        let upstream = if ready {
            Upstream::Ready
        } else {
            Upstream::NotReady
        };
        let now = ClockReading {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        };
        let action = self.controller.observe(self.lease.as_ref(), upstream, now);
        let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
        let (method, path, lease) = match action {
            LeaseAction::Create(lease) => {
                self.renewals = 0;
                tracing::info!(identity = %self.identity, "the kube-apiserver behind this bridge has no identity Lease of this name: the bridge creates and renews it");
                (Method::POST, lease::LEASES_PATH.to_owned(), lease)
            }
            LeaseAction::TakeOver(lease) => {
                self.renewals = 0;
                tracing::info!(identity = %self.identity, "the identity Lease has expired: the bridge renews it from now on");
                (Method::PUT, path, lease)
            }
            LeaseAction::Renew(lease) => {
                self.renewals = self.renewals.saturating_add(1);
                (Method::PUT, path, lease)
            }
            LeaseAction::LeaveAlone { .. } => {
                self.set_renewed_by(LeaseRenewer::KubeApiserver);
                self.status.succeeded(Activity::KeepLease);
                return self.annotate(path, served);
            }
            LeaseAction::Wait { .. } => return self.annotate(path, served),
        };
        self.set_renewed_by(LeaseRenewer::Skewbridge);
        self.write_for_server(method, path, lease.to_json(), leases);
    }

    fn set_renewed_by(&self, renewed_by: LeaseRenewer) {
        if let Some(cluster_handle) = &self.client.bridge.cluster_handle
            && cluster_handle.local.renewed_by() != renewed_by
        {
            cluster_handle.local.set_renewed_by(renewed_by);
        }
    }

    /// Writes the annotations of a Lease that the server renews: its served record, and the
    /// address of the bridge where Leases are the registry.
    fn annotate(&mut self, path: String, served: Option<&str>) {
        let Some(lease) = &self.lease else {
            return;
        };
        let (address, activity) = match self.annotations {
            Annotations::Nothing => return,
            Annotations::Records => (None, Activity::PublishRecord),
            Annotations::AddressesAndRecords => (Some(self.address), Activity::Publish),
        };
        // Until discovery of the server succeeds, the current annotation stays.
        let served = served.or(lease.served_record()).map(str::to_owned);
        let has_address = match address {
            Some(address) => lease.peer_address() == Some(address),
            None => lease.bridge_address().is_none(),
        };
        if has_address && lease.served_record() == served.as_deref() {
            self.status.succeeded(activity);
        } else if self.next_annotation_at <= Instant::now() {
            self.next_annotation_at = Instant::now() + REQUEST_TIMEOUT;
            let (client, status) = (self.client.clone(), self.status.clone());
            let kind = status.subscribe().borrow().kind;
            self.write = Some(tokio::spawn(async move {
                let outcome = patch(&client, &path, address, served.as_deref()).await;
                if let Err(problem) = outcome
                    && let error = annotation_error(kind, &problem)
                    && status.failed_with_new_error(activity, error.clone())
                {
                    tracing::warn!(%error, flag = "--peer-registry", "the identity Lease was not annotated; the write will be retried");
                }
            }));
        }
    }

    /// Deletes stale Leases of earlier servers on this host (KEP-4020, Risks 7): at the start, and
    /// periodically for a server that has crashed since.
    pub(super) fn remove_stale<'a>(&mut self, all: impl IntoIterator<Item = &'a IdentityLease>) {
        let now = Instant::now();
        let is_writing = self.write.as_ref().is_some_and(|it| !it.is_finished());
        if now < self.next_sweep || is_writing {
            return;
        }
        self.next_sweep = now + SWEEP_INTERVAL;
        let stale = stale_leases(all, &self.identity, &self.hostname, SystemTime::now());
        let deletions: Vec<_> = stale.iter().filter_map(|lease| lease.deletion()).collect();
        if deletions.is_empty() {
            return;
        }
        let client = self.client.clone();
        self.write = Some(tokio::spawn(async move {
            for deletion in deletions {
                delete(&client, &deletion).await;
            }
        }));
    }

    /// Deletes the Lease if the bridge renews it, otherwise removes the address of the bridge from
    /// it. `served` is the record that announces the departure, as an annotation.
    pub(super) async fn release(&mut self, served: Option<&str>) {
        if let Some(write) = self.write.take() {
            let _ = write.await;
        }
        // The watch may not have reported the last write yet, and a deletion needs the current
        // resource version.
        let lease = self.read().await;
        if let Some(deletion) = self.controller.on_shutdown(lease.as_ref()) {
            delete(&self.client, &deletion).await;
        } else if self.annotations != Annotations::Nothing && lease.is_some() {
            let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
            if let Err(problem) = patch(&self.client, &path, None, served).await {
                tracing::warn!(%problem, "an identity Lease was not written");
            }
        }
    }

    /// Deletes the Lease of a local server that has ended without deleting it, through a peer
    /// (KEP-4020, Risks 7: before 1.35 a server does not delete its Lease). The deletion has the
    /// resource version that was read as a precondition: a Lease that is renewed meanwhile stays.
    /// Returns whether the Lease does not exist any more.
    pub(super) async fn remove_if_server_ended(&self, peers: &Peers) -> bool {
        if !server_has_ended(&self.client.bridge).await {
            return false;
        }
        let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
        for peer in &peers.peers {
            if peer.address.is_none() || !peer.health.is_reachable() {
                continue;
            }
            let target = InternalTarget::PeerAsBridgeUser(peer);
            let pending = self.client.request(target, InternalRequest::get(&path));
            let Ok(Ok(response)) = timeout(PEER_REQUEST_TIMEOUT, pending).await else {
                continue;
            };
            if response.status == StatusCode::NOT_FOUND {
                return true;
            }
            let lease = response.ok(&path).ok();
            let lease = lease.and_then(|it| IdentityLease::parse(&it.body).ok());
            let Some(deletion) = lease.and_then(|lease| lease.deletion()) else {
                continue;
            };
            // The server may have restarted meanwhile without having renewed its Lease yet.
            if !server_has_ended(&self.client.bridge).await {
                return false;
            }
            let json = deletion.to_json().into_bytes();
            let request = InternalRequest::json(Method::DELETE, &path, json);
            let pending = self.client.request(target, request);
            let deleted = timeout(PEER_REQUEST_TIMEOUT, pending).await;
            if let Ok(Ok(response)) = deleted
                && response.ok(&path).is_ok()
            {
                tracing::info!(identity = %self.identity, "the kube-apiserver behind this bridge has ended: its identity Lease was deleted through a peer");
                return true;
            }
        }
        false
    }

    /// Reads the Lease.
    async fn read(&self) -> Option<IdentityLease> {
        let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
        let pending = self
            .client
            .request(InternalTarget::Upstream, InternalRequest::get(&path));
        let response = timeout(REQUEST_TIMEOUT, pending).await.ok()?.ok()?;
        IdentityLease::parse(&response.ok(&path).ok()?.body).ok()
    }

    /// Writes the Lease on behalf of the server, and checks once whether the server has another
    /// one.
    fn write_for_server(
        &mut self,
        method: Method,
        path: String,
        json: String,
        leases: &BTreeMap<Identity, IdentityLease>,
    ) {
        let (client, status) = (self.client.clone(), self.status.clone());
        let identity = self.identity.clone();
        let check_due = self.renewals >= RENEWALS_BEFORE_LEASE_CHECK
            && !self.lease_check_done.load(Ordering::Relaxed);
        let other_leases = check_due.then(|| other_leases(leases, &identity));
        let (lease_check_done, conflicts) = (self.lease_check_done.clone(), self.conflicts.clone());
        self.write = Some(tokio::spawn(async move {
            let request = InternalRequest::json(method, &path, json.into_bytes());
            match write(&client, request).await {
                Ok(WriteOutcome::Written) => {
                    conflicts.store(0, Ordering::Relaxed);
                    status.succeeded(Activity::KeepLease);
                }
                // Another process has written the Lease first, which the next decision takes into
                // account. Repeated conflicts: a Lease of this name exists without the label of
                // kube-apiservers, so the watch does not report it.
                Ok(WriteOutcome::Conflict) => {
                    if conflicts.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_CONFLICTS {
                        report_write_error(&status, &identity, "409 Conflict");
                    }
                }
                Err(problem) => report_write_error(&status, &identity, &problem),
            }
            let Some(other_leases) = other_leases else {
                return;
            };
            let Some(has_lease) = server_has_lease(&client).await else {
                return;
            };
            lease_check_done.store(true, Ordering::Relaxed);
            if let (true, Some(cluster_handle)) = (has_lease, &client.bridge.cluster_handle) {
                let mismatch_reason = format!(
                    "the kube-apiserver behind this bridge renews another identity Lease than \
                     {identity}: set --apiserver-identity, or the host name of the server; \
                     the other Leases are {other_leases}"
                );
                tracing::warn!(%identity, flag = "--apiserver-identity", "{mismatch_reason}");
                cluster_handle.local.set_mismatch_reason(mismatch_reason);
            }
        }));
    }
}

/// Whether the local server has ended: its port refuses connections. A server that is not ready or
/// does not answer may still run.
async fn server_has_ended(state: &GatewayState) -> bool {
    let target = state.targets.load().plain.clone();
    let connect = tokio::net::TcpStream::connect((target.host.as_str(), target.port));
    match timeout(PEER_REQUEST_TIMEOUT, connect).await {
        Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// The names and hosts of all other Leases.
fn other_leases(leases: &BTreeMap<Identity, IdentityLease>, own: &Identity) -> String {
    let other_leases = leases.values().filter(|lease| lease.identity() != own);
    let other_leases = other_leases.map(|lease| {
        let host = lease.hostname().unwrap_or("unknown host");
        format!("{} ({host})", lease.identity())
    });
    other_leases
        .take(MAX_LISTED_LEASES)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Whether the local server has an identity Lease by its metrics; `None` if they do not show it.
async fn server_has_lease(client: &InternalClient) -> Option<bool> {
    let pending = client.request(InternalTarget::Upstream, InternalRequest::get("/metrics"));
    let response = timeout(REQUEST_TIMEOUT, pending).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&response.body);
    feature_enabled(&text, "APIServerIdentity")
}

/// Whether a feature gate is enabled, by kube-apiserver's metrics (since 1.26). A gate that is not
/// listed does not exist.
fn feature_enabled(metrics: &str, name: &str) -> Option<bool> {
    let mut features = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("kubernetes_feature_enabled{"))
        .peekable();
    features.peek()?;
    let name = format!("name=\"{name}\"");
    let found = features.find(|line| line.split([',', '}']).any(|label| label == name));
    Some(found.is_some_and(|line| line.ends_with("} 1")))
}

/// Sets or removes the annotations of a Lease that its server renews.
async fn patch(
    client: &InternalClient,
    path: &str,
    address: Option<SocketAddr>,
    served: Option<&str>,
) -> Result<(), String> {
    let json = lease::bridge_annotations_patch(address, served).into_bytes();
    let request = InternalRequest::json(Method::PATCH, path, json);
    try_send(
        client,
        request.header(CONTENT_TYPE, "application/merge-patch+json"),
    )
    .await
}

/// Reports that the Lease could not be written on behalf of the server.
fn report_write_error(status: &StatusReporter, identity: &Identity, problem: &str) {
    let error = format!(
        "the identity Lease {identity}, which the bridge renews for its server, cannot be \
         written: {problem}; --bridge-user needs the verbs create and update on Leases in \
         kube-system"
    );
    if status.failed_with_new_error(Activity::KeepLease, error.clone()) {
        tracing::warn!(%error, flag = "--bridge-user", "an identity Lease was not written; the write will be retried");
    }
}

/// Why the annotations could not be written, and what to do.
fn annotation_error(registry: &str, problem: &str) -> String {
    format!(
        "--peer-registry={registry}: the identity Lease cannot be annotated: {problem}; the bridge \
         needs the verb patch on its Lease in kube-system"
    )
}

async fn delete(client: &InternalClient, deletion: &LeaseDeletion) {
    let path = format!("{}/{}", lease::LEASES_PATH, deletion.identity);
    let request = InternalRequest::json(Method::DELETE, &path, deletion.to_json().into_bytes());
    send(client, request).await;
}

/// Sends a write and logs a failure. The next decision of the controller retries it.
async fn send(client: &InternalClient, request: InternalRequest<'_>) {
    let method = request.method.clone();
    if let Err(problem) = try_send(client, request).await {
        tracing::warn!(%method, %problem, "an identity Lease was not written");
    }
}

async fn try_send(client: &InternalClient, request: InternalRequest<'_>) -> Result<(), String> {
    let path = request.path.to_owned();
    match write(client, request).await? {
        WriteOutcome::Written => Ok(()),
        WriteOutcome::Conflict => Err(format!("{path}: 409 Conflict")),
    }
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    Written,
    /// The object has changed since it was read.
    Conflict,
}

async fn write(
    client: &InternalClient,
    request: InternalRequest<'_>,
) -> Result<WriteOutcome, String> {
    let path = request.path.to_owned();
    let response = timeout(
        REQUEST_TIMEOUT,
        client.request(InternalTarget::Upstream, request),
    )
    .await;
    let response = response.map_err(|_| "no response".to_owned())??;
    if response.status == StatusCode::CONFLICT {
        return Ok(WriteOutcome::Conflict);
    }
    response.ok(&path).map(|_| WriteOutcome::Written)
}

/// Version 4 (RFC 9562, 5.4).
fn uuid(high: u64, low: u64) -> String {
    let high = (high & !0xf000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_cannot_be_annotated_marks_the_registry_as_down() {
        let status = StatusReporter::new("leases", &[Activity::Read]);
        status.succeeded(Activity::Read);
        let subscriber = status.subscribe();
        assert!(subscriber.borrow().up);
        let fails = |problem| {
            status.failed_with_new_error(Activity::Publish, annotation_error("leases", problem))
        };
        assert!(fails("403 Forbidden"));
        assert!(!fails("403 Forbidden"), "logged once");
        assert!(fails("no response"), "another error");
        assert!(status.failed_with_new_error(Activity::KeepLease, "no response".to_owned()));
        assert!(!fails("no response"), "another activity fails as well");
        status.succeeded(Activity::KeepLease);
        let error = subscriber.borrow().error().unwrap_or_default().to_owned();
        assert!(error.contains("--peer-registry=leases"), "{error}");
        assert!(error.contains("no response"), "{error}");
        status.succeeded(Activity::Publish);
        assert!(subscriber.borrow().up);
        assert!(fails("no response"), "logged again after a success");
    }

    #[test]
    fn feature_gates_are_read_from_metrics() {
        let metrics = |value: &str| {
            format!(
                "# HELP kubernetes_feature_enabled [BETA] whether it is on\n\
                 # TYPE kubernetes_feature_enabled gauge\n\
                 kubernetes_feature_enabled{{name=\"APIServerIdentityX\",stage=\"BETA\"}} 1\n\
                 {value}process_open_fds 7\n"
            )
        };
        let on = "kubernetes_feature_enabled{name=\"APIServerIdentity\",stage=\"BETA\"} 1\n";
        let off = "kubernetes_feature_enabled{name=\"APIServerIdentity\",stage=\"\"} 0\n";
        for (text, expected) in [
            (metrics(on), Some(true)),
            (metrics(off), Some(false)),
            (metrics(""), Some(false)),
            ("process_open_fds 7\n".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(
                feature_enabled(&text, "APIServerIdentity"),
                expected,
                "{text}"
            );
        }
    }
}

//! The identity Lease of the kube-apiserver behind us: kept by that server, or
//! by us where it keeps none.

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
use crate::local_identity::KeptBy;
use crate::state::GatewayState;

/// How long a write may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same for what is done through a peer while this bridge leaves.
const PEER_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How often it is looked whether servers of this host have left Leases behind.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// Renewals of ours after which the server, if it kept this Lease, would have
/// renewed it too: both do every 10 s.
const PROBATION: u32 = 2;

/// After so many conflicts in a row a Lease cannot be written: one is another process that
/// was faster.
const MAX_CONFLICTS: u32 = 3;

/// How many Leases are named to choose from: more control planes than one has.
const MAX_NAMED: usize = 10;

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

/// Does to the Lease what [`LeaseController`] decides.
pub(super) struct OwnLease {
    own: Arc<InternalClient>,
    identity: Identity,
    hostname: String,
    controller: LeaseController,
    address: SocketAddr,
    /// Also written into a Lease that its server keeps.
    annotations: Annotations,
    /// Hears what becomes of writing the Lease.
    status: Arc<StatusReporter>,
    /// As last seen.
    lease: Option<IdentityLease>,
    look_at: Instant,
    write: Option<JoinHandle<()>>,
    next_sweep: Instant,
    /// How often we have renewed it in a row.
    renewals: u32,
    /// Whether the server has said if it keeps a Lease.
    asked: Arc<AtomicBool>,
    /// Conflicts in a row of writes in the server's stead.
    conflicts: Arc<AtomicU32>,
}

impl OwnLease {
    pub(super) fn new(
        own: Arc<InternalClient>,
        identity: &Identity,
        hostname: &str,
        address: SocketAddr,
        annotations: Annotations,
        status: Arc<StatusReporter>,
    ) -> Self {
        let life = uuid(own.bridge.via.number(), own.bridge.next_lb_seed());
        Self {
            controller: LeaseController::new(identity.clone(), hostname, &life)
                .with_peer_address(address),
            own,
            identity: identity.clone(),
            hostname: hostname.to_owned(),
            address,
            annotations,
            status,
            lease: None,
            look_at: Instant::now(),
            write: None,
            next_sweep: Instant::now(),
            renewals: 0,
            asked: Arc::default(),
            conflicts: Arc::default(),
        }
    }

    /// Decides, and begins to write if that is the decision. One write at a
    /// time: the next decision is made when its effect has been seen.
    /// `served` is the record of what the server serves, as an annotation.
    pub(super) fn look(
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
                tracing::info!(identity = %self.identity, "the kube-apiserver behind this bridge keeps no identity Lease of this name: the bridge does");
                (Method::POST, lease::LEASES_PATH.to_owned(), lease)
            }
            LeaseAction::TakeOver(lease) => {
                self.renewals = 0;
                tracing::info!(identity = %self.identity, "nobody keeps the identity Lease any more: the bridge does");
                (Method::PUT, path, lease)
            }
            LeaseAction::Renew(lease) => {
                self.renewals = self.renewals.saturating_add(1);
                (Method::PUT, path, lease)
            }
            LeaseAction::LeaveAlone { .. } => {
                self.is_kept_by(KeptBy::KubeApiserver);
                self.status.succeeded(Activity::KeepLease);
                return self.annotate(path, served);
            }
            LeaseAction::Wait { .. } => return self.annotate(path, served),
        };
        self.is_kept_by(KeptBy::Skewbridge);
        self.keep(method, path, lease.to_json(), leases);
    }

    fn is_kept_by(&self, kept_by: KeptBy) {
        if let Some(cluster_handle) = &self.own.bridge.cluster_handle
            && cluster_handle.local.kept_by() != kept_by
        {
            cluster_handle.local.is_kept_by(kept_by);
        }
    }

    /// Writes the annotations on a Lease that its server keeps: what the server serves, and
    /// our address where Leases are the registry.
    fn annotate(&mut self, path: String, served: Option<&str>) {
        let Some(lease) = &self.lease else {
            return;
        };
        let (address, activity) = match self.annotations {
            Annotations::Nothing => return,
            Annotations::Records => (None, Activity::PublishRecord),
            Annotations::AddressesAndRecords => (Some(self.address), Activity::Publish),
        };
        // Before the server has answered, what is written there stays.
        let served = served.or(lease.served_record()).map(str::to_owned);
        let has_address = match address {
            Some(address) => lease.peer_address() == Some(address),
            None => lease.bridge_address().is_none(),
        };
        if has_address && lease.served_record() == served.as_deref() {
            self.status.succeeded(activity);
        } else if self.look_at <= Instant::now() {
            self.look_at = Instant::now() + PATIENCE;
            let (own, status) = (self.own.clone(), self.status.clone());
            let kind = status.subscribe().borrow().kind;
            self.write = Some(tokio::spawn(async move {
                let outcome = patch(&own, &path, address, served.as_deref()).await;
                if let Err(problem) = outcome
                    && let error = not_annotated(kind, &problem)
                    && status.failed_with_new_error(activity, error.clone())
                {
                    tracing::warn!(%error, flag = "--peer-registry", "the identity Lease was not annotated; it is tried again");
                }
            }));
        }
    }

    /// Removes what an earlier life of this host has left (KEP-4020, Risks 7): at the
    /// start, and again now and then, for a server that has just crashed.
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
        let own = self.own.clone();
        self.write = Some(tokio::spawn(async move {
            for deletion in deletions {
                delete(&own, &deletion).await;
            }
        }));
    }

    /// Deletes the Lease if it is ours, takes our address back if it is not. `served` is
    /// the record that announces that we leave, as an annotation.
    pub(super) async fn leave(&mut self, served: Option<&str>) {
        if let Some(write) = self.write.take() {
            let _ = write.await;
        }
        // What was written last may not have come back by the watch yet, and
        // only the Lease as it is now can be deleted.
        let lease = self.read().await;
        if let Some(deletion) = self.controller.on_shutdown(lease.as_ref()) {
            delete(&self.own, &deletion).await;
        } else if self.annotations != Annotations::Nothing && lease.is_some() {
            let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
            if let Err(problem) = patch(&self.own, &path, None, served).await {
                tracing::warn!(%problem, "an identity Lease was not written");
            }
        }
    }

    /// Deletes the Lease of a server that has ended and has left it behind, through a peer
    /// (KEP-4020, Risks 7: before 1.35 a server does not delete its own). The Lease is
    /// deleted as it was read: one that is renewed meanwhile stays. Whether there is
    /// nothing left to do.
    pub(super) async fn remove_of_ended_server(&self, peers: &Peers) -> bool {
        if !has_ended(&self.own.bridge).await {
            return false;
        }
        let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
        for peer in &peers.peers {
            if peer.address.is_none() || !peer.health.is_reachable() {
                continue;
            }
            let through = InternalTarget::PeerAsBridgeUser(peer);
            let asked = self.own.ask(through, InternalRequest::get(&path));
            let Ok(Ok(answer)) = timeout(PEER_REQUEST_TIMEOUT, asked).await else {
                continue;
            };
            if answer.status == StatusCode::NOT_FOUND {
                return true;
            }
            let lease = answer.ok(&path).ok();
            let lease = lease.and_then(|it| IdentityLease::parse(&it.body).ok());
            let Some(deletion) = lease.and_then(|lease| lease.deletion()) else {
                continue;
            };
            // It may have started again meanwhile, and not have renewed its Lease yet.
            if !has_ended(&self.own.bridge).await {
                return false;
            }
            let json = deletion.to_json().into_bytes();
            let ask = InternalRequest::json(Method::DELETE, &path, json);
            let asked = self.own.ask(through, ask);
            let deleted = timeout(PEER_REQUEST_TIMEOUT, asked).await;
            if let Ok(Ok(answer)) = deleted
                && answer.ok(&path).is_ok()
            {
                tracing::info!(identity = %self.identity, "the kube-apiserver behind this bridge has ended: its identity Lease is deleted through a peer");
                return true;
            }
        }
        false
    }

    /// The Lease as it is now.
    async fn read(&self) -> Option<IdentityLease> {
        let path = format!("{}/{}", lease::LEASES_PATH, self.identity);
        let asked = self
            .own
            .ask(InternalTarget::Upstream, InternalRequest::get(&path));
        let answer = timeout(PATIENCE, asked).await.ok()?.ok()?;
        IdentityLease::parse(&answer.ok(&path).ok()?.body).ok()
    }

    /// Writes the Lease in the server's stead, and finds out once whether the
    /// server keeps another.
    fn keep(
        &mut self,
        method: Method,
        path: String,
        json: String,
        leases: &BTreeMap<Identity, IdentityLease>,
    ) {
        let (own, status) = (self.own.clone(), self.status.clone());
        let identity = self.identity.clone();
        let doubtful = self.renewals >= PROBATION && !self.asked.load(Ordering::Relaxed);
        let others = doubtful.then(|| others(leases, &identity));
        let (asked, conflicts) = (self.asked.clone(), self.conflicts.clone());
        self.write = Some(tokio::spawn(async move {
            let ask = InternalRequest::json(method, &path, json.into_bytes());
            match write(&own, ask).await {
                Ok(Written::Yes) => {
                    conflicts.store(0, Ordering::Relaxed);
                    status.succeeded(Activity::KeepLease);
                }
                // Another process was faster, which the next look will see; unless it is a
                // Lease that is not listed among those of kube-apiservers.
                Ok(Written::Conflict) => {
                    if conflicts.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_CONFLICTS {
                        report_not_kept(&status, &identity, "409 Conflict");
                    }
                }
                Err(problem) => report_not_kept(&status, &identity, &problem),
            }
            let Some(others) = others else {
                return;
            };
            let Some(keeps) = server_keeps_a_lease(&own).await else {
                return;
            };
            asked.store(true, Ordering::Relaxed);
            if let (true, Some(cluster_handle)) = (keeps, &own.bridge.cluster_handle) {
                let doubt = format!(
                    "the kube-apiserver behind this bridge keeps an identity Lease, and not \
                     {identity}: give --apiserver-identity, or the host name of the server; \
                     the other Leases are {others}"
                );
                tracing::warn!(%identity, flag = "--apiserver-identity", "{doubt}");
                cluster_handle.local.doubted(doubt);
            }
        }));
    }
}

/// Whether the kube-apiserver behind us has ended: its port refuses connections. One that
/// is not ready, or does not answer, may still run.
async fn has_ended(bridge: &GatewayState) -> bool {
    let target = bridge.live.targets.load().plain.clone();
    let connect = tokio::net::TcpStream::connect((target.host.as_str(), target.port));
    match timeout(PEER_REQUEST_TIMEOUT, connect).await {
        Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// The Leases of other names, with their hosts.
fn others(leases: &BTreeMap<Identity, IdentityLease>, own: &Identity) -> String {
    let others = leases.values().filter(|lease| lease.identity() != own);
    let others = others.map(|lease| {
        let host = lease.hostname().unwrap_or("unknown host");
        format!("{} ({host})", lease.identity())
    });
    others.take(MAX_NAMED).collect::<Vec<_>>().join(", ")
}

/// Whether the server behind us says that it keeps an identity Lease; `None` if
/// it does not say.
async fn server_keeps_a_lease(own: &InternalClient) -> Option<bool> {
    let asked = own.ask(InternalTarget::Upstream, InternalRequest::get("/metrics"));
    let answer = timeout(PATIENCE, asked).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&answer.body);
    feature(&text, "APIServerIdentity")
}

/// Whether a feature is on, by kube-apiserver's metrics (since 1.26). One that is
/// not mentioned is not there.
fn feature(metrics: &str, name: &str) -> Option<bool> {
    let mut features = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("kubernetes_feature_enabled{"))
        .peekable();
    features.peek()?;
    let name = format!("name=\"{name}\"");
    let found = features.find(|line| line.split([',', '}']).any(|label| label == name));
    Some(found.is_some_and(|line| line.ends_with("} 1")))
}

/// Says our address on a Lease that its server keeps, or takes it back.
async fn patch(
    own: &InternalClient,
    path: &str,
    address: Option<SocketAddr>,
    served: Option<&str>,
) -> Result<(), String> {
    let json = lease::bridge_annotations_patch(address, served).into_bytes();
    let ask = InternalRequest::json(Method::PATCH, path, json);
    try_send(
        own,
        ask.header(CONTENT_TYPE, "application/merge-patch+json"),
    )
    .await
}

/// Reports that the Lease could not be written in the server's stead.
fn report_not_kept(status: &StatusReporter, identity: &Identity, problem: &str) {
    let error = format!(
        "the identity Lease {identity}, which the bridge keeps for its server, cannot be \
         written: {problem}; --bridge-user needs the verbs create and update on Leases in \
         kube-system"
    );
    if status.failed_with_new_error(Activity::KeepLease, error.clone()) {
        tracing::warn!(%error, flag = "--bridge-user", "an identity Lease was not written; it is tried again");
    }
}

/// Why the annotations on the own Lease could not be written, and what to do.
fn not_annotated(registry: &str, problem: &str) -> String {
    format!(
        "--peer-registry={registry}: the identity Lease cannot be annotated: {problem}; the bridge \
         needs the verb patch on its Lease in kube-system"
    )
}

async fn delete(own: &InternalClient, deletion: &LeaseDeletion) {
    let path = format!("{}/{}", lease::LEASES_PATH, deletion.identity);
    let ask = InternalRequest::json(Method::DELETE, &path, deletion.to_json().into_bytes());
    send(own, ask).await;
}

/// A conflict is somebody else's success; everything is tried again anyhow.
async fn send(own: &InternalClient, ask: InternalRequest<'_>) {
    let method = ask.method.clone();
    if let Err(problem) = try_send(own, ask).await {
        tracing::warn!(%method, %problem, "an identity Lease was not written");
    }
}

async fn try_send(own: &InternalClient, ask: InternalRequest<'_>) -> Result<(), String> {
    let path = ask.path.to_owned();
    match write(own, ask).await? {
        Written::Yes => Ok(()),
        Written::Conflict => Err(format!("{path}: 409 Conflict")),
    }
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Yes,
    /// The object is another one by now.
    Conflict,
}

async fn write(own: &InternalClient, ask: InternalRequest<'_>) -> Result<Written, String> {
    let path = ask.path.to_owned();
    let answer = timeout(PATIENCE, own.ask(InternalTarget::Upstream, ask)).await;
    let answer = answer.map_err(|_| "no answer".to_owned())??;
    if answer.status == StatusCode::CONFLICT {
        return Ok(Written::Conflict);
    }
    answer.ok(&path).map(|_| Written::Yes)
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
    fn a_lease_that_cannot_be_annotated_takes_the_registry_down() {
        let status = StatusReporter::new("leases", &[Activity::Read]);
        status.succeeded(Activity::Read);
        let seen = status.subscribe();
        assert!(seen.borrow().up);
        let fails = |problem| {
            status.failed_with_new_error(Activity::Publish, not_annotated("leases", problem))
        };
        assert!(fails("403 Forbidden"));
        assert!(!fails("403 Forbidden"), "logged once");
        assert!(fails("no answer"), "another error");
        assert!(status.failed_with_new_error(Activity::KeepLease, "no answer".to_owned()));
        assert!(!fails("no answer"), "another activity fails as well");
        status.succeeded(Activity::KeepLease);
        let error = seen.borrow().error().unwrap_or_default().to_owned();
        assert!(error.contains("--peer-registry=leases"), "{error}");
        assert!(error.contains("no answer"), "{error}");
        status.succeeded(Activity::Publish);
        assert!(seen.borrow().up);
        assert!(fails("no answer"), "it had been over");
    }

    #[test]
    fn a_server_tells_by_its_metrics_whether_a_feature_is_on() {
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
            assert_eq!(feature(&text, "APIServerIdentity"), expected, "{text}");
        }
    }
}

//! The identity Lease of the kube-apiserver behind us: kept by that server, or
//! by us where it keeps none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use http::Method;
use http::header::CONTENT_TYPE;
use skewbridge_peers::{
    Action, Deletion, Identity, IdentityLease, Keeper, Moment, Upstream, lease, stale_leases,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::local_identity::KeptBy;
use crate::own::{Ask, Own, Party};

/// How long a write may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Renewals of ours after which the server, if it kept this Lease, would have
/// renewed it too: both do every 10 s.
const PROBATION: u32 = 2;

/// How many Leases are named to choose from: more control planes than one has.
const MAX_NAMED: usize = 10;

/// Does to the Lease what [`Keeper`] decides.
pub(super) struct OwnLease {
    own: Arc<Own>,
    identity: Identity,
    hostname: String,
    keeper: Keeper,
    /// Also written into a Lease that its server keeps: `--peer-registry=leases`.
    annotate: Option<SocketAddr>,
    /// As last seen.
    lease: Option<IdentityLease>,
    look_at: Instant,
    write: Option<JoinHandle<()>>,
    swept: bool,
    /// How often we have renewed it in a row.
    renewals: u32,
    /// Whether the server has said if it keeps a Lease.
    asked: Arc<AtomicBool>,
}

impl OwnLease {
    pub(super) fn new(
        own: Arc<Own>,
        identity: &Identity,
        hostname: &str,
        address: SocketAddr,
        annotate: bool,
    ) -> Self {
        let life = uuid(own.bridge.via.number(), own.bridge.chance());
        Self {
            keeper: Keeper::new(identity.clone(), hostname, &life).advertising(address),
            own,
            identity: identity.clone(),
            hostname: hostname.to_owned(),
            annotate: annotate.then_some(address),
            lease: None,
            look_at: Instant::now(),
            write: None,
            swept: false,
            renewals: 0,
            asked: Arc::default(),
        }
    }

    /// Decides, and begins to write if that is the decision. One write at a
    /// time: the next decision is made when its effect has been seen.
    pub(super) fn look(&mut self, leases: &BTreeMap<Identity, IdentityLease>, ready: bool) {
        if self
            .write
            .as_ref()
            .is_some_and(|write| !write.is_finished())
        {
            return;
        }
        self.lease = leases.get(&self.identity).cloned();
        let upstream = if ready {
            Upstream::Ready
        } else {
            Upstream::NotReady
        };
        let now = Moment {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        };
        let action = self.keeper.observe(self.lease.as_ref(), upstream, now);
        let path = format!("{}/{}", lease::COLLECTION, self.identity);
        let (method, path, lease) = match action {
            Action::Create(lease) => {
                self.renewals = 0;
                tracing::info!(identity = %self.identity, "the kube-apiserver behind this bridge keeps no identity Lease of this name: the bridge does");
                (Method::POST, lease::COLLECTION.to_owned(), lease)
            }
            Action::TakeOver(lease) => {
                self.renewals = 0;
                tracing::info!(identity = %self.identity, "nobody keeps the identity Lease any more: the bridge does");
                (Method::PUT, path, lease)
            }
            Action::Renew(lease) => {
                self.renewals = self.renewals.saturating_add(1);
                (Method::PUT, path, lease)
            }
            Action::LeaveAlone { .. } => {
                self.is_kept_by(KeptBy::KubeApiserver);
                return self.annotate(path);
            }
            Action::Wait { .. } => return self.annotate(path),
        };
        self.is_kept_by(KeptBy::Skewbridge);
        self.keep(method, path, lease.to_json(), leases);
    }

    fn is_kept_by(&self, kept_by: KeptBy) {
        if let Some(interop) = &self.own.bridge.interop
            && interop.local.kept_by() != kept_by
        {
            interop.local.is_kept_by(kept_by);
        }
    }

    /// Says our address on a Lease that its server keeps.
    fn annotate(&mut self, path: String) {
        let (Some(address), Some(lease)) = (self.annotate, &self.lease) else {
            return;
        };
        if lease.peer_address() != Some(address) && self.look_at <= Instant::now() {
            self.look_at = Instant::now() + PATIENCE;
            let own = self.own.clone();
            self.write = Some(tokio::spawn(async move {
                patch(&own, &path, Some(address)).await;
            }));
        }
    }

    /// Removes what an earlier life of this host has left (KEP-4020, Risks 7):
    /// once, at the start.
    pub(super) fn remove_stale(&mut self, all: &[IdentityLease]) {
        if std::mem::replace(&mut self.swept, true) {
            return;
        }
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

    /// Deletes the Lease if it is ours, takes our address back if it is not.
    pub(super) async fn leave(&mut self) {
        if let Some(write) = self.write.take() {
            let _ = write.await;
        }
        // What was written last may not have come back by the watch yet, and
        // only the Lease as it is now can be deleted.
        let lease = self.read().await;
        if let Some(deletion) = self.keeper.on_shutdown(lease.as_ref()) {
            delete(&self.own, &deletion).await;
        } else if self.annotate.is_some() && lease.is_some() {
            let path = format!("{}/{}", lease::COLLECTION, self.identity);
            patch(&self.own, &path, None).await;
        }
    }

    /// The Lease as it is now.
    async fn read(&self) -> Option<IdentityLease> {
        let path = format!("{}/{}", lease::COLLECTION, self.identity);
        let asked = self.own.ask(Party::Upstream, Ask::get(&path));
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
        let own = self.own.clone();
        let identity = self.identity.clone();
        let doubtful = self.renewals >= PROBATION && !self.asked.load(Ordering::Relaxed);
        let others = doubtful.then(|| others(leases, &identity));
        let asked = self.asked.clone();
        self.write = Some(tokio::spawn(async move {
            send(&own, Ask::json(method, &path, json.into_bytes())).await;
            let Some(others) = others else {
                return;
            };
            let Some(keeps) = server_keeps_a_lease(&own).await else {
                return;
            };
            asked.store(true, Ordering::Relaxed);
            if let (true, Some(interop)) = (keeps, &own.bridge.interop) {
                let doubt = format!(
                    "the kube-apiserver behind this bridge keeps an identity Lease, and not \
                     {identity}: give --apiserver-identity, or the host name of the server; \
                     the other Leases are {others}"
                );
                tracing::warn!(%identity, flag = "--apiserver-identity", "{doubt}");
                interop.local.doubted(doubt);
            }
        }));
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
async fn server_keeps_a_lease(own: &Own) -> Option<bool> {
    let asked = own.ask(Party::Upstream, Ask::get("/metrics"));
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
async fn patch(own: &Own, path: &str, address: Option<SocketAddr>) {
    let json = lease::address_patch(address).into_bytes();
    let ask = Ask::json(Method::PATCH, path, json);
    send(
        own,
        ask.header(CONTENT_TYPE, "application/merge-patch+json"),
    )
    .await;
}

async fn delete(own: &Own, deletion: &Deletion) {
    let path = format!("{}/{}", lease::COLLECTION, deletion.identity);
    let ask = Ask::json(Method::DELETE, &path, deletion.to_json().into_bytes());
    send(own, ask).await;
}

/// A conflict is somebody else's success; everything is tried again anyhow.
async fn send(own: &Own, ask: Ask<'_>) {
    let (method, path) = (ask.method.clone(), ask.path.to_owned());
    let problem = match timeout(PATIENCE, own.ask(Party::Upstream, ask)).await {
        Err(_) => "no answer".to_owned(),
        Ok(Err(problem)) => problem,
        Ok(Ok(answer)) => match answer.ok(&path) {
            Ok(_) => return,
            Err(problem) => problem,
        },
    };
    tracing::warn!(%method, %problem, "an identity Lease was not written");
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

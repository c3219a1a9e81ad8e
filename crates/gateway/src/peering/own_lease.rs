//! The identity Lease of the kube-apiserver behind us: kept by that server, or
//! by us where it keeps none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::Method;
use http::header::CONTENT_TYPE;
use skewbridge_peers::{
    Action, Deletion, Identity, IdentityLease, Keeper, Moment, Upstream, lease, stale_leases,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::own::{Ask, Own, Party};

/// How long a write may take.
const PATIENCE: Duration = Duration::from_secs(5);

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
        match action {
            Action::Create(lease) => {
                tracing::info!(identity = %self.identity, "the kube-apiserver behind this bridge keeps no identity Lease: the bridge does");
                self.write(
                    Method::POST,
                    lease::COLLECTION.to_owned(),
                    lease.to_json(),
                    None,
                );
            }
            Action::TakeOver(lease) => {
                tracing::info!(identity = %self.identity, "nobody keeps the identity Lease any more: the bridge does");
                self.write(Method::PUT, path, lease.to_json(), None);
            }
            Action::Renew(lease) => self.write(Method::PUT, path, lease.to_json(), None),
            Action::Wait { .. } | Action::LeaveAlone { .. } => self.annotate(path),
        }
    }

    /// Says our address on a Lease that its server keeps.
    fn annotate(&mut self, path: String) {
        let (Some(address), Some(lease)) = (self.annotate, &self.lease) else {
            return;
        };
        if lease.peer_address() != Some(address) && self.look_at <= Instant::now() {
            self.look_at = Instant::now() + PATIENCE;
            self.write(
                Method::PATCH,
                path,
                annotation(&format!("\"{address}\"")),
                Some("application/merge-patch+json"),
            );
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
            let ask = Ask::json(Method::PATCH, &path, annotation("null").into_bytes())
                .header(CONTENT_TYPE, "application/merge-patch+json");
            send(&self.own, ask).await;
        }
    }

    /// The Lease as it is now.
    async fn read(&self) -> Option<IdentityLease> {
        let path = format!("{}/{}", lease::COLLECTION, self.identity);
        let asked = self.own.ask(Party::Upstream, Ask::get(&path));
        let answer = timeout(PATIENCE, asked).await.ok()?.ok()?;
        IdentityLease::parse(&answer.ok(&path).ok()?.body).ok()
    }

    fn write(&mut self, method: Method, path: String, json: String, content: Option<&'static str>) {
        let own = self.own.clone();
        self.write = Some(tokio::spawn(async move {
            let mut ask = Ask::json(method, &path, json.into_bytes());
            if let Some(content) = content {
                ask = ask.header(CONTENT_TYPE, content);
            }
            send(&own, ask).await;
        }));
    }
}

fn annotation(value: &str) -> String {
    format!(
        r#"{{"metadata":{{"annotations":{{"kubernetes.io/peer-advertise-address":{value}}}}}}}"#
    )
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

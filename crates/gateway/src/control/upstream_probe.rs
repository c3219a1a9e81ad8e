//! Asks upstream now and then whether it is ready, and which version it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::StatusCode;
use skewbridge_k8s_api::version::Version;
use tokio::time::{sleep, timeout};

use crate::control::internal_client::{
    InternalClient, InternalRequest, InternalResponse, InternalTarget,
};
use crate::health::UpstreamHealth;
use crate::state::GatewayState;
use crate::upstream_problem::explained;

/// Between two questions: to an upstream that was ready, and to one that was
/// not; and how long an answer may take.
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(5);

/// Ten seconds of them.
const MANY_DENIALS: u32 = 20;

/// Asks until it is dropped.
pub(crate) async fn run(bridge: Arc<GatewayState>, health: Arc<ArcSwap<UpstreamHealth>>) {
    let (mut upstream_seen_ready, mut denials) = (false, 0);
    let prober = Prober {
        own: InternalClient::new(bridge),
    };
    loop {
        let answer = timeout(PATIENCE, prober.health()).await;
        let now = answer.unwrap_or_else(|_| {
            UpstreamHealth::NotReady(format!("no answer within {} s", PATIENCE.as_secs()))
        });
        if now == UpstreamHealth::Ready {
            // Each time: it may have been replaced by another version between
            // two looks.
            match timeout(PATIENCE, prober.learn_version()).await {
                Ok(Ok(())) => upstream_seen_ready = true,
                // While kube-apiserver starts, it denies everything for a
                // moment; one that always does is taken as it is.
                Ok(Err(Denied)) => {
                    denials += 1;
                    upstream_seen_ready |= denials >= MANY_DENIALS;
                }
                Err(_) => {}
            }
            let known = &prober.own.bridge.upstream_seen_ready;
            known.store(upstream_seen_ready, Ordering::Relaxed);
        }
        let now = match now {
            UpstreamHealth::NotReady(cause) => {
                let files = prober.own.bridge.live.own.load();
                UpstreamHealth::NotReady(explained(&cause, &files.upstream))
            }
            now => now,
        };
        let before = health.swap(Arc::new(now.clone()));
        if *before != now {
            if let UpstreamHealth::NotReady(cause) = &now {
                tracing::warn!(%cause, "upstream is not ready");
            } else {
                tracing::info!("upstream is ready");
            }
        }
        sleep(if upstream_seen_ready && now == UpstreamHealth::Ready {
            ASK_EVERY
        } else {
            ASK_AGAIN
        })
        .await;
    }
}

/// Upstream does not tell us its version.
struct Denied;

struct Prober {
    own: InternalClient,
}

impl Prober {
    async fn health(&self) -> UpstreamHealth {
        match self.get("/readyz", InternalTarget::UpstreamAsNobody).await {
            Ok(InternalResponse { status, .. }) if status.is_success() || is_denied(status) => {
                UpstreamHealth::Ready
            }
            Ok(InternalResponse { status, .. }) => {
                UpstreamHealth::NotReady(format!("/readyz answered {status}"))
            }
            Err(cause) => UpstreamHealth::NotReady(cause),
        }
    }

    /// Which version upstream is. Where the anonymous may not know, it is asked
    /// by the name under which kube-apiservers ask each other.
    async fn learn_version(&self) -> Result<(), Denied> {
        let denied = |answer: &Result<InternalResponse, String>| {
            answer.as_ref().is_ok_and(|answer| is_denied(answer.status))
        };
        let mut answer = self.get("/version", InternalTarget::UpstreamAsNobody).await;
        if denied(&answer) {
            answer = self.get("/version", InternalTarget::Upstream).await;
        }
        if answer.is_err() || denied(&answer) {
            return Err(Denied);
        }
        if let Ok(answer) = answer
            && answer.status == StatusCode::OK
            && let body = answer.body
            && let Ok(Info { git_version }) = serde_json::from_slice(&body)
            && let Ok(version) = git_version.parse::<Version>()
        {
            let version = Some(Arc::new(version));
            let before = self.own.bridge.upstream_version.swap(version.clone());
            if before != version {
                tracing::info!(
                    version = git_version,
                    "upstream has said which version it is"
                );
            }
        }
        Ok(())
    }

    /// Without a certificate everybody may read `/readyz` and `/version` on a
    /// usual cluster; where not, being told so is an answer too.
    async fn get(
        &self,
        path: &'static str,
        party: InternalTarget<'_>,
    ) -> Result<InternalResponse, String> {
        self.own.ask(party, InternalRequest::get(path)).await
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    git_version: &'a str,
}

fn is_denied(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN
}

//! Polls the readiness and the version of upstream.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::StatusCode;
use skewbridge_k8s_api::version::Version;
use tokio::time::{sleep, timeout};

use crate::control::internal_client::{
    InternalClient, InternalRequest, InternalResponse, InternalTarget,
};
use crate::control::upstream_readiness::{ReadyzAnswer, UpstreamReadiness, is_denied};
use crate::health::UpstreamHealth;
use crate::server_report::ServerReport;
use crate::state::GatewayState;
use crate::upstream_error_hint::{UpstreamFlags, explain};

/// The interval between two probes of an upstream that was ready at the last one.
const READY_PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The interval between two probes of an upstream that was not ready.
const NOT_READY_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// The interval between two probes of one of several upstreams: as long as its readiness is not
/// known, requests reach a server that is about to end.
const BACKEND_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two probes while an administrator looks at the status.
const OBSERVED_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// The pause before a probe that a failed request has caused: clients must not be able to cause
/// a probe each.
const MIN_PROBE_PAUSE: Duration = Duration::from_millis(100);

/// The timeout of each request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// After so many denied version requests, which take ten seconds, upstream counts as ready
/// without a version.
const MAX_VERSION_DENIALS: u32 = 20;

/// Probes until it is dropped. `is_backend`: it is one of several upstreams.
pub(crate) async fn run(
    bridge: Arc<GatewayState>,
    (health, report): (
        Arc<ArcSwap<UpstreamHealth>>,
        Arc<ArcSwapOption<ServerReport>>,
    ),
    is_backend: bool,
) {
    let (mut upstream_seen_ready, mut denials) = (false, 0);
    let local_health = bridge.local_health.clone();
    let failure_signal = &local_health.failure_signal;
    let prober = Prober {
        client: InternalClient::new(bridge),
        report,
    };
    let observers = prober.client.bridge.activity.observers.clone();
    let url = prober.client.bridge.url();
    let interval = if is_backend {
        BACKEND_PROBE_INTERVAL
    } else {
        READY_PROBE_INTERVAL
    };
    let mut readiness = UpstreamReadiness::default();
    let mut failures_before = failure_signal.failures();
    loop {
        // Failures during the probe are later than its answer, as far as is known.
        let failures = failure_signal.failures();
        let answer = timeout(PROBE_TIMEOUT, prober.readyz()).await;
        let answer = answer.unwrap_or_else(|_| {
            ReadyzAnswer::NotReady(format!("no answer within {} s", PROBE_TIMEOUT.as_secs()))
        });
        let is_running = !matches!(answer, ReadyzAnswer::NotReady(_));
        let had_outage = failures > std::mem::replace(&mut failures_before, failures);
        let now = readiness.probed(answer, had_outage, Instant::now());
        if is_running {
            // With each probe: upstream may have been replaced by another version since the
            // last one.
            match timeout(PROBE_TIMEOUT, prober.update_version()).await {
                Ok(Ok(())) => upstream_seen_ready = true,
                // A kube-apiserver that starts denies all requests for a moment. One that
                // keeps denying them counts as ready.
                Ok(Err(VersionUnknown)) => {
                    denials += 1;
                    upstream_seen_ready |= denials >= MAX_VERSION_DENIALS;
                }
                Err(_) => {}
            }
            let known = &prober.client.bridge.upstream_seen_ready;
            known.store(upstream_seen_ready, Ordering::Relaxed);
        }
        let now = match now {
            UpstreamHealth::NotReady(cause) => {
                let files = prober.client.bridge.live.own.load();
                let flags = UpstreamFlags {
                    url: url.clone(),
                    ca: files.upstream.ca.clone(),
                };
                UpstreamHealth::NotReady(explain(&cause, &flags))
            }
            now => now,
        };
        // First the doubts about its version.
        local_health.probed(now == UpstreamHealth::Ready, failures);
        let before = health.swap(Arc::new(now.clone()));
        if *before != now {
            if let UpstreamHealth::NotReady(cause) = &now {
                tracing::warn!(%url, %cause, "upstream is not ready");
            } else {
                tracing::info!(%url, "upstream is ready");
            }
        }
        let is_observed = observers.is_observed(Instant::now());
        let pause = sleep(if is_observed {
            OBSERVED_PROBE_INTERVAL
        } else if upstream_seen_ready && now == UpstreamHealth::Ready {
            interval
        } else {
            NOT_READY_PROBE_INTERVAL
        });
        tokio::select! {
            () = pause => {}
            () = failure_signal.raised() => sleep(MIN_PROBE_PAUSE).await,
        }
    }
}

/// Upstream has denied the request for its version, or has not answered it.
struct VersionUnknown;

struct Prober {
    client: InternalClient,
    /// What the server reports of itself.
    report: Arc<ArcSwapOption<ServerReport>>,
}

impl Prober {
    /// The readiness that upstream reports. If anonymous requests for it are denied, it is requested as
    /// `--bridge-user`.
    async fn readyz(&self) -> ReadyzAnswer {
        let mut response = self.get("/readyz", InternalTarget::UpstreamAnonymous).await;
        if (response.as_ref()).is_ok_and(|it| is_denied(it.status)) {
            let as_user = self.get("/readyz", InternalTarget::Upstream).await;
            response = as_user.or(response);
        }
        match response {
            Ok(InternalResponse { status, .. }) => ReadyzAnswer::of_status(status),
            Err(cause) => ReadyzAnswer::NotReady(cause),
        }
    }

    /// Stores the version of upstream. If anonymous requests for it are denied, it is
    /// requested as `--bridge-user`.
    async fn update_version(&self) -> Result<(), VersionUnknown> {
        let denied = |response: &Result<InternalResponse, String>| {
            (response.as_ref()).is_ok_and(|response| is_denied(response.status))
        };
        let mut response = self
            .get("/version", InternalTarget::UpstreamAnonymous)
            .await;
        if denied(&response) {
            response = self.get("/version", InternalTarget::Upstream).await;
        }
        if response.is_err() || denied(&response) {
            return Err(VersionUnknown);
        }
        if let Ok(response) = response
            && response.status == StatusCode::OK
            && let body = response.body.clone()
            && let Ok(VersionInfo { git_version }) = serde_json::from_slice(&body)
            && let Ok(version) = git_version.parse::<Version>()
        {
            let report = ServerReport::parse(&response.headers, &body);
            self.report.store(Some(Arc::new(report)));
            let version = Some(Arc::new(version));
            let before = self.client.bridge.upstream_version.swap(version.clone());
            if before != version {
                if before.is_some() {
                    self.client.bridge.local_health.confirmation.doubt();
                }
                tracing::info!(version = git_version, "the version of upstream is known");
            }
        }
        Ok(())
    }

    /// By default kube-apiserver permits anonymous requests for `/readyz` and `/version`, once it has read
    /// the RBAC objects.
    async fn get(
        &self,
        path: &'static str,
        target: InternalTarget<'_>,
    ) -> Result<InternalResponse, String> {
        self.client
            .request(target, InternalRequest::get(path))
            .await
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionInfo<'a> {
    git_version: &'a str,
}

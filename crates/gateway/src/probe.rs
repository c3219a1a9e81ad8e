//! Asks upstream now and then whether it is ready, and which version it is.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request, StatusCode, Uri};
use skewbridge_api::identity::User;
use skewbridge_api::version::Version;
use tokio::time::{sleep, timeout};

use crate::body::{Frame, RequestBody, ResponseBody};
use crate::flow::Bridge;
use crate::health::UpstreamHealth;
use crate::upstream::{Leg, Prefer, Repeat, Replay, Reply};
use crate::worker::Pools;

/// Between two questions: to an upstream that was ready, and to one that was
/// not; and how long an answer may take.
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(5);

/// Ten seconds of them.
const MANY_DENIALS: u32 = 20;

/// More than kube-apiserver says when every check fails.
const MAX_ANSWER: usize = 64 * 1024;

/// Asks until it is dropped.
pub(crate) async fn run(bridge: Arc<Bridge>, health: Arc<ArcSwap<UpstreamHealth>>) {
    let (mut acquainted, mut denials) = (false, 0);
    let prober = Prober {
        bridge,
        pools: Pools::default(),
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
                Ok(Ok(())) => acquainted = true,
                // While kube-apiserver starts, it denies everything for a
                // moment; one that always does is taken as it is.
                Ok(Err(Denied)) => {
                    denials += 1;
                    acquainted |= denials >= MANY_DENIALS;
                }
                Err(_) => {}
            }
            prober
                .bridge
                .acquainted
                .store(acquainted, Ordering::Relaxed);
        }
        let before = health.swap(Arc::new(now.clone()));
        if *before != now {
            if let UpstreamHealth::NotReady(cause) = &now {
                tracing::warn!(%cause, "upstream is not ready");
            } else {
                tracing::info!("upstream is ready");
            }
        }
        sleep(if acquainted && now == UpstreamHealth::Ready {
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
    bridge: Arc<Bridge>,
    pools: Pools,
}

impl Prober {
    async fn health(&self) -> UpstreamHealth {
        match self.get("/readyz", Leg::Plain).await {
            Ok((status, _)) if status.is_success() || is_denied(status) => UpstreamHealth::Ready,
            Ok((status, _)) => UpstreamHealth::NotReady(format!("/readyz answered {status}")),
            Err(cause) => UpstreamHealth::NotReady(cause),
        }
    }

    /// Which version upstream is. Where the anonymous may not know, it is asked
    /// by the name under which kube-apiservers ask each other.
    async fn learn_version(&self) -> Result<(), Denied> {
        let mut answer = self.get("/version", Leg::Plain).await;
        if matches!(answer, Ok((status, _)) if is_denied(status)) {
            answer = self.get("/version", Leg::FrontProxy).await;
        }
        if !matches!(answer, Ok((status, _)) if !is_denied(status)) {
            return Err(Denied);
        }
        if let Ok((StatusCode::OK, body)) = answer
            && let Ok(Info { git_version }) = serde_json::from_slice(&body)
            && let Ok(version) = git_version.parse::<Version>()
        {
            let version = Some(Arc::new(version));
            let before = self.bridge.upstream_version.swap(version.clone());
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
    async fn get(&self, path: &'static str, leg: Leg) -> Result<(StatusCode, Vec<u8>), String> {
        let bridge = &*self.bridge;
        let Some(pool) = self.pools.of(leg, &bridge.live, &bridge.metrics) else {
            return Err("there is no front-proxy certificate".to_owned());
        };
        let trust = bridge.live.trust.load_full();
        let mut request = Request::new(Replay::new(
            RequestBody::Empty,
            trust.clone(),
            Repeat::Harmless,
        ));
        *request.uri_mut() = Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(HOST, bridge.default_host.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        if leg == Leg::FrontProxy {
            let myself = User {
                name: "system:apiserver".to_owned(),
                ..User::default()
            };
            let written = trust.headers().write(headers, &myself);
            written.map_err(|error| error.to_string())?;
        }
        match pool.send(&mut request, Prefer::H2).await {
            Ok(Reply::Response(response)) => {
                Ok((response.status(), read(response.into_body()).await))
            }
            Ok(Reply::Upgraded(..)) => Err(format!("{path} answered 101")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Who we are in upstream's log.
const USER_AGENT_VALUE: &str = concat!("skewbridge/", env!("CARGO_PKG_VERSION"));

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    git_version: &'a str,
}

fn is_denied(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN
}

/// Reads a body to its end, so that the connection serves the next question
/// too.
async fn read(mut body: ResponseBody) -> Vec<u8> {
    let mut answer = Vec::new();
    while let Some(Ok(frame)) = poll_fn(|cx| body.poll_frame(cx)).await {
        if let Frame::Data(data) = frame {
            if answer.len() + data.len() > MAX_ANSWER {
                break;
            }
            answer.extend_from_slice(&data);
        }
    }
    answer
}

//! Asks upstream now and then whether it is ready.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, StatusCode};
use tokio::time::{sleep, timeout};

use crate::body::{Frame, RequestBody, ResponseBody};
use crate::flow::Bridge;
use crate::health::UpstreamHealth;
use crate::upstream::{Leg, Prefer, Replay, Reply};
use crate::worker::Pools;

/// Between two questions, and how long an answer may take.
const ASK_EVERY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(5);

/// More than kube-apiserver says when every check fails.
const MAX_ANSWER: usize = 64 * 1024;

/// Asks until it is dropped.
pub(crate) async fn run(bridge: Arc<Bridge>, health: Arc<ArcSwap<UpstreamHealth>>) {
    let pools = Pools::default();
    loop {
        let answer = timeout(PATIENCE, ask(&bridge, &pools)).await;
        let now = answer.unwrap_or_else(|_| {
            UpstreamHealth::NotReady(format!("no answer within {} s", PATIENCE.as_secs()))
        });
        let before = health.swap(Arc::new(now.clone()));
        if *before != now {
            if let UpstreamHealth::NotReady(cause) = &now {
                tracing::warn!(%cause, "upstream is not ready");
            } else {
                tracing::info!("upstream is ready");
            }
        }
        sleep(ASK_EVERY).await;
    }
}

/// Without a certificate: everybody may read `/readyz` on a usual cluster, and
/// where not, being told so is an answer too.
async fn ask(bridge: &Bridge, pools: &Pools) -> UpstreamHealth {
    let Some(pool) = pools.of(Leg::Plain, &bridge.live, &bridge.metrics) else {
        return UpstreamHealth::Unknown;
    };
    let trust = bridge.live.trust.load_full();
    let mut request = Request::new(Replay::new(RequestBody::Empty, trust));
    *request.uri_mut() = http::Uri::from_static("/readyz");
    let headers = request.headers_mut();
    headers.insert(http::header::HOST, bridge.default_host.clone());
    headers.insert(
        http::header::USER_AGENT,
        http::HeaderValue::from_static(concat!("skewbridge/", env!("CARGO_PKG_VERSION"))),
    );
    match pool.send(&mut request, Prefer::H2).await {
        Ok(Reply::Response(response)) => {
            let status = response.status();
            read_out(response.into_body()).await;
            match status {
                status if status.is_success() => UpstreamHealth::Ready,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => UpstreamHealth::Ready,
                status => UpstreamHealth::NotReady(format!("/readyz answered {status}")),
            }
        }
        Ok(Reply::Upgraded(..)) => UpstreamHealth::NotReady("/readyz answered 101".to_owned()),
        Err(error) => UpstreamHealth::NotReady(error.to_string()),
    }
}

/// Reads a body to its end, so that the connection serves the next question
/// too.
async fn read_out(mut body: ResponseBody) {
    let mut left = MAX_ANSWER;
    while let Some(Ok(frame)) = poll_fn(|cx| body.poll_frame(cx)).await {
        if let Frame::Data(data) = frame {
            if data.len() > left {
                return;
            }
            left -= data.len();
        }
    }
}

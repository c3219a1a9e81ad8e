//! To the kube-apiserver behind this bridge: once, or twice if it is certain
//! that the first time had no effect.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use skewbridge_api::status::Status;
use tokio::time::{sleep, timeout};

use crate::config::Limits;
use crate::metrics::Metrics;
use crate::respond;
use crate::upstream::{Pool, Prefer, Replay, Reply, SendError};

/// A server that refuses connections is often one that is just starting.
const BEFORE_RECONNECT: Duration = Duration::from_millis(100);

/// How long an answer may take to begin.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deadline {
    /// Watches, logs and streams begin when there is something to say.
    None,
    /// Everything else.
    After(Duration),
}

impl Deadline {
    pub(crate) fn of(long_running: bool, limits: &Limits) -> Self {
        if long_running {
            Self::None
        } else {
            Self::After(limits.request_timeout + limits.answer_grace)
        }
    }
}

/// Sends a request up and gives the reply, or says what to answer instead.
pub(crate) async fn forward(
    pool: &Arc<Pool>,
    request: Request<Replay>,
    prefer: Prefer,
    deadline: Deadline,
    metrics: &Metrics,
) -> Result<Reply, Status> {
    let sent = send(pool, request, prefer, metrics);
    let outcome = match deadline {
        Deadline::None => sent.await,
        Deadline::After(limit) => match timeout(limit, sent).await {
            Ok(outcome) => outcome,
            Err(_) => {
                return Err(Status::timeout(format!(
                    "the kube-apiserver behind this gateway did not answer within {} s",
                    limit.as_secs()
                )));
            }
        },
    };
    outcome.map_err(|error| {
        tracing::debug!(%error, "no answer from upstream");
        respond::send_error(&error)
    })
}

async fn send(
    pool: &Arc<Pool>,
    mut request: Request<Replay>,
    prefer: Prefer,
    metrics: &Metrics,
) -> Result<Reply, SendError> {
    let error = match pool.send(&mut request, prefer).await {
        Err(error) if error.is_safe_to_repeat() && request.body_mut().rewind() => error,
        outcome => return outcome,
    };
    tracing::debug!(%error, "upstream did not take a request; it is sent once more");
    metrics.upstream_retry();
    if matches!(error, SendError::Connect(_)) {
        sleep(BEFORE_RECONNECT).await;
    }
    pool.send(&mut request, prefer).await
}

//! What the answers to `/readyz` say about the readiness of upstream.

use std::time::{Duration, Instant};

use http::StatusCode;

use crate::health::UpstreamHealth;

/// For how long an upstream that denies `/readyz` to the bridge counts as not ready: a kube-apiserver that
/// starts denies it until it has read the RBAC objects. One that keeps denying it counts as ready.
const MAX_DENIED_START: Duration = Duration::from_secs(10);

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadyzAnswer {
    /// 2xx
    Ready,
    /// The status, or why there is no answer.
    NotReady(String),
    /// 401 or 403: upstream runs, and its readiness is not known.
    Denied(StatusCode),
}

impl ReadyzAnswer {
    /// The answer with this status.
    pub(super) fn of_status(status: StatusCode) -> Self {
        if status.is_success() {
            Self::Ready
        } else if is_denied(status) {
            Self::Denied(status)
        } else {
            Self::NotReady(format!("/readyz answered {status}"))
        }
    }
}

/// Whether a request was not permitted.
pub(super) fn is_denied(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN
}

/// The readiness of upstream by its answers until now.
#[derive(Debug, Default)]
pub(super) struct UpstreamReadiness {
    last: LastAnswers,
}

/// What the last answers were.
#[derive(Debug, Clone, Copy, Default)]
enum LastAnswers {
    /// None, or upstream was not ready.
    #[default]
    NotReady,
    Ready,
    /// Denials since then, which do not count as ready yet.
    DeniedSince(Instant),
    /// Denials, which count as ready.
    DeniedAndReady,
}

impl UpstreamReadiness {
    /// Records the answer to a probe. `had_outage`: requests have failed since the probe before, so that
    /// upstream may have started again.
    pub(super) fn probed(
        &mut self,
        answer: ReadyzAnswer,
        had_outage: bool,
        now: Instant,
    ) -> UpstreamHealth {
        let (last, health) = match (answer, self.last) {
            (ReadyzAnswer::Ready, _) => (LastAnswers::Ready, UpstreamHealth::Ready),
            (ReadyzAnswer::NotReady(cause), _) => {
                (LastAnswers::NotReady, UpstreamHealth::NotReady(cause))
            }
            (ReadyzAnswer::Denied(status), last) => match last.denied(had_outage, now) {
                LastAnswers::DeniedAndReady => (LastAnswers::DeniedAndReady, UpstreamHealth::Ready),
                last => (last, UpstreamHealth::NotReady(denied_at_start(status))),
            },
        };
        self.last = last;
        health
    }
}

impl LastAnswers {
    /// The same after a denial.
    fn denied(self, had_outage: bool, now: Instant) -> Self {
        match self {
            Self::NotReady => Self::DeniedSince(now),
            Self::Ready if had_outage => Self::DeniedSince(now),
            Self::DeniedSince(since) if now.duration_since(since) < MAX_DENIED_START => self,
            // After `Ready`, the right was removed while upstream runs.
            Self::Ready | Self::DeniedAndReady | Self::DeniedSince(_) => Self::DeniedAndReady,
        }
    }
}

fn denied_at_start(status: StatusCode) -> String {
    format!(
        "/readyz answered {status}, as while kube-apiserver starts; after {} s of it, it counts as ready",
        MAX_DENIED_START.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_count_as_ready_unless_upstream_may_have_started_just_now() {
        const SECOND: Duration = Duration::from_secs(1);
        const BEFORE_LIMIT: Duration = Duration::from_secs(9);
        type Probe = (Duration, ReadyzAnswer, bool, bool);
        let status = |code| ReadyzAnswer::of_status(StatusCode::from_u16(code).unwrap());
        let refused = || ReadyzAnswer::NotReady("connection refused".to_owned());
        let (quiet, outage) = (false, true);
        let rows: [(&str, Vec<Probe>); 8] = [
            (
                "permitted",
                vec![
                    (SECOND, status(200), quiet, true),
                    (SECOND, status(500), quiet, false),
                    (SECOND, status(200), outage, true),
                ],
            ),
            (
                "a start",
                vec![
                    (SECOND, refused(), quiet, false),
                    (SECOND, status(403), quiet, false),
                    (SECOND, status(403), quiet, false),
                    (SECOND, status(500), quiet, false),
                    (SECOND, status(200), quiet, true),
                ],
            ),
            (
                "a start that no probe has met",
                vec![
                    (SECOND, status(200), quiet, true),
                    (SECOND, status(403), outage, false),
                    (SECOND, status(403), quiet, false),
                    (SECOND, status(200), quiet, true),
                ],
            ),
            (
                "the first probes of a server that always denies",
                vec![
                    (SECOND, status(403), quiet, false),
                    (BEFORE_LIMIT, status(403), quiet, false),
                    (SECOND, status(403), quiet, true),
                    (SECOND, status(403), quiet, true),
                ],
            ),
            (
                "anonymous requests turned off",
                vec![
                    (SECOND, status(401), quiet, false),
                    (MAX_DENIED_START, status(401), quiet, true),
                ],
            ),
            (
                "a right is removed from a server that runs",
                vec![
                    (SECOND, status(200), quiet, true),
                    (SECOND, status(403), quiet, true),
                    (BEFORE_LIMIT, status(403), quiet, true),
                ],
            ),
            (
                "a server that always denies, a lost connection, and a start",
                vec![
                    (SECOND, status(403), quiet, false),
                    (MAX_DENIED_START, status(403), quiet, true),
                    (SECOND, status(403), outage, true),
                    (SECOND, refused(), outage, false),
                    (SECOND, status(403), quiet, false),
                    (BEFORE_LIMIT, status(403), quiet, false),
                    (SECOND, status(403), quiet, true),
                ],
            ),
            (
                "another answer begins the time again",
                vec![
                    (SECOND, status(403), quiet, false),
                    (BEFORE_LIMIT, refused(), quiet, false),
                    (BEFORE_LIMIT, status(403), quiet, false),
                    (BEFORE_LIMIT, status(403), quiet, false),
                    (SECOND, status(403), quiet, true),
                ],
            ),
        ];
        for (name, probes) in rows {
            let mut readiness = UpstreamReadiness::default();
            let mut now = Instant::now();
            for (number, (pause, answer, had_outage, expected)) in probes.into_iter().enumerate() {
                now += pause;
                let health = readiness.probed(answer, had_outage, now);
                let is_ready = health == UpstreamHealth::Ready;
                assert_eq!(is_ready, expected, "{name}, probe {number}: {health:?}");
            }
        }
    }
}

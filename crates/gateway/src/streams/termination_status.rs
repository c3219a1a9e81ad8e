//! The Status that a client gets if the bridge itself ends a command.

use http::StatusCode;
use skewbridge_remotecommand::{Failure, Outcome};

use super::StreamTimeouts;

/// The idle timeout.
pub(crate) fn idle_timeout(timeouts: StreamTimeouts) -> Outcome {
    Outcome::Failed(Failure {
        code: Some(StatusCode::GATEWAY_TIMEOUT.as_u16()),
        reason: "Timeout".to_owned(),
        message: format!(
            "the stream was idle for {} s (--streaming-connection-idle-timeout)",
            timeouts.idle.as_secs()
        ),
    })
}

/// The bridge shuts down.
pub(crate) fn shutdown() -> Outcome {
    Outcome::Failed(Failure {
        code: Some(StatusCode::SERVICE_UNAVAILABLE.as_u16()),
        reason: "ServiceUnavailable".to_owned(),
        message: "the bridge is shutting down, and the stream did not end within \
                  --shutdown-drain-timeout"
            .to_owned(),
    })
}

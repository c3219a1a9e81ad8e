//! What a client is told of a command whose end the bridge itself has brought about.

use http::StatusCode;
use skewbridge_remotecommand::{Failure, Outcome};

use super::StreamTimeouts;

/// Nothing was said for too long.
pub(crate) fn idle_timeout(timeouts: StreamTimeouts) -> Outcome {
    Outcome::Failed(Failure {
        code: Some(StatusCode::GATEWAY_TIMEOUT.as_u16()),
        reason: "Timeout".to_owned(),
        message: format!(
            "nothing was said for {} s (--streaming-connection-idle-timeout)",
            timeouts.idle.as_secs()
        ),
    })
}

/// The bridge goes away.
pub(crate) fn shutdown() -> Outcome {
    Outcome::Failed(Failure {
        code: Some(StatusCode::SERVICE_UNAVAILABLE.as_u16()),
        reason: "ServiceUnavailable".to_owned(),
        message: "the gateway shuts down, and the stream had not ended within \
                  --shutdown-drain-timeout"
            .to_owned(),
    })
}

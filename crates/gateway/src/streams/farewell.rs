//! What a client is told of a command whose end the bridge itself has brought about.

use http::StatusCode;
use skewbridge_remotecommand::{Failure, Outcome};

use super::Care;

/// Nothing was said for too long.
pub(crate) fn idle(care: Care) -> Outcome {
    Outcome::Failed(Failure {
        code: Some(StatusCode::GATEWAY_TIMEOUT.as_u16()),
        reason: "Timeout".to_owned(),
        message: format!(
            "nothing was said for {} s (--streaming-connection-idle-timeout)",
            care.idle.as_secs()
        ),
    })
}

/// The bridge goes away.
pub(crate) fn leaving() -> Outcome {
    Outcome::Failed(Failure {
        code: Some(StatusCode::SERVICE_UNAVAILABLE.as_u16()),
        reason: "ServiceUnavailable".to_owned(),
        message: "the gateway shuts down, and the stream had not ended within \
                  --shutdown-drain-timeout"
            .to_owned(),
    })
}

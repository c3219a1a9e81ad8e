//! Why a signed request is not passed on, and how that is told.

use skewbridge_http_signature::VerifyError;
use skewbridge_k8s_api::status::Status;

use super::buffered_body::MAX_BODY;
use crate::error_response;

/// Why a signed request is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// Its signature is not good.
    Refused(VerifyError),
    /// It may have been accepted before we started. Signed in so many seconds, it
    /// will do.
    BeforeStart(u32),
    /// It brings another credential, of somebody else or of who knows whom.
    OtherCredential,
    /// It could not be remembered, so it could come again.
    NoMemory,
    /// Its body is longer than is held.
    TooLarge,
    /// Too many bodies are being held.
    NoRoom,
    /// Its body did not come.
    BodyLost,
    /// Its body takes too long.
    BodySlow,
}

impl From<VerifyError> for Rejected {
    fn from(refusal: VerifyError) -> Self {
        match refusal {
            VerifyError::BeforeStart => Self::BeforeStart(1),
            refusal => Self::Refused(refusal),
        }
    }
}

impl Rejected {
    /// All that there are, for metrics.
    pub(super) const ALL: [Self; 17] = [
        Self::Refused(VerifyError::Malformed),
        Self::Refused(VerifyError::UnknownKey),
        Self::Refused(VerifyError::Ambiguous),
        Self::Refused(VerifyError::NotCovered),
        Self::Refused(VerifyError::WrongAuthority),
        Self::Refused(VerifyError::Expired),
        Self::Refused(VerifyError::NotYetValid),
        Self::BeforeStart(1),
        Self::Refused(VerifyError::Mismatch),
        Self::Refused(VerifyError::Replayed),
        Self::Refused(VerifyError::WrongDigest),
        Self::OtherCredential,
        Self::NoMemory,
        Self::TooLarge,
        Self::NoRoom,
        Self::BodyLost,
        Self::BodySlow,
    ];

    /// As a metric label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.as_str(),
            Self::BeforeStart(_) => VerifyError::BeforeStart.as_str(),
            Self::OtherCredential => "other-credential",
            Self::NoMemory => "no-memory",
            Self::TooLarge => "too-large",
            Self::NoRoom => "no-room",
            Self::BodyLost => "body-lost",
            Self::BodySlow => "body-slow",
        }
    }

    /// As an answer.
    pub(crate) fn status(self) -> Status {
        let unauthorized = |message: &str| Status::new(401, "Unauthorized", message);
        match self {
            // Signed again, it will do; nothing is wrong with who asks.
            Self::BeforeStart(seconds) => {
                Status::service_unavailable(VerifyError::BeforeStart.message(), seconds)
            }
            Self::Refused(refusal) => unauthorized(refusal.message()),
            Self::OtherCredential => unauthorized(
                "the request is signed and brings another credential: \
                 a bearer token, or the certificate of another user",
            ),
            Self::NoMemory => {
                error_response::later("more signed requests come than this gateway can remember")
            }
            Self::TooLarge => Status::new(
                413,
                "RequestEntityTooLarge",
                format!("the body of a signed request is longer than {MAX_BODY} bytes"),
            ),
            Self::NoRoom => error_response::later(
                "more bodies of signed requests come than this gateway can hold",
            ),
            Self::BodyLost => Status::bad_request("the body of the signed request did not come"),
            Self::BodySlow => {
                Status::client_timeout("the body of the signed request did not come in time")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_reason_is_told_with_its_code_and_counted_by_its_name() {
        let mut names = HashSet::new();
        for rejected in Rejected::ALL {
            let status = rejected.status();
            let expected = match rejected {
                Rejected::BeforeStart(_) | Rejected::NoMemory | Rejected::NoRoom => (503, Some(1)),
                Rejected::TooLarge => (413, None),
                Rejected::BodyLost => (400, None),
                Rejected::BodySlow => (408, None),
                Rejected::Refused(_) | Rejected::OtherCredential => (401, None),
            };
            let told = (status.code, status.retry_after_seconds);
            assert_eq!(told, expected, "{rejected:?}");
            assert!(!status.message.is_empty());
            assert!(names.insert(rejected.as_str()), "{rejected:?}");
        }
    }
}

//! Errors of signed requests, their responses, and the limit of bodies.

use skewbridge_http_signature::VerifyError;
use skewbridge_k8s_api::status::Status;

use crate::error_response;

/// The maximum size of a body: the limit of kube-apiserver for an object.
pub(super) const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// Why a signed request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureError {
    /// The signature is not valid.
    Invalid(VerifyError),
    /// An earlier process may have accepted the same signature. A signature that is created after
    /// this number of seconds is accepted.
    BeforeStart(u32),
    /// The request has another credential, of another user or of an unknown one.
    OtherCredential,
    /// The replay cache is full, so a replay could not be detected.
    ReplayCacheFull,
    /// The body exceeds the limit.
    TooLarge,
    /// The budget for buffered bodies is exhausted.
    BodyBudgetExhausted,
    /// The body was not received completely.
    BodyLost,
    /// The body was not received in time.
    BodySlow,
}

impl From<VerifyError> for SignatureError {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::BeforeStart => Self::BeforeStart(1),
            error => Self::Invalid(error),
        }
    }
}

impl SignatureError {
    /// All errors, for metrics.
    pub(super) const ALL: [Self; 17] = [
        Self::Invalid(VerifyError::Malformed),
        Self::Invalid(VerifyError::UnknownKey),
        Self::Invalid(VerifyError::Ambiguous),
        Self::Invalid(VerifyError::NotCovered),
        Self::Invalid(VerifyError::WrongAuthority),
        Self::Invalid(VerifyError::Expired),
        Self::Invalid(VerifyError::NotYetValid),
        Self::BeforeStart(1),
        Self::Invalid(VerifyError::Mismatch),
        Self::Invalid(VerifyError::Replayed),
        Self::Invalid(VerifyError::WrongDigest),
        Self::OtherCredential,
        Self::ReplayCacheFull,
        Self::TooLarge,
        Self::BodyBudgetExhausted,
        Self::BodyLost,
        Self::BodySlow,
    ];

    /// The metric label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Invalid(error) => error.as_str(),
            Self::BeforeStart(_) => VerifyError::BeforeStart.as_str(),
            Self::OtherCredential => "other-credential",
            Self::ReplayCacheFull => "no-memory",
            Self::TooLarge => "too-large",
            Self::BodyBudgetExhausted => "no-budget",
            Self::BodyLost => "body-lost",
            Self::BodySlow => "body-slow",
        }
    }

    /// The response.
    pub(crate) fn status(self) -> Status {
        let unauthorized = |message: &str| Status::new(401, "Unauthorized", message);
        match self {
            // A new signature is accepted later; the credential is valid.
            Self::BeforeStart(seconds) => {
                Status::service_unavailable(VerifyError::BeforeStart.message(), seconds)
            }
            Self::Invalid(error) => unauthorized(error.message()),
            Self::OtherCredential => unauthorized(
                "the request is signed and has another credential: \
                 a bearer token, or the certificate of another user",
            ),
            Self::ReplayCacheFull => {
                error_response::retry_later("the replay cache of this bridge is full")
            }
            Self::TooLarge => Status::new(
                413,
                "RequestEntityTooLarge",
                format!("the body of a signed request is longer than {MAX_BODY_BYTES} bytes"),
            ),
            Self::BodyBudgetExhausted => error_response::retry_later(
                "this bridge buffers too many bodies of signed requests",
            ),
            Self::BodyLost => Status::bad_request("the body of the signed request is incomplete"),
            Self::BodySlow => {
                Status::client_timeout("the body of the signed request did not arrive in time")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_error_has_a_status_code_and_its_own_metric_label() {
        let mut names = HashSet::new();
        for error in SignatureError::ALL {
            let status = error.status();
            let expected = match error {
                SignatureError::BeforeStart(_)
                | SignatureError::ReplayCacheFull
                | SignatureError::BodyBudgetExhausted => (503, Some(1)),
                SignatureError::TooLarge => (413, None),
                SignatureError::BodyLost => (400, None),
                SignatureError::BodySlow => (408, None),
                SignatureError::Invalid(_) | SignatureError::OtherCredential => (401, None),
            };
            let actual = (status.code, status.retry_after_seconds);
            assert_eq!(actual, expected, "{error:?}");
            assert!(!status.message.is_empty());
            assert!(names.insert(error.as_str()), "{error:?}");
        }
    }
}

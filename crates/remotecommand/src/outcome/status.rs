//! The Status on the error channel, from version 4 on.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ExitCode, Failure, INTERNAL_PREFIX, Outcome, exit_message};

const SUCCESS: &str = "Success";
const FAILURE: &str = "Failure";
const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// Field for field as kube-apiserver writes it: without kind and version, and without a line
/// feed.
pub(crate) fn encode(outcome: &Outcome) -> Bytes {
    let status = match outcome {
        Outcome::Success | Outcome::Disconnected => StatusDocument {
            status: SUCCESS.to_owned(),
            ..StatusDocument::default()
        },
        Outcome::Exited(code) => StatusDocument {
            status: FAILURE.to_owned(),
            message: exit_message(*code),
            reason: NON_ZERO_EXIT_CODE.to_owned(),
            details: cause(EXIT_CODE, &code.number().to_string()),
            ..StatusDocument::default()
        },
        Outcome::Failed(failure) => StatusDocument {
            status: FAILURE.to_owned(),
            message: failure.message.clone(),
            reason: failure.reason.clone(),
            details: failure
                .message
                .strip_prefix(INTERNAL_PREFIX)
                .and_then(|error| cause("", error)),
            code: failure.code.unwrap_or_default().into(),
            ..StatusDocument::default()
        },
    };
    // Serialising a plain structure with string keys cannot fail.
    serde_json::to_vec(&status).unwrap_or_default().into()
}

/// Decoded as client-go does, except that an incomplete Status, for client-go an unspecified
/// failure, means that the connection was lost.
pub(crate) fn decode(bytes: &[u8]) -> Outcome {
    let status = match serde_json::from_slice::<StatusDocument>(bytes) {
        Ok(status) => status,
        Err(error) if error.is_eof() => return Outcome::Disconnected,
        Err(_) => return invalid_status(&String::from_utf8_lossy(bytes)),
    };
    match (&*status.status, &*status.reason) {
        (SUCCESS, _) => Outcome::Success,
        (FAILURE, NON_ZERO_EXIT_CODE) => {
            let code = status.exit_code().and_then(|code| code.parse().ok());
            match code.and_then(ExitCode::new) {
                Some(code) => Outcome::Exited(code),
                // Exit codes on Windows may be larger: client-go does not accept them either.
                None => invalid_status(&status.message),
            }
        }
        (FAILURE, _) => Outcome::Failed(Failure {
            code: u16::try_from(status.code).ok().filter(|code| *code != 0),
            reason: status.reason,
            message: status.message,
        }),
        _ => invalid_status(&status.message),
    }
}

fn invalid_status(what: &str) -> Outcome {
    Outcome::Failed(Failure::internal(format_args!(
        "the error stream has no valid status: {what}"
    )))
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StatusDocument {
    metadata: Metadata,
    #[serde(skip_serializing_if = "String::is_empty")]
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(skip_serializing_if = "is_zero")]
    code: i32,
}

#[derive(Default, Serialize, Deserialize)]
struct Metadata {}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Cause {
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl StatusDocument {
    fn exit_code(&self) -> Option<&str> {
        let mut causes = self.details.as_ref()?.causes.iter();
        let cause = causes.find(|cause| cause.reason == EXIT_CODE)?;
        Some(&cause.message)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde requires this signature
fn is_zero(code: &i32) -> bool {
    *code == 0
}

#[allow(clippy::unnecessary_wraps)] // matches the type of the field
fn cause(reason: &str, message: &str) -> Option<Details> {
    Some(Details {
        causes: vec![Cause {
            reason: reason.to_owned(),
            message: message.to_owned(),
        }],
    })
}

//! The Status on the error channel, from the fourth version on.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::outcome::{ExitCode, Failure, INTERNAL, Outcome, exit_message};

const SUCCESS: &str = "Success";
const FAILURE: &str = "Failure";
const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// Field for field as kube-apiserver writes it: without kind and version, and
/// without a line feed.
pub(crate) fn encode(outcome: &Outcome) -> Bytes {
    let status = match outcome {
        Outcome::Success | Outcome::Disconnected => Document {
            status: SUCCESS.to_owned(),
            ..Document::default()
        },
        Outcome::Exited(code) => Document {
            status: FAILURE.to_owned(),
            message: exit_message(*code),
            reason: NON_ZERO_EXIT_CODE.to_owned(),
            details: cause(EXIT_CODE, &code.number().to_string()),
            ..Document::default()
        },
        Outcome::Failed(failure) => Document {
            status: FAILURE.to_owned(),
            message: failure.message.clone(),
            reason: failure.reason.clone(),
            details: failure
                .message
                .strip_prefix(INTERNAL)
                .and_then(|error| cause("", error)),
            code: failure.code.unwrap_or_default().into(),
            ..Document::default()
        },
    };
    // A plain structure with string keys does not fail to serialise.
    serde_json::to_vec(&status).unwrap_or_default().into()
}

/// As client-go understands it; but half a Status, which to client-go is some
/// failure or other, was cut off.
pub(crate) fn decode(bytes: &[u8]) -> Outcome {
    let status = match serde_json::from_slice::<Document>(bytes) {
        Ok(status) => status,
        Err(error) if error.is_eof() => return Outcome::Disconnected,
        Err(_) => return unknown(&String::from_utf8_lossy(bytes)),
    };
    match (&*status.status, &*status.reason) {
        (SUCCESS, _) => Outcome::Success,
        (FAILURE, NON_ZERO_EXIT_CODE) => {
            let code = status.exit_code().and_then(|code| code.parse().ok());
            match code.and_then(ExitCode::new) {
                Some(code) => Outcome::Exited(code),
                // Exit codes of Windows may be larger: client-go does not take
                // them either.
                None => unknown(&status.message),
            }
        }
        (FAILURE, _) => Outcome::Failed(Failure {
            code: u16::try_from(status.code).ok().filter(|code| *code != 0),
            reason: status.reason,
            message: status.message,
        }),
        _ => unknown(&status.message),
    }
}

fn unknown(what: &str) -> Outcome {
    Outcome::Failed(Failure::internal(format_args!(
        "the error stream has no valid status: {what}"
    )))
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Document {
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

impl Document {
    fn exit_code(&self) -> Option<&str> {
        let mut causes = self.details.as_ref()?.causes.iter();
        let cause = causes.find(|cause| cause.reason == EXIT_CODE)?;
        Some(&cause.message)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(code: &i32) -> bool {
    *code == 0
}

#[allow(clippy::unnecessary_wraps)] // as it is used
fn cause(reason: &str, message: &str) -> Option<Details> {
    Some(Details {
        causes: vec![Cause {
            reason: reason.to_owned(),
            message: message.to_owned(),
        }],
    })
}

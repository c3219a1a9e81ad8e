//! What can go wrong between a kubeconfig and an answer, and what to do about
//! it. None of it repeats a token, a password or a key.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use skewbridge_api::protobuf::{Field, Fields};

/// Why there is no connection, or no answer. In kubectl's words where people
/// know them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no kubeconfig at all.
    #[error(
        "no configuration has been provided: there is no {searched}, and this is no pod; give \
         --kubeconfig, or set $KUBECONFIG"
    )]
    NoConfiguration {
        /// Where one was looked for.
        searched: String,
    },
    /// A file cannot be used.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// In words, with what to do.
        cause: String,
    },
    /// Something that a kubeconfig names is not in it.
    #[error(
        "{entry} {name:?} does not exist in {files}{}",
        available_suffix(available)
    )]
    Missing {
        /// What it would be.
        entry: Entry,
        /// How it is called.
        name: String,
        /// The files that were read.
        files: String,
        /// What is there instead.
        available: Vec<String>,
    },
    /// No context was asked for, and the kubeconfig has none by default.
    #[error(
        "current-context is not set in {files}; give --context{}",
        available_suffix(available)
    )]
    NoCurrentContext {
        /// The files that were read.
        files: String,
        /// The contexts that are there.
        available: Vec<String>,
    },
    /// An entry of a kubeconfig cannot be used.
    #[error("{entry} {name:?}: {cause}")]
    Invalid {
        /// What it is.
        entry: Entry,
        /// How it is called.
        name: String,
        /// In words, with what to do.
        cause: String,
    },
    /// A credential plugin did not give a credential, or its proxy cannot be used.
    #[error(
        "getting credentials: exec: {command} (user {user:?}): {cause}{}",
        hint_suffix(hint.as_ref())
    )]
    Exec {
        /// The program.
        command: String,
        /// The kubeconfig's user who has it.
        user: String,
        /// In words.
        cause: String,
        /// What the kubeconfig advises.
        hint: Option<String>,
    },
    /// No connection.
    #[error("{}", unreachable_message(server, cause))]
    Unreachable {
        /// Which one: `HOST:PORT`.
        server: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The proxy on the way does not do what it is there for.
    #[error("the proxy {proxy} on the way to {server} {cause}")]
    Proxy {
        /// Which one, without its password.
        proxy: String,
        /// Where to.
        server: String,
        /// In words.
        cause: String,
    },
    /// The server, or we, did not prove to be who is expected.
    #[error("unable to connect to the server {server}: {cause}")]
    Tls {
        /// Which one.
        server: String,
        /// In words, with what to do.
        cause: String,
    },
    /// Nothing came in time.
    #[error(
        "the server {server} did not {what} within {} s; is it reachable from here?",
        after.as_secs_f64()
    )]
    TimedOut {
        /// Which one.
        server: String,
        /// What it did not do.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection ended before the answer did.
    #[error("the server {server} ended the connection before it had answered: {cause}")]
    ConnectionLost {
        /// Which one.
        server: String,
        /// In words.
        cause: String,
    },
    /// The answer is not HTTP/1.1.
    #[error("the server {server} does not answer in HTTP/1.1: {cause}")]
    NotHttp {
        /// Which one.
        server: String,
        /// In words.
        cause: String,
    },
    /// The answer is longer than anything that was asked for.
    #[error("the server {server} answers {path} with more than {limit} bytes")]
    TooLarge {
        /// Which one.
        server: String,
        /// What was asked for.
        path: String,
        /// What would have been read.
        limit: usize,
    },
    /// The server answered, and not with what was asked for.
    #[error("the server {server} refused: {response}")]
    Api {
        /// Which one.
        server: String,
        /// What it said.
        response: Box<ErrorResponse>,
    },
    /// The server switched to another protocol, and not to the one that was asked for.
    #[error("the server {server} switched protocols, but {cause}")]
    UpgradeMismatch {
        /// Which one.
        server: String,
        /// In words.
        cause: String,
    },
    /// A stream was granted neither by WebSocket nor by SPDY.
    #[error("{spdy}; a WebSocket had been refused before: {websocket}")]
    AllTransportsFailed {
        /// Why not by WebSocket, in words.
        websocket: String,
        /// Why not by SPDY.
        spdy: Box<Error>,
    },
    /// The request cannot be written: a path or a header that is none.
    #[error("{0} cannot be sent in a request")]
    InvalidRequest(String),
}

impl Error {
    /// Both ways have failed; what both say alike is told once.
    pub(crate) fn all_transports_failed(websocket: String, spdy: Self) -> Self {
        if spdy.to_string().contains(&websocket) {
            return spdy;
        }
        let spdy = Box::new(spdy);
        Self::AllTransportsFailed { websocket, spdy }
    }
}

/// An answer that is a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The HTTP status code.
    pub code: u16,
    /// Of the Status, for programs; empty if the answer was none.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// How an object begins that is in Protobuf.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

/// Kind, reason and message of a Status in a `runtime.Unknown` (fields by number as in
/// apimachinery's `generated.proto`).
fn status_from_protobuf(unknown: &[u8]) -> Option<(String, String, String)> {
    let field = |message, number| {
        Fields::of(message).find_map(|field| match field {
            Ok(Field::Bytes(found, bytes)) if found == number => Some(bytes),
            _ => None,
        })
    };
    let text = |message, number| {
        let bytes: &[u8] = field(message, number).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let (meta, status) = (field(unknown, 1)?, field(unknown, 2)?);
    Some((text(meta, 2), text(status, 4), text(status, 3)))
}

/// How much of an answer that is no Status is told.
const MAX_MESSAGE_BYTES: usize = 1024;

impl ErrorResponse {
    /// From an answer: a `metav1.Status`, or words.
    pub fn parse(code: u16, body: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct Status {
            kind: String,
            #[serde(default)]
            reason: String,
            #[serde(default)]
            message: String,
        }
        let status = match body.strip_prefix(PROTOBUF_MAGIC) {
            Some(unknown) => status_from_protobuf(unknown).map(|(kind, reason, message)| Status {
                kind,
                reason,
                message,
            }),
            None => serde_json::from_slice(body).ok(),
        };
        match status {
            Some(status) if status.kind == "Status" => Self {
                code,
                reason: status.reason,
                message: status.message,
            },
            _ => {
                let text = String::from_utf8_lossy(body);
                let text = text.trim();
                let end = text.floor_char_boundary(MAX_MESSAGE_BYTES);
                Self {
                    code,
                    reason: String::new(),
                    message: text[..end].to_owned(),
                }
            }
        }
    }

    /// Whether it is the API server that does not know who asks.
    pub fn is_unauthorized(&self) -> bool {
        self.code == 401 && self.reason == "Unauthorized"
    }

    /// Whether the server said so by a Status, and not somebody on the way.
    pub fn is_status(&self) -> bool {
        !self.reason.is_empty()
    }
}

impl fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            reason,
            message,
        } = self;
        match (reason.is_empty(), message.is_empty()) {
            (false, _) => write!(f, "{message} ({reason})"),
            (true, false) => write!(f, "{message} ({code})"),
            (true, true) => {
                let phrase = http::StatusCode::from_u16(*code).ok();
                let phrase = phrase.and_then(|code| code.canonical_reason());
                write!(f, "{code} {}", phrase.unwrap_or("without a word"))
            }
        }
    }
}

/// What a kubeconfig is made of, in kubectl's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A context.
    Context,
    /// A cluster.
    Cluster,
    /// A user.
    User,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Context => "context",
            Self::Cluster => "cluster",
            Self::User => "user",
        })
    }
}

/// How many names are told; a kubeconfig may have hundreds.
const MAX_LISTED_NAMES: usize = 10;

fn available_suffix(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let listed_names: Vec<_> = names
        .iter()
        .take(MAX_LISTED_NAMES)
        .map(String::as_str)
        .collect();
    let more = if names.len() > MAX_LISTED_NAMES {
        ", ..."
    } else {
        ""
    };
    format!("; there is: {}{more}", listed_names.join(", "))
}

fn hint_suffix(hint: Option<&String>) -> String {
    hint.map_or_else(String::new, |hint| format!("\n{}", hint.trim_end()))
}

fn unreachable_message(server: &str, cause: &std::io::Error) -> String {
    match cause.kind() {
        std::io::ErrorKind::ConnectionRefused => format!(
            "the connection to the server {server} was refused - did you specify the right host \
             or port?"
        ),
        _ => format!("unable to connect to the server {server}: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_api::media::Format;
    use skewbridge_api::status::Status;

    use super::*;

    #[test]
    fn a_status_is_read_in_json_and_protobuf_and_nothing_else_is_one() {
        for format in [Format::Json, Format::Protobuf] {
            let response = ErrorResponse::parse(401, &Status::unauthorized().encode(format));
            assert!(response.is_unauthorized(), "{format:?}");
            assert_eq!(response.message, "Unauthorized");
            let other = ErrorResponse::parse(403, &Status::forbidden("no").encode(format));
            assert!(!other.is_unauthorized() && other.is_status(), "{format:?}");
            assert_eq!(other.to_string(), "no (Forbidden)");
        }
        for body in [
            &b"who are you?"[..],
            b"{\"kind\":\"Pod\",\"reason\":\"Unauthorized\"}",
            b"k8s\0",
            b"k8s\0\x0a\xff",
            b"k8s\0\x0a\x03v1\x12",
        ] {
            assert!(!ErrorResponse::parse(401, body).is_status(), "{body:?}");
        }
    }
}

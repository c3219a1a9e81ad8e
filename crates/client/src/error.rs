//! Errors between a kubeconfig and a response, with advice. No error repeats a token, a
//! password or a key.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use skewbridge_k8s_api::protobuf::{Field, Fields};

/// Why there is no connection or no response. Uses kubectl's words where they are well known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No kubeconfig was found.
    #[error(
        "no configuration has been provided: {searched} does not exist, and this is not a pod; give \
         --kubeconfig, or set $KUBECONFIG"
    )]
    NoConfiguration {
        /// The searched paths.
        searched: String,
    },
    /// A file cannot be used.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause, with advice.
        cause: String,
    },
    /// A name that the kubeconfig refers to does not exist in it.
    #[error(
        "{entry} {name:?} does not exist in {files}{}",
        available_suffix(available)
    )]
    Missing {
        /// The kind of entry.
        entry: Entry,
        /// Its name.
        name: String,
        /// The files that were read.
        files: String,
        /// The names that exist.
        available: Vec<String>,
    },
    /// No context was given, and the kubeconfig has no current one.
    #[error(
        "current-context is not set in {files}; give --context{}",
        available_suffix(available)
    )]
    NoCurrentContext {
        /// The files that were read.
        files: String,
        /// The contexts that exist.
        available: Vec<String>,
    },
    /// An entry of a kubeconfig cannot be used.
    #[error("{entry} {name:?}: {cause}")]
    Invalid {
        /// The kind of entry.
        entry: Entry,
        /// Its name.
        name: String,
        /// The cause, with advice.
        cause: String,
    },
    /// A credential plugin failed, or its proxy cannot be used.
    #[error(
        "getting credentials: exec: {command} (user {user:?}): {cause}{}",
        hint_suffix(hint.as_ref())
    )]
    Exec {
        /// The plugin's program.
        command: String,
        /// The kubeconfig user of the plugin.
        user: String,
        /// The cause.
        cause: String,
        /// The kubeconfig's install hint.
        hint: Option<String>,
    },
    /// The server could not be reached.
    #[error("{}", unreachable_message(server, cause))]
    Unreachable {
        /// The server's `HOST:PORT`.
        server: String,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The proxy did not open a tunnel.
    #[error("the proxy {proxy} on the way to {server} {cause}")]
    Proxy {
        /// The proxy, without its password.
        proxy: String,
        /// The destination.
        server: String,
        /// The cause.
        cause: String,
    },
    /// The TLS handshake failed.
    #[error("unable to connect to the server {server}: {cause}")]
    Tls {
        /// The server.
        server: String,
        /// The cause, with advice.
        cause: String,
    },
    /// The server speaks none of the protocols that were offered by ALPN.
    #[error("unable to connect to the server {server}: {cause}")]
    NoCommonProtocol {
        /// The server.
        server: String,
        /// The cause.
        cause: String,
    },
    /// The server did not react in time.
    #[error(
        "the server {server} did not {what} within {} s; is it reachable from here?",
        after.as_secs_f64()
    )]
    TimedOut {
        /// The server.
        server: String,
        /// The expected reaction.
        what: &'static str,
        /// The timeout.
        after: Duration,
    },
    /// The connection ended before the response was complete.
    #[error("the server {server} ended the connection before it had answered: {cause}")]
    ConnectionLost {
        /// The server.
        server: String,
        /// The cause.
        cause: String,
    },
    /// The response is not HTTP/1.1.
    #[error("the server {server} does not answer in HTTP/1.1: {cause}")]
    NotHttp {
        /// The server.
        server: String,
        /// The cause.
        cause: String,
    },
    /// The response is larger than the request's limit.
    #[error("the server {server} answers {path} with more than {limit} bytes")]
    TooLarge {
        /// The server.
        server: String,
        /// The requested path.
        path: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The server answered with an error.
    #[error("the server {server} refused: {response}")]
    Api {
        /// The server.
        server: String,
        /// The error response.
        response: Box<ErrorResponse>,
    },
    /// The server switched to another protocol than the requested one.
    #[error("the server {server} switched protocols, but {cause}")]
    UpgradeMismatch {
        /// The server.
        server: String,
        /// The cause.
        cause: String,
    },
    /// The stream could be opened neither over WebSocket nor over SPDY.
    #[error("{spdy}; a WebSocket had been refused before: {websocket}")]
    AllTransportsFailed {
        /// Why WebSocket failed.
        websocket: String,
        /// Why SPDY failed.
        spdy: Box<Error>,
    },
    /// The request cannot be encoded: its path or a header is invalid.
    #[error("{0} cannot be sent in a request")]
    InvalidRequest(String),
}

impl Error {
    /// Both transports failed. If both causes are the same, it is reported once.
    pub(crate) fn all_transports_failed(websocket: String, spdy: Self) -> Self {
        if spdy.to_string().contains(&websocket) {
            return spdy;
        }
        let spdy = Box::new(spdy);
        Self::AllTransportsFailed { websocket, spdy }
    }
}

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The HTTP status code.
    pub code: u16,
    /// The reason of the Status; empty if the body is not a Status.
    pub reason: String,
    /// The message, for people.
    pub message: String,
}

/// The prefix of objects in Protobuf.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

/// Kind, reason and message of a Status in a `runtime.Unknown` (field numbers as in
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

/// How much of a body that is not a Status is shown.
const MAX_MESSAGE_BYTES: usize = 1024;

impl ErrorResponse {
    /// Parses a response body: a `metav1.Status`, or plain text.
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

    /// Whether the API server rejected the request's credential.
    pub fn is_unauthorized(&self) -> bool {
        self.code == 401 && self.reason == "Unauthorized"
    }

    /// Whether the body is a Status: the response comes from the API server, not from a proxy.
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
                write!(f, "{code} {}", phrase.unwrap_or("without a reason phrase"))
            }
        }
    }
}

/// The kinds of kubeconfig entries, in kubectl's words.
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

/// How many names an error lists; a kubeconfig may have hundreds.
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
    format!("; available: {}{more}", listed_names.join(", "))
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
    use skewbridge_k8s_api::content_negotiation::Format;
    use skewbridge_k8s_api::status::Status;

    use super::*;

    #[test]
    fn a_status_is_parsed_from_json_and_protobuf_only() {
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

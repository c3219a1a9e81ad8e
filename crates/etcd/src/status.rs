//! The status of a gRPC call: a code and a message, in the trailers or, without a body, in the
//! headers.

use std::fmt;

use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode;

/// etcd's message for a lease that it does not have (any more).
const LEASE_NOT_FOUND: &str = "requested lease not found";

/// gRPC's status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(u32);

impl Code {
    /// Success.
    pub const OK: Self = Self(0);
    /// No specific code.
    pub const UNKNOWN: Self = Self(2);
    /// The request is invalid.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// The entity does not exist.
    pub const NOT_FOUND: Self = Self(5);
    /// The caller is not authorized.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// Out of resources, or too many requests.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// The server does not implement the call.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// An internal error of the server.
    pub const INTERNAL: Self = Self(13);
    /// Currently unavailable: another endpoint may succeed.
    pub const UNAVAILABLE: Self = Self(14);
    /// The caller is not authenticated.
    pub const UNAUTHENTICATED: Self = Self(16);

    /// gRPC's names, by number.
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];

    /// The number on the wire.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = usize::try_from(self.0)
            .ok()
            .and_then(|number| Self::NAMES.get(number));
        match name {
            Some(name) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

/// A code with its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The message, decoded, without control characters.
    pub message: String,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl Status {
    /// Whether the lease does not exist.
    pub fn is_lease_not_found(&self) -> bool {
        self.code == Code::NOT_FOUND && self.message.contains(LEASE_NOT_FOUND)
    }

    /// The status in these headers or trailers, if there is one.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?;
        let code = code
            .to_str()
            .ok()
            .and_then(|code| code.parse().ok())
            .map_or(Code::UNKNOWN, Code);
        let message = headers
            .get("grpc-message")
            .map(|message| percent_decode(message.as_bytes()).decode_utf8_lossy())
            .unwrap_or_default();
        Some(Self {
            code,
            message: sanitize_text(&message),
        })
    }

    /// The status of a response that is not from a gRPC server, as gRPC maps it.
    pub(crate) fn from_http_status(status: StatusCode) -> Self {
        let code = match status.as_u16() {
            400 => Code::INTERNAL,
            401 => Code::UNAUTHENTICATED,
            403 => Code::PERMISSION_DENIED,
            404 => Code::UNIMPLEMENTED,
            429 | 502 | 503 | 504 => Code::UNAVAILABLE,
            _ => Code::UNKNOWN,
        };
        Self {
            code,
            message: format!("HTTP status {}", status.as_u16()),
        }
    }
}

/// Foreign text, made safe for a log line.
pub(crate) fn sanitize_text(text: &str) -> String {
    text.chars()
        .map(|char| {
            if char.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                char
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn status(code: &str, message: &str) -> Status {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", HeaderValue::from_str(code).unwrap());
        headers.insert("grpc-message", HeaderValue::from_str(message).unwrap());
        Status::from_headers(&headers).unwrap()
    }

    #[test]
    fn the_message_is_decoded() {
        let status = status("14", "h%C3%A4lt 100%25 %zz%0A");
        assert_eq!(status.code, Code::UNAVAILABLE);
        assert_eq!(status.message, "hält 100% %zz\u{fffd}");
        assert_eq!(status.to_string(), "hält 100% %zz\u{fffd} (UNAVAILABLE)");
    }

    #[test]
    fn a_lost_lease_is_recognised() {
        assert!(status("5", "etcdserver: requested lease not found").is_lease_not_found());
        assert!(!status("5", "etcdserver: member not found").is_lease_not_found());
        assert!(!status("2", "etcdserver: requested lease not found").is_lease_not_found());
    }

    #[test]
    fn an_invalid_code_is_unknown_and_a_missing_status_is_none() {
        assert_eq!(status("x", "").code, Code::UNKNOWN);
        assert_eq!(status("99", "").code.to_string(), "99");
        assert_eq!(Status::from_headers(&HeaderMap::new()), None);
    }

    #[test]
    fn a_gateway_error_means_unavailable() {
        assert_eq!(
            Status::from_http_status(StatusCode::BAD_GATEWAY).code,
            Code::UNAVAILABLE
        );
        assert_eq!(Status::from_http_status(StatusCode::OK).code, Code::UNKNOWN);
    }
}

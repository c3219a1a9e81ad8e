//! The rules by which a request is placed on a server.

/// A rule that decides which server gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The server serves the resource (KEP-4020).
    Serves,
    /// The server is not older than the component that sends the request.
    Version,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 2] = [Self::Serves, Self::Version];

    /// The name in metrics and in the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serves => "serves",
            Self::Version => "version",
        }
    }
}

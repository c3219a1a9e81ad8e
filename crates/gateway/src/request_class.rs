//! Whether a request is short or long-running.

/// How long a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    /// It ends with its response.
    Short,
    /// A watch, a log that is followed, or a stream.
    LongRunning,
}

impl RequestClass {
    pub(crate) fn of(is_long_running: bool) -> Self {
        if is_long_running {
            Self::LongRunning
        } else {
            Self::Short
        }
    }

    /// The metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::LongRunning => "long-running",
        }
    }
}

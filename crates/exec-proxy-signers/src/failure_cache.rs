//! How long failures of commands are cached.

use std::time::Duration;

/// How long the failure of a command is returned to further requests before the command runs
/// again: clients repeat their requests, many at a time.
pub(crate) const FAILURE_CACHE_DURATION: Duration = Duration::from_secs(1);

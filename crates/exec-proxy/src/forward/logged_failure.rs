//! Limits how often the same failure is logged.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long the same failure is not logged again: a client may send many requests a second,
/// and each would fail with it.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The failure that was logged last.
#[derive(Debug, Default)]
pub(super) struct LoggedFailure {
    last: Mutex<Option<(Instant, String)>>,
}

impl LoggedFailure {
    /// Whether to log this failure: it is another one than the last, or the last time is
    /// [`LOG_INTERVAL`] ago.
    pub(super) fn is_new(&self, failure: &impl ToString) -> bool {
        let (now, failure) = (Instant::now(), failure.to_string());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_repeated = last
            .as_ref()
            .is_some_and(|(at, cause)| now < *at + LOG_INTERVAL && *cause == failure);
        if !is_repeated {
            *last = Some((now, failure));
        }
        !is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_logged_once_per_interval() {
        let logged = LoggedFailure::default();
        assert!(logged.is_new(&"a"));
        assert!(!logged.is_new(&"a"));
        assert!(logged.is_new(&"b"));
        tokio::time::advance(LOG_INTERVAL / 2).await;
        assert!(!logged.is_new(&"b"));
        tokio::time::advance(LOG_INTERVAL / 2).await;
        assert!(logged.is_new(&"b"));
    }
}

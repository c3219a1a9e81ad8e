//! Retries with exponential backoff.

use std::time::Duration;

use super::container_exec;
use super::error::{Attempts, Error};
use super::options::{Options, Retries};

/// The delay after the first lost connection; it doubles after each further one.
const INITIAL_DELAY: Duration = Duration::from_millis(100);

/// A restarting server is back within seconds.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Counts attempts, and delays them.
#[derive(Debug)]
pub(super) struct Backoff {
    retries: Retries,
    attempts: u32,
    delay: Duration,
}

impl Backoff {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            retries: options.retries,
            attempts: 0,
            delay: INITIAL_DELAY,
        }
    }

    /// Waits before the next attempt, or returns an error if there is none left.
    pub(super) async fn wait(&mut self, cause: &str, bytes: u64) -> Result<(), Error> {
        self.attempts = self.attempts.saturating_add(1);
        if !self.retries.allow(self.attempts) {
            return Err(Error::Disconnected {
                bytes,
                attempts: Attempts(self.attempts),
                cause: cause.to_owned(),
                retry_available: self.retries == Retries::AtMost(0),
            });
        }
        tokio::time::sleep(self.delay).await;
        self.delay = (self.delay * 2).min(MAX_DELAY);
        Ok(())
    }

    /// For a server that could not be reached: the cause, if it is transient.
    pub(super) fn transient_cause(&self, error: Error) -> Result<String, Error> {
        match error {
            Error::Client(error)
                if container_exec::is_transient(&error) && self.retries.allow(1) =>
            {
                Ok(error.to_string())
            }
            error => Err(error),
        }
    }
}

//! When to try again, and how long to wait before.

use std::time::Duration;

use super::container;
use super::error::{Error, Tries};
use super::options::{Options, Retries};

/// After a first broken connection; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A server that restarts is back within seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Counts tries.
#[derive(Debug)]
pub(super) struct Patience {
    retries: Retries,
    tries: u32,
    pause: Duration,
}

impl Patience {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            retries: options.retries,
            tries: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Waits before another try, or says that there is none.
    pub(super) async fn again(&mut self, cause: &str, bytes: u64) -> Result<(), Error> {
        self.tries = self.tries.saturating_add(1);
        if !self.retries.allow(self.tries) {
            return Err(Error::Cut {
                bytes,
                tries: Tries(self.tries),
                cause: cause.to_owned(),
                could_retry: self.retries == Retries::AtMost(0),
            });
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// For a server that could not be reached: the cause, if that may pass.
    pub(super) fn cause(&self, error: Error) -> Result<String, Error> {
        match error {
            Error::Client(error) if container::may_pass(&error) && self.retries.allow(1) => {
                Ok(error.to_string())
            }
            error => Err(error),
        }
    }
}

//! Cancellation of copies.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::error::Error;

/// Cancels copies whose [`super::Options`] contain it: incomplete files are removed, in the
/// container too, and the copy ends with [`Error::Cancelled`]. Dropping a copy's future removes
/// only local files.
#[derive(Debug, Clone, Default)]
pub struct CancellationToken {
    sender: Arc<watch::Sender<bool>>,
}

impl CancellationToken {
    /// Cancels, permanently.
    pub fn cancel(&self) {
        self.sender.send_replace(true);
    }

    /// Waits until it is cancelled.
    pub async fn cancelled(&self) {
        let mut sender = self.sender.subscribe();
        // The channel cannot close: we hold its sender.
        let _ = sender.wait_for(|sender| *sender).await;
    }

    /// Whether it is cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        *self.sender.borrow()
    }

    /// Runs a copy; after cancellation it gets a grace period to end by itself, and is dropped
    /// then.
    pub(super) async fn run_with_grace<T>(
        &self,
        copy: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::pin!(copy);
        tokio::select! {
            result = &mut copy => return result,
            () = self.cancelled() => {}
        }
        match timeout(CANCEL_GRACE, copy).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) | Err(_) => Err(Error::Cancelled),
        }
    }

    /// Runs a copy until it ends or is cancelled.
    pub(super) async fn run_until_cancelled<T>(
        &self,
        copy: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            result = copy => result,
            () = self.cancelled() => Err(Error::Cancelled),
        }
    }
}

/// The grace period of a cancelled copy. If the copy ends by itself, the program in the
/// container has ended too, and creates no files behind the clean-up.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancelling_ends_running_and_later_copies() {
        let stop = CancellationToken::default();
        assert!(stop.run_until_cancelled(async { Ok(()) }).await.is_ok());
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move {
                stop.run_until_cancelled(std::future::pending::<Result<(), Error>>())
                    .await
            }
        });
        stop.cancel();
        assert!(matches!(waiting.await.unwrap(), Err(Error::Cancelled)));
        let later = stop
            .run_until_cancelled(std::future::pending::<Result<(), Error>>())
            .await;
        assert!(matches!(later, Err(Error::Cancelled)));
    }
}

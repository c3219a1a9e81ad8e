//! A word that ends copies in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::container::Container;
use super::error::Error;
use super::upload_plan::UploadPlan;

/// How long a container is asked to remove what is not whole. Whoever stops a copy is in
/// a hurry, and the connection may be what is broken.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends copies whose [`super::Options`] have it: what is not whole is removed, in the
/// container too, and they end with [`Error::Cancelled`]. A copy that is dropped removes only
/// what is here.
#[derive(Debug, Clone, Default)]
pub struct CancellationToken {
    sender: Arc<watch::Sender<bool>>,
}

impl CancellationToken {
    /// Says so, for ever.
    pub fn cancel(&self) {
        self.sender.send_replace(true);
    }

    /// Waits until it is said.
    pub async fn cancelled(&self) {
        let mut sender = self.sender.subscribe();
        // An error is that nobody can say it any more; but we hold who can.
        let _ = sender.wait_for(|sender| *sender).await;
    }

    /// Whether it has been said.
    pub(super) fn is_cancelled(&self) -> bool {
        *self.sender.borrow()
    }

    /// Carries to its end what ends soon by itself when it is said, or is left then.
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

    /// Carries something to its end, or until it is said.
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

/// How long a copy that has been told may take to end by itself: then the program there
/// has ended too, and makes nothing any more behind the back of who removes it.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// Removes what nobody needs any more from a container, as far as that can be done.
pub(super) async fn clean_up(container: &dyn Container, plan: &UploadPlan) {
    let _ = timeout(CLEAN_UP_TIMEOUT, plan.clean_up(container)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_what_waits_and_what_comes_later() {
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

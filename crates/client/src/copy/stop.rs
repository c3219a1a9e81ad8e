//! A word that ends copies in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::container::Container;
use super::error::Error;
use super::way::Way;

/// How long a container is asked to remove what is not whole. Whoever stops a copy is in
/// a hurry, and the connection may be what is broken.
const TIDYING: Duration = Duration::from_secs(5);

/// Ends copies whose [`super::Options`] have it: what is not whole is removed, in the
/// container too, and they end with [`Error::Stopped`]. A copy that is dropped removes only
/// what is here.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    said: Arc<watch::Sender<bool>>,
}

impl Stop {
    /// Says so, for ever.
    pub fn now(&self) {
        self.said.send_replace(true);
    }

    /// Waits until it is said.
    pub async fn told(&self) {
        let mut said = self.said.subscribe();
        // An error is that nobody can say it any more; but we hold who can.
        let _ = said.wait_for(|said| *said).await;
    }

    /// Whether it has been said.
    pub(super) fn is_told(&self) -> bool {
        *self.said.borrow()
    }

    /// Carries to its end what ends soon by itself when it is said, or is left then.
    pub(super) async fn or_soon<T>(
        &self,
        copying: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::pin!(copying);
        tokio::select! {
            ended = &mut copying => return ended,
            () = self.told() => {}
        }
        match timeout(GRACE, copying).await {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(_)) | Err(_) => Err(Error::Stopped),
        }
    }

    /// Carries something to its end, or until it is said.
    pub(super) async fn or<T>(
        &self,
        copying: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            ended = copying => ended,
            () = self.told() => Err(Error::Stopped),
        }
    }
}

/// How long a copy that has been told may take to end by itself: then the program there
/// has ended too, and makes nothing any more behind the back of who removes it.
const GRACE: Duration = Duration::from_secs(3);

/// Removes what nobody needs any more from a container, as far as that can be done.
pub(super) async fn tidy(container: &dyn Container, way: &Way) {
    let _ = timeout(TIDYING, way.clean_up(container)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_what_waits_and_what_comes_later() {
        let stop = Stop::default();
        assert!(stop.or(async { Ok(()) }).await.is_ok());
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.or(std::future::pending::<Result<(), Error>>()).await }
        });
        stop.now();
        assert!(matches!(waiting.await.unwrap(), Err(Error::Stopped)));
        let later = stop.or(std::future::pending::<Result<(), Error>>()).await;
        assert!(matches!(later, Err(Error::Stopped)));
    }
}

//! The departure of the bridge: it is announced to peers, and what the bridge has published is
//! withdrawn.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::PeerController;

/// The timeout for announcing the departure and for clearing the registry and the Lease.
const DEPARTURE_TIMEOUT: Duration = Duration::from_secs(4);

/// The interval at which a draining bridge checks whether its server has ended.
const ENDED_SERVER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl PeerController {
    /// Announces the departure of the bridge, withdraws what it has published, and notifies
    /// `departed`. Then, while the bridge drains, deletes the Lease of its server if the server
    /// ends.
    pub(super) async fn depart(
        &mut self,
        withdraw: impl Future<Output = ()>,
        departed: oneshot::Sender<()>,
    ) {
        if self.fixed_peers.is_some() {
            // Nothing is published.
            let _ = departed.send(());
            return;
        }
        let withdrawal = async {
            // First, so that peers know of the departure before the address is withdrawn.
            self.records.announce_departure().await;
            let lease = self.own_lease.release(self.records.annotation());
            tokio::join!(withdraw, lease);
        };
        if timeout(DEPARTURE_TIMEOUT, withdrawal).await.is_err() {
            tracing::warn!(
                "the departure of this bridge was not announced in time; its published address expires by itself"
            );
        }
        let peers = self.peer_table.snapshot();
        let removal = self.own_lease.remove_if_server_ended(&peers);
        let removal = timeout(DEPARTURE_TIMEOUT, removal);
        let mut is_removed = removal.await.unwrap_or(false);
        let _ = departed.send(());
        while !is_removed {
            sleep(ENDED_SERVER_CHECK_INTERVAL).await;
            is_removed = self.own_lease.remove_if_server_ended(&peers).await;
        }
    }
}

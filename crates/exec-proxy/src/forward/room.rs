//! Room for bodies that are held in memory, bounded for all of them together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// All bodies together: 16 of the longest that are held as a rule.
pub(super) const MAX_HELD: usize = 64 * 1024 * 1024;

/// How long a request waits for room: others are read and sent in far less.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that may be held.
pub(super) struct Room {
    free: Arc<Semaphore>,
    all: usize,
}

/// Some of the room, given back when it is dropped.
pub(super) struct Place(OwnedSemaphorePermit);

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let all = bytes.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// Room for so much, if it is free now.
    pub(super) fn take_now(&self, bytes: usize) -> Option<Place> {
        let bytes = self.wanted(bytes);
        self.free
            .clone()
            .try_acquire_many_owned(bytes)
            .ok()
            .map(Place)
    }

    /// Room for so much, all of it at once, or two that have half of what they need would
    /// wait for each other. None if it does not become free in time.
    pub(super) async fn take(&self, bytes: usize) -> Option<Place> {
        let free = self.free.clone().acquire_many_owned(self.wanted(bytes));
        match timeout(PATIENCE, free).await {
            Ok(Ok(permit)) => Some(Place(permit)),
            // It is never closed.
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Whoever needs more than all of it has all of it.
    fn wanted(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.all)).unwrap_or(u32::MAX)
    }
}

impl Place {
    /// Holds these bytes here until the last who shares them has let go.
    pub(super) fn hold(mut self, bytes: Bytes) -> Bytes {
        // What was not needed after all is free again.
        let rest = self.0.num_permits().saturating_sub(bytes.len());
        drop(self.0.split(rest));
        Bytes::from_owner(Held {
            bytes,
            _place: self,
        })
    }
}

struct Held {
    bytes: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn room_is_taken_until_the_last_lets_go_and_waited_for_for_a_while() {
        let room = Room::new(10);
        let place = room.take_now(8).unwrap();
        let bytes = place.hold(Bytes::from_static(b"12345"));
        let shared = bytes.clone();
        drop(bytes);
        assert!(room.take_now(6).is_none());
        assert!(room.take(6).await.is_none(), "in vain");
        let waiting = room.take(6);
        drop(shared);
        assert!(waiting.await.is_some());
        assert!(room.take(100).await.is_some(), "all of it is enough");
        assert_eq!(room.free.available_permits(), 10);
    }
}

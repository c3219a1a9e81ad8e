//! Memory for bodies that signers need as a whole, bounded for all of them together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Total of all buffered bodies: 16 bodies of the default maximum size.
pub(super) const MAX_BUDGET_BYTES: usize = 64 * 1024 * 1024;

/// How long a request waits for memory. Other requests release theirs much sooner.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// How many bytes may be held.
pub(super) struct BodyBudget {
    available: Arc<Semaphore>,
    total: usize,
}

/// A part of the budget, returned when it is dropped.
pub(super) struct BudgetPermit(OwnedSemaphorePermit);

impl BodyBudget {
    pub(super) fn new(bytes: usize) -> Self {
        let total = bytes.min(Semaphore::MAX_PERMITS);
        Self {
            available: Arc::new(Semaphore::new(total)),
            total,
        }
    }

    /// This many bytes, if they are free now.
    #[cfg(test)]
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<BudgetPermit> {
        let bytes = self.clamp_to_budget(bytes);
        self.available
            .clone()
            .try_acquire_many_owned(bytes)
            .ok()
            .map(BudgetPermit)
    }

    /// This many bytes, all at once: two requests that each have half of what they need would wait
    /// for each other. `None` if they do not become free in time.
    pub(super) async fn acquire(&self, bytes: usize) -> Option<BudgetPermit> {
        let available = self
            .available
            .clone()
            .acquire_many_owned(self.clamp_to_budget(bytes));
        match timeout(ACQUIRE_TIMEOUT, available).await {
            Ok(Ok(permit)) => Some(BudgetPermit(permit)),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// A request that needs more than the whole budget gets the whole budget.
    fn clamp_to_budget(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.total)).unwrap_or(u32::MAX)
    }
}

impl BudgetPermit {
    /// Keeps the permit until the last clone of these bytes is dropped.
    pub(super) fn hold(mut self, bytes: Bytes) -> Bytes {
        // Returns the unused part.
        let rest = self.0.num_permits().saturating_sub(bytes.len());
        drop(self.0.split(rest));
        Bytes::from_owner(HeldBytes {
            bytes,
            _permit: self,
        })
    }
}

struct HeldBytes {
    bytes: Bytes,
    _permit: BudgetPermit,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_held_until_the_last_clone_is_dropped_and_acquiring_times_out() {
        let budget = BodyBudget::new(10);
        let permit = budget.try_acquire(8).unwrap();
        let bytes = permit.hold(Bytes::from_static(b"12345"));
        let shared = bytes.clone();
        drop(bytes);
        assert!(budget.try_acquire(6).is_none());
        assert!(budget.acquire(6).await.is_none(), "acquiring times out");
        let waiting = budget.acquire(6);
        drop(shared);
        assert!(waiting.await.is_some());
        assert!(
            budget.acquire(100).await.is_some(),
            "a request above the budget gets the whole budget"
        );
        assert_eq!(budget.available.available_permits(), 10);
    }
}

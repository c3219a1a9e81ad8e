//! The progress of a copy: updated by the copy, read by its display.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counters that only grow during a copy, except that a restart resets bytes and entries.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    entries: AtomicU64,
    total: AtomicU64,
    retries: AtomicU64,
    name: Mutex<String>,
}

impl Progress {
    /// Bytes of content written or sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Files, directories and links that have been started.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// The total number of bytes, if it is known.
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }

    /// Sets the total number of bytes.
    pub fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// How often a lost connection was replaced.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// The name of the current file.
    pub fn name(&self) -> String {
        let name = self.name.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone()
    }

    pub(super) fn begin_entry(&self, name: &[u8]) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let mut current = self.name.lock().unwrap_or_else(PoisonError::into_inner);
        current.clear();
        current.push_str(&String::from_utf8_lossy(name));
    }

    pub(super) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a retry.
    pub(super) fn add_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Resets bytes and entries.
    pub(super) fn restart(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.entries.store(0, Ordering::Relaxed);
    }
}

//! How far a copy is: counted by who copies, read by who shows it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Numbers that only grow while something is copied (a retry that has to begin again
/// sets bytes and entries back).
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    entries: AtomicU64,
    total: AtomicU64,
    retries: AtomicU64,
    name: Mutex<String>,
}

impl Progress {
    /// Contents that have been written, or sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Files, directories and links that have been begun.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// How many bytes it will be, where that is known.
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }

    /// Says how many bytes it will be.
    pub fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// How often a broken connection was replaced.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// What is being copied.
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

    /// Another try, which goes on.
    pub(super) fn add_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// From here on everything is counted anew.
    pub(super) fn restart(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.entries.store(0, Ordering::Relaxed);
    }
}

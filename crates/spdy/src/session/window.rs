//! Windows: how much may be sent, and what is pending_credit for what was received.

/// What a window begins with unless it is said otherwise (SPDY/3.1, 2.6.8).
pub(super) const DEFAULT_WINDOW: u32 = 64 * 1024;

/// The largest window.
pub(super) const MAX_WINDOW: u32 = 0x7fff_ffff;

/// A window would get larger than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overflow;

/// How much may be sent. What is sent is counted even where windows do not count
/// yet, so it can be below zero when they begin to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SendWindow(i64);

impl SendWindow {
    pub(super) fn new(size: u32) -> Self {
        Self(i64::from(size))
    }

    pub(super) fn available(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(super) fn spend(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub_unsigned(bytes as u64);
    }

    pub(super) fn widen(&mut self, delta: u32) -> Result<(), Overflow> {
        self.shift(i64::from(delta))
    }

    /// Another initial size moves windows that are in use, too, below zero even.
    pub(super) fn shift(&mut self, delta: i64) -> Result<(), Overflow> {
        let window = self.0.saturating_add(delta);
        if window > i64::from(MAX_WINDOW) {
            return Err(Overflow);
        }
        self.0 = window;
        Ok(())
    }
}

/// What was received and not yet granted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PendingCredit(u64);

impl PendingCredit {
    pub(super) fn add(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes as u64);
    }

    /// What to send_window_update now: all of it, when it has become `threshold`.
    pub(super) fn take(&mut self, threshold: u32) -> Option<u32> {
        if self.0 == 0 || self.0 < u64::from(threshold) {
            return None;
        }
        let delta = u32::try_from(self.0)
            .map_or(MAX_WINDOW, |pending_credit| pending_credit.min(MAX_WINDOW));
        self.0 -= u64::from(delta);
        Some(delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_goes_below_zero_and_never_beyond_its_bound() {
        let mut window = SendWindow::new(10);
        window.spend(30);
        assert_eq!(window.available(), 0);
        assert_eq!(window.widen(25), Ok(()));
        assert_eq!(window.available(), 5);
        assert_eq!(window.widen(MAX_WINDOW), Err(Overflow));
        assert_eq!(window.available(), 5);
        assert_eq!(window.shift(-10), Ok(()));
        assert_eq!(window.available(), 0);
    }

    #[test]
    fn what_is_owed_is_granted_once_it_is_worth_a_frame() {
        let mut pending_credit = PendingCredit::default();
        assert_eq!(pending_credit.take(0), None);
        pending_credit.add(9);
        assert_eq!(pending_credit.take(10), None);
        pending_credit.add(3);
        assert_eq!(pending_credit.take(10), Some(12));
        assert_eq!(pending_credit.take(0), None);
        pending_credit.add(1 << 32);
        assert_eq!(pending_credit.take(10), Some(MAX_WINDOW));
    }
}

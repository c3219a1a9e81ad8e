//! Flow control windows: how much may be sent, and the credit that is pending for received
//! data.

/// The initial window unless SETTINGS changes it (SPDY/3.1, 2.6.8).
pub(super) const DEFAULT_WINDOW_BYTES: u32 = 64 * 1024;

/// The largest window.
pub(super) const MAX_WINDOW_BYTES: u32 = 0x7fff_ffff;

/// A window would exceed its maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overflow;

/// How much may be sent. Sent data is counted even before flow control is active, so the
/// window can be negative when it starts.
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

    pub(super) fn grow(&mut self, delta: u32) -> Result<(), Overflow> {
        self.shift(i64::from(delta))
    }

    /// A new initial size also changes windows in use, possibly below zero.
    pub(super) fn shift(&mut self, delta: i64) -> Result<(), Overflow> {
        let window = self.0.saturating_add(delta);
        if window > i64::from(MAX_WINDOW_BYTES) {
            return Err(Overflow);
        }
        self.0 = window;
        Ok(())
    }
}

/// Data that was received and for which no credit was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PendingCredit(u64);

impl PendingCredit {
    pub(super) fn add(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes as u64);
    }

    /// The credit to send now: all of it, if it is at least `threshold`.
    pub(super) fn take(&mut self, threshold: u32) -> Option<u32> {
        if self.0 == 0 || self.0 < u64::from(threshold) {
            return None;
        }
        let delta =
            u32::try_from(self.0).map_or(MAX_WINDOW_BYTES, |credit| credit.min(MAX_WINDOW_BYTES));
        self.0 -= u64::from(delta);
        Some(delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_be_negative_and_never_exceeds_its_maximum() {
        let mut window = SendWindow::new(10);
        window.spend(30);
        assert_eq!(window.available(), 0);
        assert_eq!(window.grow(25), Ok(()));
        assert_eq!(window.available(), 5);
        assert_eq!(window.grow(MAX_WINDOW_BYTES), Err(Overflow));
        assert_eq!(window.available(), 5);
        assert_eq!(window.shift(-10), Ok(()));
        assert_eq!(window.available(), 0);
    }

    #[test]
    fn credit_is_taken_once_it_reaches_the_threshold() {
        let mut credit = PendingCredit::default();
        assert_eq!(credit.take(0), None);
        credit.add(9);
        assert_eq!(credit.take(10), None);
        credit.add(3);
        assert_eq!(credit.take(10), Some(12));
        assert_eq!(credit.take(0), None);
        credit.add(1 << 32);
        assert_eq!(credit.take(10), Some(MAX_WINDOW_BYTES));
    }
}

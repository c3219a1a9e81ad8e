//! A rate limit for log lines that clients cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WINDOW_DURATION: Duration = Duration::from_mins(1);

/// Limits the number of lines per minute.
#[derive(Debug)]
pub(crate) struct LogBudget {
    lines_per_minute: u32,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    begun: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LogBudget {
    pub(crate) const fn new(lines_per_minute: u32) -> Self {
        Self {
            lines_per_minute,
            window: Mutex::new(Window {
                begun: None,
                written: 0,
                suppressed: 0,
            }),
        }
    }

    /// `None` if no line may be written now, else the number of lines that were suppressed since
    /// the last one.
    pub(crate) fn take(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |begun| now.saturating_duration_since(begun) >= WINDOW_DURATION;
        if window.begun.is_none_or(is_over) {
            window.begun = Some(now);
            window.written = 0;
        }
        if window.written == self.lines_per_minute {
            window.suppressed += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_minute_are_bounded_and_suppressed_lines_are_counted() {
        let budget = LogBudget::new(2);
        let start = Instant::now();
        let rows = [
            (0, Some(0)),
            (1, Some(0)),
            (2, None),
            (59, None),
            (60, Some(2)),
            (61, Some(0)),
            (62, None),
            (1000, Some(1)),
        ];
        for (seconds, expected) in rows {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(budget.take(now), expected, "{seconds}");
        }
    }
}

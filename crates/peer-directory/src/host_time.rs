//! Time since the host was booted: a clock that outlives the process, that setting the wall clock
//! does not change, and that does not depend on other hosts.

use std::time::{Duration, Instant};

/// A time since a boot of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTime {
    /// The kernel's boot ID.
    pub boot: String,
    /// Milliseconds since the boot. Negative after an age is subtracted that exceeds the uptime.
    pub millis: i64,
}

impl HostTime {
    /// The time since `earlier`, or `None` if the host was booted in between.
    pub fn since(&self, earlier: &Self) -> Option<Duration> {
        let millis = self.millis.saturating_sub(earlier.millis);
        let elapsed = Duration::from_millis(u64::try_from(millis).unwrap_or_default());
        (self.boot == earlier.boot).then_some(elapsed)
    }

    /// The time `age` before this one.
    #[must_use]
    pub fn before(&self, age: Duration) -> Self {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        Self {
            boot: self.boot.clone(),
            millis: self.millis.saturating_sub(age),
        }
    }
}

/// A reading of the host clock.
#[derive(Debug, Clone)]
pub struct HostClock {
    /// When the clock was read.
    pub at: Instant,
    /// The reading.
    pub time: HostTime,
}

impl HostClock {
    /// The reading at another instant.
    pub fn time_at(&self, at: Instant) -> HostTime {
        let later = at.saturating_duration_since(self.at);
        let later = i64::try_from(later.as_millis()).unwrap_or(i64::MAX);
        let mut time = (self.time).before(self.at.saturating_duration_since(at));
        time.millis = time.millis.saturating_add(later);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(boot: &str, millis: i64) -> HostTime {
        HostTime {
            boot: boot.to_owned(),
            millis,
        }
    }

    #[test]
    fn an_age_is_known_within_one_boot() {
        let second = Duration::from_secs(1);
        let table = [
            (time("a", 5_000), time("a", 4_000), Some(second)),
            (time("a", 500), time("a", -500), Some(second)),
            (time("a", 4_000), time("a", 5_000), Some(Duration::ZERO)),
            (time("b", 5_000), time("a", 4_000), None),
        ];
        for (now, earlier, expected) in table {
            assert_eq!(now.since(&earlier), expected, "{now:?} {earlier:?}");
        }
        let at = Instant::now();
        let clock = HostClock {
            at: at + second,
            time: time("a", 500),
        };
        assert_eq!(clock.time_at(at), time("a", -500));
        assert_eq!(clock.time_at(at + 2 * second), time("a", 1_500));
    }
}

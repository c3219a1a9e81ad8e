//! Whether the bridge returns memory after a load.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use tokio::time::sleep;

use crate::process_usage;
use crate::ratio::Goal;

/// Resident memory after the load, over that of the idle bridge.
const GOAL: Goal = Goal::AtMost(1.2);

/// Within this time.
const RETURN_TIME: Duration = Duration::from_mins(1);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Resident memory of the bridge, in KiB.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct MemoryAfterLoad {
    idle_kib: u32,
    loaded_kib: u32,
    after_kib: u32,
    /// From the end of the load until `after_kib` was measured.
    after_seconds: f64,
    ratio: f64,
    met: bool,
}

impl MemoryAfterLoad {
    pub(super) fn of(idle_kib: u32, loaded_kib: u32, after_kib: u32, after_seconds: f64) -> Self {
        let ratio = f64::from(after_kib) / f64::from(idle_kib);
        Self {
            idle_kib,
            loaded_kib,
            after_kib,
            after_seconds,
            ratio,
            met: GOAL.is_met_by(ratio),
        }
    }

    /// Waits until the goal is met, or its time has passed.
    pub(super) async fn wait(pid: u32, idle_kib: u32, loaded_kib: u32) -> Result<Self> {
        let start = Instant::now();
        loop {
            let after = process_usage::memory(pid)?.rss_kib;
            let elapsed = start.elapsed();
            let memory = Self::of(idle_kib, loaded_kib, after, elapsed.as_secs_f64());
            if memory.met || elapsed > RETURN_TIME {
                return Ok(memory);
            }
            sleep(SAMPLE_INTERVAL).await;
        }
    }
}

impl fmt::Display for MemoryAfterLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |kib: u32| f64::from(kib) / 1024.0;
        let [goal, met] = GOAL.cells(2, self.met);
        writeln!(
            f,
            "  RSS of the bridge: {:.1} MiB idle, {:.1} MiB with the burst open,\n\
             \x20 {:.1} MiB {:.0} s after the load: {:.2}, {goal}, {met}",
            mib(self.idle_kib),
            mib(self.loaded_kib),
            mib(self.after_kib),
            self.after_seconds,
            self.ratio,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_with_the_idle_bridge() {
        let returned = MemoryAfterLoad::of(20 << 10, 200 << 10, 23 << 10, 7.4);
        let kept = MemoryAfterLoad::of(20 << 10, 200 << 10, 90 << 10, 60.2);
        assert!(returned.met && !kept.met);
        let text = returned.to_string();
        assert!(
            text.contains("23.0 MiB 7 s after the load: 1.15, at most 1.20, met"),
            "{text}"
        );
    }
}

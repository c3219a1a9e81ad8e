//! The clock of the host, which continues between two processes: the id of the boot, and the time
//! since it. Linux has both in `/proc`.

use std::fs;
use std::time::Instant;

use skewbridge_peer_directory::{HostClock, HostTime};

const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
const UPTIME_PATH: &str = "/proc/uptime";

/// The boot id of the host; `None` without `/proc`.
#[derive(Debug)]
pub(super) struct HostBoot(Option<String>);

impl HostBoot {
    pub(super) fn read() -> Self {
        let boot = fs::read_to_string(BOOT_ID_PATH).ok();
        let boot = boot.map(|it| it.trim().to_owned());
        Self(boot.filter(|it| !it.is_empty()))
    }

    /// Logs that a stored departure does not count in this process.
    pub(super) fn warn_if_unreadable(&self) {
        if self.clock().is_none() {
            tracing::warn!(
                flag = "--state-dir",
                "{BOOT_ID_PATH} or {UPTIME_PATH} cannot be read: each start of the bridge waits again for servers whose bridges have departed; do not hide these files from the service (systemd: ProcSubset=all)"
            );
        }
    }

    /// The current time.
    pub(super) fn clock(&self) -> Option<HostClock> {
        let boot = self.0.clone()?;
        let millis = millis(&fs::read_to_string(UPTIME_PATH).ok()?)?;
        Some(HostClock {
            at: Instant::now(),
            time: HostTime { boot, millis },
        })
    }
}

/// Parses `/proc/uptime` (uptime and idle time in seconds with two decimals) into milliseconds of
/// uptime.
fn millis(uptime: &str) -> Option<i64> {
    let (seconds, rest) = uptime.split_once('.')?;
    let (hundredths, _) = rest.split_at_checked(2)?;
    let seconds: i64 = seconds.parse().ok()?;
    let hundredths: i64 = hundredths.parse().ok()?;
    Some(seconds.checked_mul(1000)? + hundredths * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uptime_is_parsed() {
        assert_eq!(millis("2931.96 5012.33\n"), Some(2_931_960));
        assert_eq!(millis("0.05 0.00\n"), Some(50));
        for text in ["", "1", "1.", "1.x0 2", "x.00 2"] {
            assert_eq!(millis(text), None, "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_clock_of_this_host_advances() {
        let host = HostBoot::read();
        let first = host.clock().unwrap().time;
        let next = HostBoot::read().clock().unwrap().time;
        assert!(next.since(&first).is_some(), "{first:?} {next:?}");
        assert!(next.millis >= first.millis);
    }
}

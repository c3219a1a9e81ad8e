//! Whether the clocks of this machine and of servers agree.

use std::time::{Duration, SystemTime};

use crate::check::finding::{Finding, Remedy, Section};
use crate::check::http::ClockReading;

/// A larger difference is a failure. Signatures are accepted up to it: it is the default of
/// `--http-signature-clock-skew`.
const MAX_DIFFERENCE: Duration = Duration::from_secs(30);

/// From this difference on there is a warning: one of the clocks is not synchronized.
const SYNCHRONIZED: Duration = Duration::from_secs(3);

/// The clock of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerClock {
    pub(crate) server: String,
    pub(crate) reading: ClockReading,
}

/// One finding for each server.
pub(crate) fn judge(clocks: &[ServerClock]) -> Vec<Finding> {
    clocks.iter().map(of_server).collect()
}

fn of_server(clock: &ServerClock) -> Finding {
    const SECTION: Section = Section::Clocks;
    let name = format!("the clocks of this machine and of {} agree", clock.server);
    let local_time = clock
        .reading
        .local_time
        .duration_since(SystemTime::UNIX_EPOCH);
    let local_time = local_time.unwrap_or_default();
    let server_time = Duration::from_secs(clock.reading.server_time);
    // A `Date` is cut to its second, and was written at any time of the round trip.
    let tolerance = clock.reading.round_trip / 2;
    let (difference, direction) = if local_time > server_time {
        let cut = Duration::from_secs(1);
        (
            local_time.saturating_sub(server_time + cut + tolerance),
            "behind",
        )
    } else {
        (
            server_time.saturating_sub(local_time + tolerance),
            "ahead of",
        )
    };
    if difference < SYNCHRONIZED {
        return Finding::ok(SECTION, name);
    }
    let message = format!(
        "{} is {} s {direction} this machine: certificates, tokens, signatures and Leases expire at other \
         times",
        clock.server,
        difference.as_secs(),
    );
    let remedy = Remedy::command(
        "timedatectl set-ntp true",
        "synchronize the clocks of both machines with NTP; `timedatectl timesync-status` shows \
         the state",
    );
    if difference > MAX_DIFFERENCE {
        Finding::failure(SECTION, name, message, remedy)
    } else {
        Finding::warning(SECTION, name, message, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Outcome;

    #[test]
    fn differences_count_beyond_the_precision_of_a_date() {
        // Their second, our milliseconds, round trip in milliseconds.
        let rows = [
            (1_000, 1_000_999, 0, Outcome::Ok),
            (1_000, 1_003_900, 0, Outcome::Ok),
            (1_000, 1_004_100, 0, Outcome::Warning),
            (1_000, 1_004_100, 1_000, Outcome::Ok),
            (1_004, 1_000_000, 0, Outcome::Warning),
            (1_030, 1_000_000, 0, Outcome::Warning),
            (1_031, 1_000_000, 0, Outcome::Failure),
            (1_000, 1_031_500, 0, Outcome::Failure),
        ];
        for (server_time, local_time, round_trip, expected) in rows {
            let clock = ServerClock {
                server: "10.0.0.1:6443".to_owned(),
                reading: ClockReading {
                    server_time,
                    local_time: SystemTime::UNIX_EPOCH + Duration::from_millis(local_time),
                    round_trip: Duration::from_millis(round_trip),
                },
            };
            let finding = of_server(&clock);
            assert_eq!(
                finding.outcome, expected,
                "{server_time} {local_time} {finding:?}"
            );
            assert_eq!(finding.remedy.is_some(), expected != Outcome::Ok);
        }
    }
}

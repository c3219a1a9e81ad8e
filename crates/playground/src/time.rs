//! Times as `metav1.Time` writes them: RFC 3339 in UTC, to the second.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time in seconds, in the years 0 to 9999. The caller supplies the current time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Since 1970.
    seconds: i64,
}

const SECONDS_PER_DAY: i64 = 86_400;

impl Time {
    /// Seconds since 1970.
    pub fn from_unix(seconds: i64) -> Self {
        Self {
            seconds: seconds.clamp(-62_167_219_200, 253_402_300_799),
        }
    }

    /// Parses RFC 3339 in any zone. Fractions are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let (date_time, rest) = text.split_at_checked("2006-01-02T15:04:05".len())?;
        let bytes = date_time.as_bytes();
        for (at, separator) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')] {
            if bytes[at] != separator {
                return None;
            }
        }
        let number = |from: usize, to: usize| digits(date_time.get(from..to)?);
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let in_range = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        let zone = rest.trim_start_matches(|it: char| it == '.' || it.is_ascii_digit());
        let offset = match zone.as_bytes() {
            b"Z" | b"z" => 0,
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let offset = digits(&zone[1..3])? * 3600 + digits(&zone[4..6])? * 60;
                if *sign == b'+' { offset } else { -offset }
            }
            _ => return None,
        };
        let days = days_of(year, month, day);
        in_range.then(|| {
            Self::from_unix(days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset)
        })
    }

    /// Adds seconds.
    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self::from_unix(self.seconds.saturating_add(seconds))
    }

    /// The difference in seconds.
    pub fn seconds_since(self, earlier: Self) -> i64 {
        self.seconds - earlier.seconds
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
        };
        Self::from_unix(seconds)
    }
}

impl From<Time> for SystemTime {
    fn from(moment: Time) -> Self {
        match u64::try_from(moment.seconds) {
            Ok(after) => UNIX_EPOCH + Duration::from_secs(after),
            Err(_) => UNIX_EPOCH - Duration::from_secs(moment.seconds.unsigned_abs()),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.seconds.div_euclid(SECONDS_PER_DAY));
        let time = self.seconds.rem_euclid(SECONDS_PER_DAY);
        write!(
            out,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            time / 3600,
            time / 60 % 60,
            time % 60,
        )
    }
}

/// A duration in kubectl's format: the longer, the coarser.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / SECONDS_PER_DAY);
    let pair = |large: i64, unit: char, small: i64, subunit: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{subunit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

fn digits(text: &str) -> Option<i64> {
    let all = text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

/// Days since 1970, in years that start in March, so that leap days are last.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_formatted_as_by_kubernetes() {
        let rows = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_794_776_399, "2026-11-15T20:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ];
        for (seconds, text) in rows {
            assert_eq!(Time::from_unix(seconds).to_string(), text);
            assert_eq!(Time::parse(text), Some(Time::from_unix(seconds)));
        }
        let zoned = Time::parse("2026-11-15T21:59:59.123456+01:00");
        assert_eq!(zoned, Some(Time::from_unix(1_794_776_399)));
        for text in [
            "",
            "2026",
            "2026-13-01T00:00:00Z",
            "2026-11-15T21:59:59",
            "2026-11-15 21:59:59Z",
            "é026-11-15T21:59:59Z",
        ] {
            assert_eq!(Time::parse(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_as_by_kubectl() {
        let (minute, hour, day) = (60, 3600, SECONDS_PER_DAY);
        let rows = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * minute + 5, "10m"),
            (179 * minute, "179m"),
            (3 * hour, "3h"),
            (3 * hour + 7 * minute, "3h7m"),
            (9 * hour + 7 * minute, "9h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day + hour, "8d"),
            (730 * day, "2y"),
            (731 * day, "2y1d"),
            (3000 * day, "8y"),
        ];
        for (seconds, text) in rows {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(seconds in -62_167_219_200_i64..253_402_300_800) {
            let moment = Time::from_unix(seconds);
            prop_assert_eq!(Time::parse(&moment.to_string()), Some(moment));
        }
    }
}

//! Times as `metav1.MicroTime` writes them: RFC 3339 in UTC, with six digits
//! after the second.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Error;

/// A time in microseconds, somewhere in the years 0 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime {
    /// Since 1970.
    micros: i64,
}

const SECOND: i64 = 1_000_000;
const DAY_SECONDS: i64 = 86_400;

impl MicroTime {
    /// 0000-01-01T00:00:00Z.
    const MIN: Self = Self {
        micros: -62_167_219_200 * SECOND,
    };
    /// The last microsecond that four digits of a year can say.
    const MAX: Self = Self {
        micros: 253_402_300_800 * SECOND - 1,
    };

    fn new(micros: i64) -> Option<Self> {
        let time = Self { micros };
        (Self::MIN..=Self::MAX).contains(&time).then_some(time)
    }
}

/// Cut to microseconds; what lies outside of the years 0 to 9999 becomes their
/// end.
impl From<SystemTime> for MicroTime {
    fn from(time: SystemTime) -> Self {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            // Cut towards the past, as after 1970.
            Err(before) => i64::try_from(before.duration().as_nanos().div_ceil(1000))
                .map_or(i64::MIN, |micros| -micros),
        };
        Self { micros }.clamp(Self::MIN, Self::MAX)
    }
}

impl From<MicroTime> for SystemTime {
    fn from(time: MicroTime) -> Self {
        let distance = Duration::from_micros(time.micros.unsigned_abs());
        if time.micros < 0 {
            UNIX_EPOCH - distance
        } else {
            UNIX_EPOCH + distance
        }
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (
            self.micros.div_euclid(SECOND),
            self.micros.rem_euclid(SECOND),
        );
        let (year, month, day) = date_of(seconds.div_euclid(DAY_SECONDS));
        let time = seconds.rem_euclid(DAY_SECONDS);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
            time / 3600,
            time / 60 % 60,
            time % 60,
        )
    }
}

impl FromStr for MicroTime {
    type Err = Error;

    /// Any time of RFC 3339: with or without a fraction, in any zone. What is
    /// finer than a microsecond is cut off.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text.as_bytes()).ok_or_else(|| Error::Time(text.to_owned()))
    }
}

fn parse(text: &[u8]) -> Option<MicroTime> {
    let (date_time, rest) = text.split_at_checked("2006-01-02T15:04:05".len())?;
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !separators.iter().all(|(at, byte)| date_time[*at] == *byte) {
        return None;
    }
    let (year, month, day) = (
        number(&date_time[..4])?,
        number(&date_time[5..7])?,
        number(&date_time[8..10])?,
    );
    if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
        return None;
    }
    let time = clock(&date_time[11..16])? * 60 + number(&date_time[17..]).filter(|s| *s < 60)?;
    let (micros, zone) = fraction(rest)?;
    let seconds = day_of(year, month, day) * DAY_SECONDS + time - offset(zone)?;
    MicroTime::new(seconds * SECOND + micros)
}

/// Microseconds of `.123…`, where there are any, and what follows.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else {
        return Some((0, text));
    };
    let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, rest) = digits.split_at(count);
    let mut padded = [b'0'; 6];
    for (place, digit) in padded.iter_mut().zip(digits) {
        *place = *digit;
    }
    (count > 0).then_some(())?;
    Some((number(&padded)?, rest))
}

/// Seconds east of Greenwich.
fn offset(zone: &[u8]) -> Option<i64> {
    match zone {
        b"Z" => Some(0),
        [b'+', rest @ ..] => Some(clock(rest)? * 60),
        [b'-', rest @ ..] => Some(-clock(rest)? * 60),
        _ => None,
    }
}

/// Minutes of `15:04`.
fn clock(text: &[u8]) -> Option<i64> {
    let (hours, minutes) = match text {
        [h1, h2, b':', m1, m2] => (number(&[*h1, *h2])?, number(&[*m1, *m2])?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

/// At most six digits come here.
fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        Some(value * 10 + digit)
    })
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 0000-03-01 to 1970-01-01. Counted from March, a leap day is the
/// last of its year, and the days before a month are a line: 153 in 5 months.
const EPOCH: i64 = 719_468;
const DAYS_400_YEARS: i64 = 146_097;

/// The number of a day, from 1970 on.
fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month < 3 { year - 1 } else { year };
    let since_march = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (153 * since_march + 2) / 5 + day - 1 - EPOCH
}

/// Year, month and day of a day's number.
fn date_of(day: i64) -> (i64, i64, i64) {
    let (cycle, day) = (
        (day + EPOCH).div_euclid(DAYS_400_YEARS),
        (day + EPOCH).rem_euclid(DAYS_400_YEARS),
    );
    // Without the leap days so far (of 4, less those of 100, and the 400th's own).
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let since_march = (5 * day + 2) / 153;
    let month = (since_march + 2) % 12 + 1;
    let year = cycle * 400 + year + i64::from(month < 3);
    (year, month, day - (153 * since_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(text: &str) -> MicroTime {
        text.parse().unwrap()
    }

    #[test]
    fn times_are_written_as_kubernetes_writes_them() {
        for (seconds, micros, expected) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (784_111_777, 1, "1994-11-06T08:49:37.000001Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000000Z"),
            (1_798_761_599, 999_999, "2026-12-31T23:59:59.999999Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
            assert_eq!(MicroTime::from(at).to_string(), expected);
            assert_eq!(SystemTime::from(time(expected)), at);
        }
        let before = UNIX_EPOCH - Duration::from_nanos(1);
        let written = MicroTime::from(before).to_string();
        assert_eq!(written, "1969-12-31T23:59:59.999999Z");
        assert_eq!(MicroTime::MIN.to_string(), "0000-01-01T00:00:00.000000Z");
        assert_eq!(MicroTime::MAX.to_string(), "9999-12-31T23:59:59.999999Z");
    }

    #[test]
    fn other_forms_of_rfc_3339_are_read() {
        let expected = time("2026-11-15T12:09:44.139060Z");
        for text in [
            "2026-11-15T12:09:44.13906Z",
            "2026-11-15T12:09:44.139060999Z",
            "2026-11-15T12:09:44.139060+00:00",
            "2026-11-15T17:39:44.139060+05:30",
            "2026-11-14T23:09:44.139060-13:00",
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
        let whole = time("2026-11-15T12:09:44Z").to_string();
        assert_eq!(whole, "2026-11-15T12:09:44.000000Z");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-11-15",
            "2026-11-15T12:09:44",
            "2026-11-15 12:09:44Z",
            "2026-11-15T12:09:44.Z",
            "2026-11-15T12:09:44,1Z",
            "2026-11-15T12:09:44ZZ",
            "2026-11-15T12:09:44+0530",
            "2026-11-15T12:09:44+24:00",
            "2026-11-15T24:09:44Z",
            "2026-11-15T12:60:44Z",
            "2026-11-15T12:09:60Z",
            "2026-00-15T12:09:44Z",
            "2026-13-15T12:09:44Z",
            "2026-11-00T12:09:44Z",
            "2026-11-31T12:09:44Z",
            "2026-02-29T12:09:44Z",
            "2100-02-29T12:09:44Z",
            "+026-11-15T12:09:44Z",
            "0000-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
        ] {
            assert!(text.parse::<MicroTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_day_has_one_date() {
        let mut previous = (0, 0, 0);
        for day in -719_528..=2_932_896 {
            let (year, month, date) = date_of(day);
            assert_eq!(day_of(year, month, date), day);
            assert!((1..=12).contains(&month) && (1..=days_in(year, month)).contains(&date));
            assert!((year, month, date) > previous, "{day}");
            previous = (year, month, date);
        }
        assert_eq!(previous, (9999, 12, 31));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            micros in MicroTime::MIN.micros..=MicroTime::MAX.micros,
        ) {
            let at = MicroTime { micros };
            prop_assert_eq!(time(&at.to_string()), at);
            prop_assert_eq!(MicroTime::from(SystemTime::from(at)), at);
        }

        #[test]
        fn nothing_panics(text in "[0-9TZ:.+-]{0,32}|\\PC{0,32}") {
            let _ = text.parse::<MicroTime>();
        }
    }
}

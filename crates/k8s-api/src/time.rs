//! Times as Kubernetes, HTTP and AWS write them, over the calendar of the `time` crate.
//!
//! ```
//! use skewbridge_k8s_api::time::{MicroTime, Time};
//!
//! let time = Time::parse("2026-11-15T21:59:59.5+01:00").unwrap();
//! assert_eq!(time.to_string(), "2026-11-15T20:59:59Z");
//! assert_eq!(Time::parse("2026-02-31T00:00:00Z"), None);
//!
//! let micro_time: MicroTime = "2026-11-15T20:59:59Z".parse().unwrap();
//! assert_eq!(micro_time.to_string(), "2026-11-15T20:59:59.000000Z");
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::time::format_description::StaticFormatDescription;
use ::time::format_description::well_known::Rfc3339;
use ::time::macros::format_description;
use ::time::{OffsetDateTime, UtcDateTime};

/// `metav1.Time`.
const SECONDS: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

/// `metav1.MicroTime`.
const MICROSECONDS: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// `IMF-fixdate` (RFC 9110, 5.6.7).
const HTTP_DATE: StaticFormatDescription = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// `UnixDate` of Go, in UTC.
const UNIX_DATE: StaticFormatDescription = format_description!(
    "[weekday repr:short] [month repr:short] [day padding:space] [hour]:[minute]:[second] UTC [year]"
);

/// ISO 8601, basic.
const ISO_8601_BASIC: StaticFormatDescription =
    format_description!("[year][month][day]T[hour][minute][second]Z");

const MICROS_PER_SECOND: i64 = 1_000_000;

/// 0000-01-01T00:00:00Z.
const MIN_SECONDS: i64 = -62_167_219_200;

/// 9999-12-31T23:59:59Z, the last second whose year has four digits.
const MAX_SECONDS: i64 = 253_402_300_799;

/// `metav1.Time`: RFC 3339 in UTC, to the second, in the years 0 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Since 1970.
    seconds: i64,
}

impl Time {
    /// The time a number of seconds after 1970 began. A time outside of the years 0 to 9999
    /// becomes the nearest time inside.
    pub fn from_unix(seconds: i64) -> Self {
        Self {
            seconds: seconds.clamp(MIN_SECONDS, MAX_SECONDS),
        }
    }

    /// Parses RFC 3339 in any time zone. Fractions of a second are cut off.
    pub fn parse(text: &str) -> Option<Self> {
        parse_rfc3339(text, b"T").map(|time| Self::from_unix(time.unix_timestamp()))
    }

    /// A number of seconds later.
    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self::from_unix(self.seconds.saturating_add(seconds))
    }

    /// The seconds since an earlier time.
    pub fn seconds_since(self, earlier: Self) -> i64 {
        self.seconds - earlier.seconds
    }
}

/// Fractions of a second are cut off.
impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        Self::from_unix(MicroTime::from(time).micros.div_euclid(MICROS_PER_SECOND))
    }
}

impl From<Time> for SystemTime {
    fn from(time: Time) -> Self {
        system_time(time.seconds, Duration::from_secs)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(out, self.seconds, 0, SECONDS)
    }
}

/// `metav1.MicroTime`: RFC 3339 in UTC with six digits after the second, in the years 0 to
/// 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime {
    /// Since 1970.
    micros: i64,
}

/// The text is not a time of RFC 3339 in the years 0 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a time of RFC 3339")]
pub struct ParseTimeError;

impl MicroTime {
    const MIN: Self = Self {
        micros: MIN_SECONDS * MICROS_PER_SECOND,
    };
    const MAX: Self = Self {
        micros: (MAX_SECONDS + 1) * MICROS_PER_SECOND - 1,
    };
}

/// Fractions of a microsecond are cut off. A time outside of the years 0 to 9999 becomes the
/// nearest time inside.
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
        system_time(time.micros, Duration::from_micros)
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.micros.div_euclid(MICROS_PER_SECOND);
        let micros = self.micros.rem_euclid(MICROS_PER_SECOND);
        write(out, seconds, micros * 1000, MICROSECONDS)
    }
}

impl FromStr for MicroTime {
    type Err = ParseTimeError;

    /// Parses RFC 3339 in any time zone, with or without a fraction of a second. Fractions
    /// of a microsecond are cut off.
    fn from_str(text: &str) -> Result<Self, ParseTimeError> {
        let time = parse_rfc3339(text, b"T").ok_or(ParseTimeError)?;
        let seconds = time.unix_timestamp();
        if !(MIN_SECONDS..=MAX_SECONDS).contains(&seconds) {
            return Err(ParseTimeError);
        }
        let micros = seconds * MICROS_PER_SECOND + i64::from(time.microsecond());
        Ok(Self { micros })
    }
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers send.
pub fn parse_http_date(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let (_, rest) = text.trim().split_once(", ")?;
    let mut words = rest.split(' ');
    let (day, month, year) = (words.next()?, words.next()?, words.next()?);
    let (clock, zone) = (words.next()?, words.next()?);
    let is_month = |at: &usize| month.len() == 3 && at.is_multiple_of(3);
    let month = MONTHS.find(month).filter(is_month)? / 3 + 1;
    if zone != "GMT" || words.next().is_some() {
        return None;
    }
    let text = format!("{year}-{month:02}-{day:0>2}T{clock}Z");
    let time: MicroTime = text.parse().ok()?;
    u64::try_from(time.micros / MICROS_PER_SECOND).ok()
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7), of seconds since 1970.
pub fn http_date(seconds: u64) -> String {
    format(seconds, HTTP_DATE)
}

/// `Sun Nov  6 08:49:37 UTC 1994`, as Go's `time.UnixDate`, of seconds since 1970.
pub fn unix_date(seconds: u64) -> String {
    format(seconds, UNIX_DATE)
}

/// `20150830T123600Z` (ISO 8601, basic), of seconds since 1970.
pub fn iso8601_basic(seconds: u64) -> String {
    format(seconds, ISO_8601_BASIC)
}

/// The seconds since 1970 of a time of RFC 3339 whose date and time are separated by `T`,
/// `t` or a space, as AWS' own programs accept them.
pub fn parse_unix_seconds(text: &str) -> Option<i64> {
    parse_rfc3339(text, b"Tt ").map(OffsetDateTime::unix_timestamp)
}

/// The `time` crate accepts any byte between date and time, and leap seconds, which neither
/// Kubernetes nor Unix time has.
fn parse_rfc3339(text: &str, separators: &[u8]) -> Option<OffsetDateTime> {
    let separator = text.as_bytes().get("2006-01-02".len())?;
    let second = text.get("2006-01-02T15:04:".len().."2006-01-02T15:04:05".len())?;
    if !separators.contains(separator) || second == "60" {
        return None;
    }
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

fn format(seconds: u64, layout: StaticFormatDescription) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(MAX_SECONDS);
    calendar(seconds, 0).format(layout).unwrap_or_default()
}

fn write(
    out: &mut fmt::Formatter<'_>,
    seconds: i64,
    nanoseconds: i64,
    layout: StaticFormatDescription,
) -> fmt::Result {
    let text = calendar(seconds, nanoseconds)
        .format(layout)
        .map_err(|_| fmt::Error)?;
    out.write_str(&text)
}

/// Date and time of seconds since 1970, in the years 0 to 9999.
fn calendar(seconds: i64, nanoseconds: i64) -> UtcDateTime {
    UtcDateTime::from_unix_timestamp(seconds.clamp(MIN_SECONDS, MAX_SECONDS))
        .unwrap_or(UtcDateTime::UNIX_EPOCH)
        .saturating_add(::time::Duration::nanoseconds(nanoseconds))
}

fn system_time(units: i64, duration: impl Fn(u64) -> Duration) -> SystemTime {
    let distance = duration(units.unsigned_abs());
    if units < 0 {
        UNIX_EPOCH - distance
    } else {
        UNIX_EPOCH + distance
    }
}

#[cfg(test)]
mod tests;

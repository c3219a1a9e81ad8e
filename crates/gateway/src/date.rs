//! The `Date` of answers that the bridge gives itself (RFC 9110, 6.6.1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Now, as a header.
pub(crate) fn now() -> HeaderValue {
    after(Duration::ZERO)
}

/// When what never changes may be thrown away.
pub(crate) fn in_a_year() -> HeaderValue {
    after(Duration::from_hours(365 * 24))
}

fn after(time: Duration) -> HeaderValue {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_add(time);
    // Letters, digits, commas and colons are a header value.
    HeaderValue::try_from(imf_fixdate(since.as_secs()))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7), from seconds since 1970.
fn imf_fixdate(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[usize::try_from(days % 7).unwrap_or_default()];
    let (mut year, mut day) = (1970, days);
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let mut month = 0;
    while day >= days_in(year, month) {
        day -= days_in(year, month);
        month += 1;
    }
    format!(
        "{weekday}, {:02} {} {year} {:02}:{:02}:{:02} GMT",
        day + 1,
        MONTHS[month],
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_in(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_http_writes_them() {
        for (seconds, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_798_761_599, "Thu, 31 Dec 2026 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(imf_fixdate(seconds), expected);
        }
    }
}

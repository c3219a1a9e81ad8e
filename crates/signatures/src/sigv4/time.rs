//! Times as AWS writes them.

const DAY: u64 = 24 * 60 * 60;

/// `20150830T123600Z`: ISO 8601, basic. Of seconds since 1970.
pub fn timestamp(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / DAY);
    let rest = seconds % DAY;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Seconds since 1970 of `2015-08-30T12:36:00Z`, with a fraction or another zone
/// perhaps (RFC 3339).
pub(super) fn parse_rfc3339(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = text.get(range)?;
        let all = digits.bytes().all(|it| it.is_ascii_digit());
        all.then(|| digits.parse().ok()).flatten()
    };
    let is = |at: usize, one_of: &[u8]| {
        text.as_bytes()
            .get(at)
            .is_some_and(|it| one_of.contains(it))
    };
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1970..).contains(&year)
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let local = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
    let mut zone = text.get(19..)?;
    if let Some(fraction) = zone.strip_prefix('.') {
        zone = fraction.trim_start_matches(|it: char| it.is_ascii_digit());
    }
    if zone.eq_ignore_ascii_case("z") {
        return Some(local);
    }
    let at = text.len() - zone.len();
    let offset = number(at + 1..at + 3)? * 3600 + number(at + 4..at + 6)? * 60;
    if zone.len() != 6 || !is(at + 3, b":") {
        return None;
    }
    match zone.as_bytes().first() {
        Some(b'+') => local.checked_sub(offset),
        Some(b'-') => local.checked_add(offset),
        _ => None,
    }
}

/// Year, month and day of a number of days since 1970. Years begin in March here,
/// so that the leap day is the last; a period of 400 years has 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// The other way round, for years from 1970 on.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        let rows = [
            (0, "19700101T000000Z", "1970-01-01T00:00:00Z"),
            (951_782_400, "20000229T000000Z", "2000-02-29T00:00:00Z"),
            (1_440_938_160, "20150830T123600Z", "2015-08-30T12:36:00Z"),
            (
                1_440_938_160,
                "20150830T123600Z",
                "2015-08-30T12:36:00.25+00:00",
            ),
            (
                1_440_938_160,
                "20150830T123600Z",
                "2015-08-30t14:06:00+01:30",
            ),
            (
                1_440_938_160,
                "20150830T123600Z",
                "2015-08-30T11:36:00-01:00",
            ),
            (4_107_542_399, "21000228T235959Z", "2100-02-28T23:59:59Z"),
            (4_107_542_400, "21000301T000000Z", "2100-03-01T00:00:00Z"),
        ];
        for (seconds, written, read) in rows {
            assert_eq!(timestamp(seconds), written);
            assert_eq!(parse_rfc3339(read), Some(seconds), "{read}");
        }
        for day in 0..200_000 {
            let (year, month, of_month) = civil(day);
            assert_eq!(days(year, month, of_month), day);
        }
        for bad in [
            "",
            "2015-08-30",
            "2015-08-30T12:36:00",
            "2015-13-30T12:36:00Z",
            "2015-08-30T24:36:00Z",
            "2015-08-30T12:36:00+1:00",
            "2015-08-30T12:36:00+01:00x",
            "2015-08-30T12:36:00\u{e9}",
            "1969-08-30T12:36:00Z",
            "+015-08-30T12:36:00Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }
}

//! RFC 3339 times, as `metav1.Time` reads and writes them: with a resolution of seconds, in
//! UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: i64 = 86_400;

/// Parses a time in any zone. Fractions are truncated: a credential that expires within
/// this second counts as expired.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let (date_time, rest) = text.split_at_checked("2006-01-02T15:04:05".len())?;
    let shape = date_time
        .bytes()
        .zip("0000-00-00T00:00:00".bytes())
        .all(|(found, expected)| match expected {
            b'0' => found.is_ascii_digit(),
            other => found == other,
        });
    if !shape {
        return None;
    }
    let number = |from: usize, to: usize| date_time.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let zone = rest.trim_start_matches(|letter: char| letter == '.' || letter.is_ascii_digit());
    let offset = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let hours: i64 = zone.get(1..3)?.parse().ok()?;
            let minutes: i64 = zone.get(4..6)?.parse().ok()?;
            let offset = hours * 3600 + minutes * 60;
            if *sign == b'+' { offset } else { -offset }
        }
        _ => return None,
    };
    let seconds =
        days(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset;
    let after = Duration::from_secs(seconds.unsigned_abs());
    in_range
        .then(|| match seconds {
            0.. => UNIX_EPOCH.checked_add(after),
            _ => UNIX_EPOCH.checked_sub(after),
        })
        .flatten()
}

/// Formats a time in UTC. Times before 1970 become the epoch.
pub(super) fn format(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // The last second of the year 9999.
    let seconds =
        i64::try_from(since.as_secs()).map_or(253_402_300_799, |it| it.min(253_402_300_799));
    let (year, month, day) = date(seconds / SECONDS_PER_DAY);
    let second_of_day = seconds % SECONDS_PER_DAY;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60
    )
}

/// Days since 1970. Years begin in March here, so that the leap day is the last day.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_parsed_in_every_zone() {
        let rows = [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T00:00:00Z", Some(951_782_400)),
            ("2026-11-15T21:59:59.123456+01:00", Some(1_794_776_399)),
            ("2026-11-15T20:59:59Z", Some(1_794_776_399)),
            ("", None),
            ("tomorrow", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-11-15T21:59:59", None),
            ("2026-11-15T21:59:59+0100", None),
            ("é026-11-15T21:59:59Z", None),
            ("2026-11-15T21:59:59+é1:0", None),
        ];
        for (text, expected) in rows {
            let expected = expected.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_time_is_parsed_back(seconds in 0_u64..253_402_300_800) {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            prop_assert_eq!(parse(&format(time)), Some(time));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }
    }
}

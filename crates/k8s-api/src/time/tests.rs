use proptest::prelude::*;

use super::*;

fn micro_time(text: &str) -> MicroTime {
    text.parse().unwrap()
}

/// Texts that are no time for any of the parsers.
const INVALID: [&str; 36] = [
    "",
    "tomorrow",
    "2026",
    "2026-11-15",
    "2026-11-15T12:09:44",
    "2026-11-15 12:09:44Z",
    "2026-11-15t12:09:44Z",
    "2026-11-15T12:09:44.Z",
    "2026-11-15T12:09:44..1Z",
    "2026-11-15T12:09:44.1.2Z",
    "2026-11-15T12:09:44,1Z",
    "2026-11-15T12:09:44ZZ",
    "2026-11-15T12:09:44+0530",
    "2026-11-15T12:09:44+24:00",
    "2026-11-15T12:09:44+05:60",
    "2026-11-15T12:09:44+99:99",
    "2026-11-15T24:09:44Z",
    "2026-11-15T12:60:44Z",
    "2026-11-15T12:09:60Z",
    "2026-12-31T23:59:60Z",
    "2026-00-15T12:09:44Z",
    "2026-13-01T00:00:00Z",
    "2026-11-00T12:09:44Z",
    "2026-11-31T12:09:44Z",
    "2026-04-31T00:00:00Z",
    "2026-06-31T00:00:00Z",
    "2026-09-31T00:00:00Z",
    "2026-01-32T00:00:00Z",
    "2026-02-29T12:09:44Z",
    "2024-02-30T00:00:00Z",
    "2026-02-31T00:00:00Z",
    "2100-02-29T12:09:44Z",
    "+026-11-15T12:09:44Z",
    "é026-11-15T21:59:59Z",
    "2026-11-15T21:59:59+é1:0",
    "2026-11-15T21:59:\u{661}\u{662}Z",
];

#[test]
fn invalid_times_are_refused() {
    for text in INVALID {
        assert_eq!(Time::parse(text), None, "{text}");
        assert_eq!(text.parse::<MicroTime>(), Err(ParseTimeError), "{text}");
    }
}

#[test]
fn every_day_of_four_centuries_is_parsed_and_the_day_after_each_month_is_refused() {
    let mut seconds = 946_684_800;
    for year in 2000..2400 {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let february = if leap { 29 } else { 28 };
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, length) in (1..).zip(lengths) {
            for day in 1..=length {
                let text = format!("{year}-{month:02}-{day:02}T00:00:00Z");
                let time = Time::from_unix(seconds);
                assert_eq!(Time::parse(&text), Some(time), "{text}");
                assert_eq!(time.to_string(), text);
                seconds += 86_400;
            }
            for day in length + 1..=32 {
                let text = format!("{year}-{month:02}-{day:02}T00:00:00Z");
                assert_eq!(Time::parse(&text), None, "{text}");
                assert!(text.parse::<MicroTime>().is_err(), "{text}");
            }
        }
    }
}

#[test]
fn times_are_formatted_as_metav1_time() {
    let rows = [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_794_776_399, "2026-11-15T20:59:59Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (MIN_SECONDS, "0000-01-01T00:00:00Z"),
        (MAX_SECONDS, "9999-12-31T23:59:59Z"),
    ];
    for (seconds, text) in rows {
        assert_eq!(Time::from_unix(seconds).to_string(), text);
        assert_eq!(Time::parse(text), Some(Time::from_unix(seconds)));
    }
    assert_eq!(Time::from_unix(i64::MIN), Time::from_unix(MIN_SECONDS));
    assert_eq!(Time::from_unix(i64::MAX), Time::from_unix(MAX_SECONDS));
}

#[test]
fn times_in_other_zones_are_converted_to_utc() {
    let expected = Some(Time::from_unix(1_794_776_399));
    for text in [
        "2026-11-15T20:59:59Z",
        "2026-11-15T20:59:59z",
        "2026-11-15T21:59:59.123456+01:00",
        "2026-11-15T20:59:59.999999999999Z",
        "2026-11-14T21:59:59-23:00",
    ] {
        assert_eq!(Time::parse(text), expected, "{text}");
    }
    // The nearest time inside of the years 0 to 9999.
    let last = Time::parse("9999-12-31T23:59:59-00:01");
    assert_eq!(last, Some(Time::from_unix(MAX_SECONDS)));
}

#[test]
fn micro_times_are_formatted_as_metav1_micro_time() {
    for (seconds, micros, expected) in [
        (0, 0, "1970-01-01T00:00:00.000000Z"),
        (784_111_777, 1, "1994-11-06T08:49:37.000001Z"),
        (951_782_400, 0, "2000-02-29T00:00:00.000000Z"),
        (1_798_761_599, 999_999, "2026-12-31T23:59:59.999999Z"),
        (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
    ] {
        let at = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
        assert_eq!(MicroTime::from(at).to_string(), expected);
        assert_eq!(SystemTime::from(micro_time(expected)), at);
    }
    let before = UNIX_EPOCH - Duration::from_nanos(1);
    let written = MicroTime::from(before).to_string();
    assert_eq!(written, "1969-12-31T23:59:59.999999Z");
    assert_eq!(MicroTime::MIN.to_string(), "0000-01-01T00:00:00.000000Z");
    assert_eq!(MicroTime::MAX.to_string(), "9999-12-31T23:59:59.999999Z");
}

#[test]
fn micro_times_are_parsed_from_other_forms_of_rfc_3339() {
    let expected = micro_time("2026-11-15T12:09:44.139060Z");
    for text in [
        "2026-11-15T12:09:44.13906Z",
        "2026-11-15T12:09:44.139060999Z",
        "2026-11-15T12:09:44.139060+00:00",
        "2026-11-15T17:39:44.139060+05:30",
        "2026-11-14T23:09:44.139060-13:00",
    ] {
        assert_eq!(micro_time(text), expected, "{text}");
    }
    let whole = micro_time("2026-11-15T12:09:44Z").to_string();
    assert_eq!(whole, "2026-11-15T12:09:44.000000Z");
}

#[test]
fn micro_times_outside_of_the_years_0_to_9999_are_refused() {
    for text in ["0000-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"] {
        assert!(text.parse::<MicroTime>().is_err(), "{text}");
    }
}

#[test]
fn http_dates_are_formatted_as_imf_fixdate() {
    for (seconds, expected) in [
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
        (1_798_761_599, "Thu, 31 Dec 2026 23:59:59 GMT"),
        (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
    ] {
        assert_eq!(parse_http_date(expected), Some(seconds));
        assert_eq!(http_date(seconds), expected);
    }
    assert_eq!(http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
}

#[test]
fn unix_dates_are_formatted_as_go_formats_them() {
    for (seconds, expected) in [
        (784_111_777, "Sun Nov  6 08:49:37 UTC 1994"),
        (1_729_112_623, "Wed Oct 16 21:03:43 UTC 2024"),
    ] {
        assert_eq!(unix_date(seconds), expected);
    }
}

#[test]
fn unix_seconds_are_parsed_from_every_form_of_rfc_3339() {
    let rows = [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_440_938_160, "2015-08-30T12:36:00Z"),
        (1_440_938_160, "2015-08-30 12:36:00z"),
        (1_440_938_160, "2015-08-30T12:36:00.25+00:00"),
        (1_440_938_160, "2015-08-30t14:06:00+01:30"),
        (1_440_938_160, "2015-08-30T11:36:00-01:00"),
        (4_107_542_399, "2100-02-28T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ];
    for (seconds, text) in rows {
        assert_eq!(parse_unix_seconds(text), Some(seconds), "{text}");
    }
    for text in [
        "2015-08-30",
        "2015-08-30T12:36:00",
        "2015-13-30T12:36:00Z",
        "2015-08-30T24:36:00Z",
        "2015-08-30T12:36:00+1:00",
        "2015-08-30T12:36:00+01:00x",
        "2015-08-30T12:36:00\u{e9}",
        "2015-08-30_12:36:00Z",
        "+015-08-30T12:36:00Z",
    ] {
        assert_eq!(parse_unix_seconds(text), None, "{text}");
    }
    let others = ["2026-11-15 12:09:44Z", "2026-11-15t12:09:44Z"];
    for text in INVALID.iter().filter(|text| !others.contains(text)) {
        assert_eq!(parse_unix_seconds(text), None, "{text}");
    }
}

#[test]
fn basic_iso_8601_has_no_separators() {
    for (seconds, expected) in [
        (0, "19700101T000000Z"),
        (951_782_400, "20000229T000000Z"),
        (1_440_938_160, "20150830T123600Z"),
        (4_107_542_399, "21000228T235959Z"),
        (4_107_542_400, "21000301T000000Z"),
    ] {
        assert_eq!(iso8601_basic(seconds), expected);
    }
}

proptest! {
    #[test]
    fn formatted_times_are_parsed_to_the_same_time(seconds in MIN_SECONDS..=MAX_SECONDS) {
        let time = Time::from_unix(seconds);
        prop_assert_eq!(Time::parse(&time.to_string()), Some(time));
        prop_assert_eq!(Time::from(SystemTime::from(time)), time);
    }

    #[test]
    fn formatted_micro_times_are_parsed_to_the_same_time(
        micros in MicroTime::MIN.micros..=MicroTime::MAX.micros,
    ) {
        let at = MicroTime { micros };
        prop_assert_eq!(micro_time(&at.to_string()), at);
        prop_assert_eq!(MicroTime::from(SystemTime::from(at)), at);
    }

    #[test]
    fn no_text_panics(text in "[0-9TZ:.+-]{0,32}|\\PC{0,40}") {
        let _ = Time::parse(&text);
        let _ = text.parse::<MicroTime>();
        let _ = parse_unix_seconds(&text);
    }
}

#[test]
fn other_forms_of_http_dates_are_rejected() {
    for text in [
        "",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun, 06 anF 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37 GMT x",
    ] {
        assert_eq!(parse_http_date(text), None, "{text}");
    }
}

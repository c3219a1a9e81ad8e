//! pax records: `LENGTH KEY=VALUE\n`, where the length includes the whole record.

use super::Violation;

/// The records for the next entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<(i64, u32)>,
}

impl Records {
    /// Parses the records of one file. Other keys (owner names, attributes) are ignored.
    pub(super) fn read(records: &[u8]) -> Result<Self, Violation> {
        let mut parsed = Self::default();
        for_each_record(records, |key, value| {
            // An empty value removes an earlier one.
            let value = (!value.is_empty()).then_some(value);
            match key {
                b"path" => parsed.path = value.map(<[u8]>::to_vec),
                b"linkpath" => parsed.link = value.map(<[u8]>::to_vec),
                b"size" => parsed.size = value.map(decimal).transpose()?,
                b"mtime" => parsed.mtime = value.map(time).transpose()?,
                _ if key.starts_with(b"GNU.sparse.") => {
                    return Err(Violation::Unsupported("a sparse file"));
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(parsed)
    }

    /// Checks global records, which may only be comments. A name or a size for all files makes no
    /// sense, and programs that ignore such a record read the archive differently.
    pub(super) fn read_global(records: &[u8]) -> Result<(), Violation> {
        for_each_record(records, |key, _| match key {
            b"path" | b"linkpath" | b"size" => {
                Err(Violation::Unsupported("a name or size for all entries"))
            }
            _ => Ok(()),
        })
    }
}

fn for_each_record(
    mut rest: &[u8],
    mut on_record: impl FnMut(&[u8], &[u8]) -> Result<(), Violation>,
) -> Result<(), Violation> {
    while !rest.is_empty() {
        let space = rest.iter().position(|&byte| byte == b' ');
        let space = space.ok_or(Violation::Pax)?;
        let length = decimal(&rest[..space])?;
        let length = usize::try_from(length).map_err(|_| Violation::Pax)?;
        if length > rest.len() || length < space + 3 {
            return Err(Violation::Pax);
        }
        let (record, after) = rest.split_at(length);
        let record = &record[space + 1..];
        let Some((b'\n', record)) = record.split_last() else {
            return Err(Violation::Pax);
        };
        let equals = record.iter().position(|&byte| byte == b'=');
        let equals = equals.ok_or(Violation::Pax)?;
        on_record(&record[..equals], &record[equals + 1..])?;
        rest = after;
    }
    Ok(())
}

fn decimal(digits: &[u8]) -> Result<u64, Violation> {
    let text = str::from_utf8(digits).map_err(|_| Violation::Pax)?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|_| is_number);
    // At most the largest possible file size.
    value
        .filter(|value| i64::try_from(*value).is_ok())
        .ok_or(Violation::Pax)
}

/// Seconds with a fraction, which counts upwards also before 1970.
fn time(text: &[u8]) -> Result<(i64, u32), Violation> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        text => (false, text),
    };
    let point = text.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(Violation::Pax);
    }
    let seconds = i64::try_from(decimal(whole)?).map_err(|_| Violation::Pax)?;
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0'));
    let nanos = digits
        .take(9)
        .fold(0_u32, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Ok(match (negative, nanos) {
        (false, nanos) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_split_by_their_length() {
        let records = b"16 path=a\nb=c/d\n25 mtime=1700000000.0625\n13 size=1234\n9 uid=70\n";
        assert_eq!(
            Records::read(records),
            Ok(Records {
                path: Some(b"a\nb=c/d".to_vec()),
                link: None,
                size: Some(1234),
                mtime: Some((1_700_000_000, 62_500_000)),
            })
        );
    }

    #[test]
    fn malformed_records_are_rejected() {
        let rows: [&[u8]; 9] = [
            b"path=a\n",
            b"99 path=a\n",
            b"9 path=ab",
            b"5 a=\n6 b",
            b"3 \n",
            b"+9 path=a\n",
            b"12 size=-12\n",
            b"15 mtime=1.2.3\n",
            b"28 size=9223372036854775808\n",
        ];
        for records in rows {
            assert_eq!(Records::read(records), Err(Violation::Pax), "{records:?}");
        }
    }

    #[test]
    fn fractions_of_times_before_1970_count_upwards() {
        assert_eq!(time(b"-1"), Ok((-1, 0)));
        assert_eq!(time(b"-1.25"), Ok((-2, 750_000_000)));
        assert_eq!(time(b"0.1234567891"), Ok((0, 123_456_789)));
    }

    #[test]
    fn global_records_are_comments_or_rejected() {
        assert_eq!(Records::read_global(b"13 comment=x\n"), Ok(()));
        assert!(Records::read_global(b"9 size=1\n").is_err());
        assert!(Records::read(b"21 GNU.sparse.size=1\n").is_err());
    }
}

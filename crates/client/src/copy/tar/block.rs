//! One header block: 512 bytes with fields at fixed offsets.

use std::ops::Range;

use super::{BLOCK_BYTES, Violation};

pub(super) const NAME: Range<usize> = 0..100;
pub(super) const MODE: Range<usize> = 100..108;
pub(super) const UID: Range<usize> = 108..116;
pub(super) const GID: Range<usize> = 116..124;
pub(super) const SIZE: Range<usize> = 124..136;
pub(super) const MTIME: Range<usize> = 136..148;
pub(super) const CHECKSUM: Range<usize> = 148..156;
pub(super) const TYPE_OFFSET: usize = 156;
pub(super) const LINK: Range<usize> = 157..257;
pub(super) const MAGIC: Range<usize> = 257..265;
pub(super) const PREFIX: Range<usize> = 345..500;

/// GNU's magic, with which no field is a prefix of the name.
pub(super) const GNU: &[u8; 8] = b"ustar  \0";

pub(super) type Bytes = [u8; BLOCK_BYTES];

/// Whether the checksum is right. Some programs compute it over signed bytes.
pub(super) fn is_intact(block: &Bytes) -> bool {
    let Ok(stored) = number(&block[CHECKSUM], "checksum") else {
        return false;
    };
    let (mut unsigned, mut signed) = (0_i64, 0_i64);
    for (place, &byte) in block.iter().enumerate() {
        let byte = if CHECKSUM.contains(&place) {
            b' '
        } else {
            byte
        };
        unsigned += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    stored == unsigned || stored == signed
}

/// Writes the checksum, after all other fields.
pub(super) fn seal(block: &mut Bytes) {
    block[CHECKSUM].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    // Six digits, NUL, space: the format since 1979.
    octal(&mut block[CHECKSUM.start..CHECKSUM.start + 7], sum.into());
}

/// The text up to the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Parses octal digits between blanks, or GNU's binary form.
pub(super) fn number(field: &[u8], name: &'static str) -> Result<i64, Violation> {
    let wrong = Violation::Number { field: name };
    if field[0] & 0x80 != 0 {
        return binary(field).ok_or(wrong);
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| *byte != b' ');
    let digits = &field[start.unwrap_or(field.len())..];
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if !rest.iter().all(is_blank) {
        return Err(wrong);
    }
    let mut value = 0_i64;
    for &digit in digits {
        if !(b'0'..=b'7').contains(&digit) {
            return Err(wrong);
        }
        value = (value << 3) | i64::from(digit - b'0');
    }
    Ok(value)
}

/// Two's complement, big-endian; the highest bit marks this form.
fn binary(field: &[u8]) -> Option<i64> {
    let negative = field[0] & 0x40 != 0;
    let first = if negative { field[0] } else { field[0] & 0x7f };
    let mut value = if negative { -1_i64 } else { 0 };
    for byte in std::iter::once(first).chain(field[1..].iter().copied()) {
        value = value.checked_mul(256)? + i64::from(byte);
    }
    Some(value)
}

/// Writes a number in octal if it fits, else in GNU's binary form.
pub(super) fn write_number(field: &mut [u8], value: i64) {
    let digits = field.len() - 1;
    match u64::try_from(value) {
        Ok(value) if value >> (3 * digits) == 0 => octal(field, value),
        _ => {
            let bytes = value.to_be_bytes();
            let sign = if value < 0 { 0xff } else { 0 };
            // In an 8-byte field the highest byte is only the mark; the values we write there
            // (owners) have 32 bits.
            let extra = field.len().saturating_sub(bytes.len());
            field[..extra].fill(sign);
            let kept = field.len() - extra;
            field[extra..].copy_from_slice(&bytes[bytes.len() - kept..]);
            field[0] |= 0x80;
        }
    }
}

fn octal(field: &mut [u8], mut value: u64) {
    let last = field.len() - 1;
    field[last] = 0;
    for digit in field[..last].iter_mut().rev() {
        *digit = b'0' + (value & 7) as u8;
        value >>= 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_as_tar_programs_write_them() {
        let rows: [(&[u8], Option<i64>); 12] = [
            (b"0000644\0", Some(0o644)),
            (b"000644 \0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"77777777", Some(0o7777_7777)),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"0000648\0", None),
            (b"12 34\0\0\0", None),
            (b"-000001\0", None),
        ];
        for (field, expected) in rows {
            assert_eq!(number(field, "x").ok(), expected, "{field:?}");
        }
        // More than 63 bits.
        let large = b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff";
        assert!(number(large, "size").is_err());
    }

    #[test]
    fn written_numbers_are_read_back() {
        for value in [
            0,
            1,
            0o77_777_777_777,
            1 << 33,
            10 << 30,
            i64::MAX,
            -1,
            -86_400,
        ] {
            let mut field = [0; 12];
            write_number(&mut field, value);
            assert_eq!(number(&field, "x"), Ok(value));
        }
        for value in [0, 65_534, 0o7_777_777, i64::from(u32::MAX)] {
            let mut field = [0; 8];
            write_number(&mut field, value);
            assert_eq!(number(&field, "x"), Ok(value));
        }
    }
}

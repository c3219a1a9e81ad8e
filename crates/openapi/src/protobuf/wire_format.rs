//! Protobuf's wire format, as far as needed to split messages into fields and to join them.

use std::borrow::Cow;

use crate::error::DecodeError;

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    /// The whole field, including number and length.
    pub(crate) raw: &'a [u8],
    /// The content of a message or string field.
    content: Option<&'a [u8]>,
}

impl<'a> Field<'a> {
    /// The message or string in the field.
    pub(crate) fn content(&self) -> Result<&'a [u8], DecodeError> {
        self.content.ok_or(DecodeError::WrongType)
    }
}

/// The fields of a message, in order.
pub(crate) fn fields(message: &[u8]) -> Result<Vec<Field<'_>>, DecodeError> {
    let mut rest = message;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        fields.push(field(&mut rest)?);
    }
    Ok(fields)
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, DecodeError> {
    let begin = *rest;
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).map_err(|_| DecodeError::Malformed)?;
    if number == 0 || number > MAX_FIELD_NUMBER {
        return Err(DecodeError::Malformed);
    }
    let content = match key & 7 {
        0 => varint(rest).map(|_| None)?,
        1 => take(rest, 8).map(|_| None)?,
        2 => {
            let length = varint(rest)?;
            let length = usize::try_from(length).map_err(|_| DecodeError::Malformed)?;
            Some(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| None)?,
        // Groups, which are obsolete, and invalid types.
        _ => return Err(DecodeError::Malformed),
    };
    Ok(Field {
        number,
        raw: &begin[..begin.len() - rest.len()],
        content,
    })
}

/// 2^29 - 1, as the specification says.
const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, after) = rest
        .split_at_checked(length)
        .ok_or(DecodeError::Malformed)?;
    *rest = after;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(DecodeError::Malformed)?;
        *rest = after;
        // The tenth byte holds only one of 64 bits.
        if shift == 63 && *byte > 1 {
            return Err(DecodeError::Malformed);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Malformed)
}

/// The chunks of a message that is assembled.
pub(crate) type Chunks<'a> = Vec<Cow<'a, [u8]>>;

/// A length-delimited field with this content.
pub(crate) fn length_delimited(number: u32, content: Chunks<'_>) -> Chunks<'_> {
    let length: usize = content.iter().map(|chunk| chunk.len()).sum();
    let mut head = Vec::new();
    write_varint(u64::from(number) << 3 | 2, &mut head);
    write_varint(length as u64, &mut head);
    let mut chunks = Vec::with_capacity(content.len() + 1);
    chunks.push(Cow::Owned(head));
    chunks.extend(content);
    chunks
}

fn write_varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(low_seven(value) | 0x80);
        value >>= 7;
    }
    to.push(low_seven(value));
}

fn low_seven(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_all_types_are_split() {
        let chunks: [&[u8]; 4] = [
            &[9, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x15, 1, 2, 3, 4],
            &[0x18, 0x80, 5],
            &[0xa2, 0x1f, 2, 7, 8],
        ];
        let message = chunks.concat();
        let found = fields(&message).unwrap();
        let raw: Vec<_> = found.iter().map(|field| field.raw).collect();
        assert_eq!(raw, chunks);
        let numbers: Vec<_> = found.iter().map(|field| field.number).collect();
        assert_eq!(numbers, [1, 2, 3, 500]);
        assert_eq!(found[2].content(), Err(DecodeError::WrongType));
        assert_eq!(found[3].content(), Ok(&[7, 8][..]));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        for bytes in [
            &[0x0a][..],
            &[0x0a, 1],
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            &[0x80],
            &[0x08, 0x80],
            &[9, 1, 2],
            &[0x15, 1],
            // Field 0, field 2^29, groups, varints that are too long or too large.
            &[2, 0],
            &[0x82, 0x80, 0x80, 0x80, 0x10, 0],
            &[0x0b],
            &[0x0c],
            &[8, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1],
            &[8, 128, 128, 128, 128, 128, 128, 128, 128, 128, 2],
        ] {
            assert_eq!(fields(bytes), Err(DecodeError::Malformed), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn encoded_fields_decode_to_themselves(number in 1..=MAX_FIELD_NUMBER, one: Vec<u8>, two: Vec<u8>) {
            let written = length_delimited(number, vec![(&one).into(), (&two).into()]).concat();
            let found = fields(&written).unwrap();
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(found[0].number, number);
            prop_assert_eq!(found[0].raw, &written);
            prop_assert_eq!(found[0].content(), Ok(&*[one, two].concat()));
        }
    }
}

//! Protobuf's wire format, as far as Kubernetes uses it: in stored objects, in responses and in
//! OpenAPI documents.

/// A message that is being encoded. Kubernetes' Go code encodes fields in order of their
/// numbers, and empty strings too.
#[derive(Debug, Default)]
#[must_use]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A length-delimited field.
    pub fn bytes(mut self, number: u8, value: &[u8]) -> Self {
        write_prefix(u32::from(number), value.len(), &mut self.0);
        self.0.extend_from_slice(value);
        self
    }

    /// A field that is a string.
    pub fn text(self, number: u8, value: &str) -> Self {
        self.bytes(number, value.as_bytes())
    }

    /// A field that is a message.
    pub fn message(self, number: u8, value: Writer) -> Self {
        self.bytes(number, &value.finish())
    }

    /// Strings, one field each.
    pub fn texts(self, number: u8, values: &[String]) -> Self {
        let each = |writer: Self, value: &String| writer.text(number, value);
        values.iter().fold(self, each)
    }

    /// Messages, one field each.
    pub fn messages<T>(self, number: u8, values: &[T], write: impl Fn(&T) -> Writer) -> Self {
        let each = |writer: Self, value| writer.message(number, write(value));
        values.iter().fold(self, each)
    }

    /// A field that is a number.
    pub fn number(mut self, number: u8, value: i64) -> Self {
        write_varint(u64::from(number) << 3, &mut self.0);
        write_varint(value.cast_unsigned(), &mut self.0);
        self
    }

    /// The encoded message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The number and the length that stand before the content of a length-delimited field.
pub fn length_delimited_prefix(number: u32, length: usize) -> Vec<u8> {
    let mut prefix = Vec::new();
    write_prefix(number, length, &mut prefix);
    prefix
}

fn write_prefix(number: u32, length: usize, to: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3 | 2, to);
    write_varint(length as u64, to);
}

fn write_varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        // The low seven bits, and that more follow.
        to.push(low_seven(value) | 0x80);
        value >>= 7;
    }
    to.push(low_seven(value));
}

/// An object as Kubernetes stores and sends it: `k8s\0` and a `runtime.Unknown`
/// (fields by number as in apimachinery's `generated.proto`).
pub fn envelope(api_version: &str, kind: &str, object: Writer) -> Vec<u8> {
    let type_meta = Writer::default().text(1, api_version).text(2, kind);
    let unknown = Writer::default()
        .message(1, type_meta)
        .message(2, object)
        .text(3, "")
        .text(4, "");
    let mut bytes = b"k8s\0".to_vec();
    bytes.append(&mut unknown.finish());
    bytes
}

fn low_seven(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

/// A field of a message that is being decoded, after the number of the field.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A string, bytes or a message.
    Bytes(u64, &'a [u8]),
    /// A number.
    Number(u64, i64),
    /// A wire type that no known field has.
    Other(u64),
}

impl Field<'_> {
    /// The number of the field.
    pub fn number(&self) -> u64 {
        match self {
            Self::Bytes(number, _) | Self::Number(number, _) | Self::Other(number) => *number,
        }
    }
}

/// The fields of a message, in their order. An error ends them.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

/// The bytes end inside of a field, or are not a field.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodeError;

/// 2^29 - 1, as the specification says.
pub const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

impl<'a> Fields<'a> {
    /// The fields of these bytes.
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Each field together with its bytes, including number and length.
    pub fn with_raw(mut self) -> impl Iterator<Item = Result<(Field<'a>, &'a [u8]), DecodeError>> {
        std::iter::from_fn(move || {
            let before = self.0;
            let field = self.next()?;
            let raw = &before[..before.len() - self.0.len()];
            Some(field.map(|field| (field, raw)))
        })
    }

    fn field(&mut self) -> Result<Field<'a>, DecodeError> {
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 || number > u64::from(MAX_FIELD_NUMBER) {
            return Err(DecodeError);
        }
        match key & 7 {
            0 => Ok(Field::Number(number, self.varint()?.cast_signed())),
            1 => self.take(8).map(|_| Field::Other(number)),
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| DecodeError)?;
                Ok(Field::Bytes(number, self.take(length)?))
            }
            5 => self.take(4).map(|_| Field::Other(number)),
            // Groups, which are obsolete, and invalid types.
            _ => Err(DecodeError),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError)?;
            self.0 = rest;
            // The tenth byte holds only one of 64 bits.
            if shift == 63 && *byte > 1 {
                return Err(DecodeError);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unused_fields_are_skipped() {
        let fixed = [
            [9, 1, 2, 3, 4, 5, 6, 7, 8].as_slice(),
            &[0x15, 1, 2, 3, 4],
            &[0x18, 5],
        ]
        .concat();
        let fields: Result<Vec<_>, _> = Fields::of(&fixed).collect();
        let expected = vec![Field::Other(1), Field::Other(2), Field::Number(3, 5)];
        assert_eq!(fields, Ok(expected));
    }

    #[test]
    fn malformed_messages_are_refused() {
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
            let last = Fields::of(bytes).last();
            assert_eq!(last, Some(Err(DecodeError)), "{bytes:?}");
        }
    }

    #[test]
    fn the_bytes_of_each_field_are_known() {
        let chunks: [&[u8]; 4] = [
            &[9, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x15, 1, 2, 3, 4],
            &[0x18, 0x80, 5],
            &[0xa2, 0x1f, 2, 7, 8],
        ];
        let message = chunks.concat();
        let found: Vec<_> = Fields::of(&message)
            .with_raw()
            .map(Result::unwrap)
            .collect();
        let raw: Vec<_> = found.iter().map(|(_, raw)| *raw).collect();
        assert_eq!(raw, chunks);
        let numbers: Vec<_> = found.iter().map(|(field, _)| field.number()).collect();
        assert_eq!(numbers, [1, 2, 3, 500]);
    }

    proptest! {
        #[test]
        fn encoded_messages_are_decoded_unchanged(
            value: i64,
            bytes: Vec<u8>,
            one in 1_u8..16,
            two in 1_u8..16,
        ) {
            let written = Writer::default().number(one, value).bytes(two, &bytes).finish();
            let fields: Result<Vec<_>, _> = Fields::of(&written).collect();
            prop_assert_eq!(fields, Ok(vec![
                Field::Number(one.into(), value),
                Field::Bytes(two.into(), &bytes),
            ]));
        }
    }
}

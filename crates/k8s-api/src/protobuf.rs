//! The part of protobuf's wire format that Kubernetes uses in stored objects and responses.

/// An encoder of one message. Kubernetes' Go code writes fields in the order of their
/// numbers and includes empty strings.
#[derive(Debug, Default)]
#[must_use]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Appends a length-delimited field.
    pub fn bytes(mut self, number: u8, value: &[u8]) -> Self {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a string field.
    pub fn text(self, number: u8, value: &str) -> Self {
        self.bytes(number, value.as_bytes())
    }

    /// Appends a message field.
    pub fn message(self, number: u8, value: Writer) -> Self {
        self.bytes(number, &value.finish())
    }

    /// Appends a repeated string field.
    pub fn texts(self, number: u8, values: &[String]) -> Self {
        let each = |writer: Self, value: &String| writer.text(number, value);
        values.iter().fold(self, each)
    }

    /// Appends a repeated message field.
    pub fn messages<T>(self, number: u8, values: &[T], write: impl Fn(&T) -> Writer) -> Self {
        let each = |writer: Self, value| writer.message(number, write(value));
        values.iter().fold(self, each)
    }

    /// Appends an integer field.
    pub fn number(mut self, number: u8, value: i64) -> Self {
        self.varint(u64::from(number) << 3);
        self.varint(value.cast_unsigned());
        self
    }

    /// Returns the encoded message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            // The low seven bits with the continuation bit.
            self.0.push(low_seven_bits(value) | 0x80);
            value >>= 7;
        }
        self.0.push(low_seven_bits(value));
    }
}

/// Encodes an object as Kubernetes stores and sends it: `k8s\0` followed by a
/// `runtime.Unknown` (field numbers from apimachinery's `generated.proto`).
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

fn low_seven_bits(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

/// A decoded field.
#[derive(Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// The field number, and a string, bytes or a message.
    Bytes(u64, &'a [u8]),
    /// The field number and an integer.
    Number(u64, i64),
    /// A field with a wire type that Kubernetes does not use.
    Other,
}

/// Iterates over the fields of a message in encoded order; stops after an error.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

/// The bytes end in the middle of a field, or are not a field.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodeError;

impl<'a> Fields<'a> {
    /// Decodes this message.
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Result<Field<'a>, DecodeError> {
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 {
            return Err(DecodeError);
        }
        match key & 7 {
            0 => Ok(Field::Number(number, self.varint()?.cast_signed())),
            1 => self.take(8).map(|_| Field::Other),
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| DecodeError)?;
                Ok(Field::Bytes(number, self.take(length)?))
            }
            5 => self.take(4).map(|_| Field::Other),
            // Groups, which are deprecated, and unknown wire types.
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
    fn fields_of_unused_wire_types_are_skipped() {
        let fixed = [
            [9, 1, 2, 3, 4, 5, 6, 7, 8].as_slice(),
            &[0x15, 1, 2, 3, 4],
            &[0x18, 5],
        ]
        .concat();
        let fields: Result<Vec<_>, _> = Fields::of(&fixed).collect();
        let expected = vec![Field::Other, Field::Other, Field::Number(3, 5)];
        assert_eq!(fields, Ok(expected));
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
            // Field 0, a group, a varint of eleven bytes.
            &[2, 0],
            &[0x0b],
            &[8, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1],
        ] {
            let last = Fields::of(bytes).last();
            assert_eq!(last, Some(Err(DecodeError)), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn encoded_fields_are_decoded_unchanged(value: i64, bytes: Vec<u8>, one in 1_u8..16, two in 1_u8..16) {
            let written = Writer::default().number(one, value).bytes(two, &bytes).finish();
            let fields: Result<Vec<_>, _> = Fields::of(&written).collect();
            prop_assert_eq!(fields, Ok(vec![
                Field::Number(one.into(), value),
                Field::Bytes(two.into(), &bytes),
            ]));
        }
    }
}

//! Messages split into fields, and joined from chunks.

use std::borrow::Cow;

use skewbridge_k8s_api::protobuf::{self, Fields, length_delimited_prefix};

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
pub(crate) fn split_fields(message: &[u8]) -> Result<Vec<Field<'_>>, DecodeError> {
    let mut fields = Vec::new();
    for field in Fields::of(message).with_raw() {
        let (field, raw) = field?;
        fields.push(Field {
            number: u32::try_from(field.number()).map_err(|_| DecodeError::Malformed)?,
            raw,
            content: match field {
                protobuf::Field::Bytes(_, content) => Some(content),
                protobuf::Field::Number(..) | protobuf::Field::Other(_) => None,
            },
        });
    }
    Ok(fields)
}

impl From<protobuf::DecodeError> for DecodeError {
    fn from(_: protobuf::DecodeError) -> Self {
        Self::Malformed
    }
}

/// The chunks of a message that is assembled.
pub(crate) type Chunks<'a> = Vec<Cow<'a, [u8]>>;

/// A length-delimited field with this content.
pub(crate) fn length_delimited(number: u32, content: Chunks<'_>) -> Chunks<'_> {
    let length = content.iter().map(|chunk| chunk.len()).sum();
    let mut chunks = Vec::with_capacity(content.len() + 1);
    chunks.push(Cow::Owned(length_delimited_prefix(number, length)));
    chunks.extend(content);
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use skewbridge_k8s_api::protobuf::MAX_FIELD_NUMBER;

    #[test]
    fn fields_of_all_types_are_split() {
        let chunks: [&[u8]; 4] = [
            &[9, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x15, 1, 2, 3, 4],
            &[0x18, 0x80, 5],
            &[0xa2, 0x1f, 2, 7, 8],
        ];
        let message = chunks.concat();
        let found = split_fields(&message).unwrap();
        let raw: Vec<_> = found.iter().map(|field| field.raw).collect();
        assert_eq!(raw, chunks);
        let numbers: Vec<_> = found.iter().map(|field| field.number).collect();
        assert_eq!(numbers, [1, 2, 3, 500]);
        assert_eq!(found[2].content(), Err(DecodeError::WrongType));
        assert_eq!(found[3].content(), Ok(&[7, 8][..]));
    }

    /// All rows are in the tests of the decoder.
    #[test]
    fn malformed_messages_are_rejected() {
        for bytes in [&[0x0a][..], &[2, 0], &[0x0a, 0, 0x08, 0x80]] {
            assert_eq!(
                split_fields(bytes),
                Err(DecodeError::Malformed),
                "{bytes:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn encoded_fields_decode_to_themselves(number in 1..=MAX_FIELD_NUMBER, one: Vec<u8>, two: Vec<u8>) {
            let written = length_delimited(number, vec![(&one).into(), (&two).into()]).concat();
            let found = split_fields(&written).unwrap();
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(found[0].number, number);
            prop_assert_eq!(found[0].raw, &written);
            prop_assert_eq!(found[0].content(), Ok(&*[one, two].concat()));
        }
    }
}

//! Base64 in chunks, as Go's standard encoding reads and writes it.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Bytes, BytesMut};

/// Go requires padding, and ignores the padding bits of the last byte.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// Bytes that are encoded at once; a multiple of three.
const BLOCK_BYTES: usize = 3 << 10;

/// The decoder state of one message.
#[derive(Debug, Default)]
pub(crate) struct Base64Text {
    /// Up to three characters of an incomplete group of four.
    partial_group: Vec<u8>,
    /// Padding was read: nothing may follow.
    ended: bool,
}

/// The text is not base64.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidBase64;

impl Base64Text {
    /// Decodes the next chunk as far as its groups are complete.
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<Bytes, InvalidBase64> {
        let mut joined = Vec::new();
        let text = if self.partial_group.is_empty() && !text.iter().copied().any(is_line_end) {
            text
        } else {
            joined.append(&mut self.partial_group);
            joined.extend(text.iter().copied().filter(|byte| !is_line_end(*byte)));
            &joined
        };
        if self.ended && !text.is_empty() {
            return Err(InvalidBase64);
        }
        let (whole, partial_group) = text.split_at(text.len() / 4 * 4);
        self.partial_group = partial_group.to_vec();
        self.ended |= whole.ends_with(b"=");
        ENGINE
            .decode(whole)
            .map(Bytes::from)
            .map_err(|_| InvalidBase64)
    }

    /// Whether the message may end here.
    pub(crate) fn end(&self) -> Result<(), InvalidBase64> {
        if self.partial_group.is_empty() {
            Ok(())
        } else {
            Err(InvalidBase64)
        }
    }
}

/// Go ignores line ends anywhere.
fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Appends bytes as base64.
pub(crate) fn append(bytes: &[u8], out: &mut BytesMut) {
    let mut text = [0; BLOCK_BYTES / 3 * 4];
    for block in bytes.chunks(BLOCK_BYTES) {
        // The buffer fits the text of a block.
        let length = ENGINE.encode_slice(block, &mut text).unwrap_or_default();
        out.extend_from_slice(&text[..length]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, InvalidBase64> {
        let (mut text, mut bytes) = (Base64Text::default(), Vec::new());
        for chunk in chunks {
            bytes.extend_from_slice(&text.push(chunk)?);
        }
        text.end().map(|()| bytes)
    }

    #[test]
    fn base64_is_decoded_as_go_decodes_it() {
        let rows: &[(&str, Option<&[u8]>)] = &[
            ("", Some(b"")),
            ("bHMK", Some(b"ls\n")),
            ("bHM=", Some(b"ls")),
            ("b\r\nHM=\n", Some(b"ls")),
            // Bits that are ignored.
            ("bHN=", Some(b"ls")),
            ("bHM", None),
            ("bHM=bHM=", None),
            ("bHM==", None),
            ("b=M=", None),
            ("bH-_", None),
            ("bH K", None),
            ("=", None),
        ];
        for (text, bytes) in rows {
            let bytes = bytes.map(<[u8]>::to_vec);
            assert_eq!(read([text.as_bytes()]).ok(), bytes, "{text:?}");
            assert_eq!(
                read(text.as_bytes().chunks(1)).ok(),
                bytes,
                "{text:?} in bytes"
            );
        }
    }

    proptest! {
        #[test]
        fn encoded_bytes_decode_to_themselves(
            bytes in prop::collection::vec(any::<u8>(), 0..8000), cut in 1..5000usize,
        ) {
            let mut text = BytesMut::new();
            append(&bytes, &mut text);
            prop_assert_eq!(read(text.chunks(cut)), Ok(bytes));
        }

        #[test]
        fn any_split_of_a_text_decodes_the_same(
            text in "[AQg9+/=\n-]{0,24}", cut in 1..24usize,
        ) {
            let whole = read([text.as_bytes()]);
            prop_assert_eq!(read(text.as_bytes().chunks(cut)), whole);
        }
    }
}

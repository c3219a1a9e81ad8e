//! Base64 in chunks, as read and written by Go's standard encoding.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Bytes, BytesMut};

/// Go wants padding, and does not look at bits that pad the last byte.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// How much is encoded at once; a multiple of three.
const BLOCK: usize = 3 << 10;

/// What has been read of one message.
#[derive(Debug, Default)]
pub(crate) struct Base64Text {
    /// Up to three characters of a group of four.
    begun: Vec<u8>,
    /// Padding was read: nothing may follow.
    ended: bool,
}

/// It is not base64.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl Base64Text {
    /// Takes the next chunk, and gives what is whole with it.
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<Bytes, Invalid> {
        let mut joined = Vec::new();
        let text = if self.begun.is_empty() && !text.iter().copied().any(is_line_end) {
            text
        } else {
            joined.append(&mut self.begun);
            joined.extend(text.iter().copied().filter(|byte| !is_line_end(*byte)));
            &joined
        };
        if self.ended && !text.is_empty() {
            return Err(Invalid);
        }
        let (whole, begun) = text.split_at(text.len() / 4 * 4);
        self.begun = begun.to_vec();
        self.ended |= whole.ends_with(b"=");
        ENGINE.decode(whole).map(Bytes::from).map_err(|_| Invalid)
    }

    /// Whether the message may end here.
    pub(crate) fn end(&self) -> Result<(), Invalid> {
        if self.begun.is_empty() {
            Ok(())
        } else {
            Err(Invalid)
        }
    }
}

/// Go passes over line ends wherever they stand.
fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Appends bytes as text.
pub(crate) fn append(bytes: &[u8], out: &mut BytesMut) {
    let mut text = [0; BLOCK / 3 * 4];
    for block in bytes.chunks(BLOCK) {
        // The text of a block has room.
        let length = ENGINE.encode_slice(block, &mut text).unwrap_or_default();
        out.extend_from_slice(&text[..length]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, Invalid> {
        let (mut text, mut bytes) = (Base64Text::default(), Vec::new());
        for chunk in chunks {
            bytes.extend_from_slice(&text.push(chunk)?);
        }
        text.end().map(|()| bytes)
    }

    #[test]
    fn texts_are_read_as_go_reads_them() {
        let rows: &[(&str, Option<&[u8]>)] = &[
            ("", Some(b"")),
            ("bHMK", Some(b"ls\n")),
            ("bHM=", Some(b"ls")),
            ("b\r\nHM=\n", Some(b"ls")),
            // Bits that nobody reads.
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
        fn what_is_written_is_read(
            bytes in prop::collection::vec(any::<u8>(), 0..8000), cut in 1..5000usize,
        ) {
            let mut text = BytesMut::new();
            append(&bytes, &mut text);
            prop_assert_eq!(read(text.chunks(cut)), Ok(bytes));
        }

        #[test]
        fn any_text_is_judged_the_same_however_it_is_split(
            text in "[AQg9+/=\n-]{0,24}", cut in 1..24usize,
        ) {
            let whole = read([text.as_bytes()]);
            prop_assert_eq!(read(text.as_bytes().chunks(cut)), whole);
        }
    }
}

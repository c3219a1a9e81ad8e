//! The size of a terminal.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TerminalSize {
    /// Columns.
    #[serde(alias = "width")]
    pub width: u16,
    /// Rows.
    #[serde(alias = "height")]
    pub height: u16,
}

impl TerminalSize {
    /// As clients write it, with a line feed.
    pub fn encode(self) -> Bytes {
        let Self { width, height } = self;
        format!("{{\"Width\":{width},\"Height\":{height}}}\n").into()
    }
}

/// Bound of the buffered bytes of an incomplete size: one that clients write has 33 bytes.
const MAX_BUFFERED_BYTES: usize = 1024;

/// Decodes sizes from the bytes of the resize channel, which need not be split at message
/// boundaries.
#[derive(Debug, Default)]
pub struct ResizeDecoder(Vec<u8>);

/// The bytes are not sizes. Servers then ignore the rest of the channel and continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the resize channel carries data that is not a terminal size")]
pub struct ResizeError;

impl ResizeDecoder {
    /// Adds bytes and returns the last complete size: older ones are obsolete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<TerminalSize>, ResizeError> {
        let mut last = None;
        // Bounds how much is parsed at once, whatever the length of a message.
        for block in bytes.chunks(MAX_BUFFERED_BYTES) {
            self.0.extend_from_slice(block);
            last = self.take()?.or(last);
            if self.0.len() > MAX_BUFFERED_BYTES {
                return Err(ResizeError);
            }
        }
        Ok(last)
    }

    fn take(&mut self) -> Result<Option<TerminalSize>, ResizeError> {
        let mut sizes = serde_json::Deserializer::from_slice(&self.0).into_iter();
        let (mut last, mut end) = (None, 0);
        loop {
            match sizes.next() {
                Some(Ok(size)) => {
                    last = Some(size);
                    end = sizes.byte_offset();
                }
                Some(Err(error)) if error.is_eof() => break,
                Some(Err(_)) => return Err(ResizeError),
                None => {
                    end = self.0.len();
                    break;
                }
            }
        }
        self.0.drain(..end);
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(width: u16, height: u16) -> TerminalSize {
        TerminalSize { width, height }
    }

    #[test]
    fn sizes_are_encoded_as_client_go_does() {
        assert_eq!(size(80, 24).encode(), "{\"Width\":80,\"Height\":24}\n");
    }

    #[test]
    fn sizes_are_decoded_as_go_does() {
        type Row<'a> = (&'a [u8], Result<Option<TerminalSize>, ResizeError>);
        let rows: &[Row<'_>] = &[
            (b"{\"Width\":80,\"Height\":24}\n", Ok(Some(size(80, 24)))),
            (
                b"{\"width\":80,\"height\":24,\"x\":[1]}",
                Ok(Some(size(80, 24))),
            ),
            (b"{\"Height\":24} {\"Height\":25}", Ok(Some(size(0, 25)))),
            (b"{\"Width\":80,\"Hei", Ok(None)),
            (b" \n", Ok(None)),
            (b"", Ok(None)),
            (b"{\"Width\":65536}", Err(ResizeError)),
            (b"{\"Width\":-1}", Err(ResizeError)),
            (b"80x24", Err(ResizeError)),
        ];
        for (bytes, expected) in rows {
            assert_eq!(ResizeDecoder::default().push(bytes), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn buffered_bytes_are_bounded() {
        let mut sizes = ResizeDecoder::default();
        let endless = [b"{\"x\":\"".to_vec(), vec![b'a'; 1 << 20]].concat();
        assert_eq!(sizes.push(&endless), Err(ResizeError));
        assert!(sizes.0.capacity() < 8 * MAX_BUFFERED_BYTES);
        assert_eq!(
            ResizeDecoder::default().push(&vec![b' '; 1 << 20]),
            Ok(None)
        );
    }

    proptest! {
        #[test]
        fn sizes_may_be_split_anywhere(all: Vec<(u16, u16)>, cut in 1..40usize) {
            let wire: Vec<u8> = all.iter().flat_map(|(w, h)| size(*w, *h).encode()).collect();
            let (mut sizes, mut last) = (ResizeDecoder::default(), None);
            for chunk in wire.chunks(cut) {
                last = sizes.push(chunk).unwrap().or(last);
            }
            prop_assert_eq!(last, all.last().map(|(w, h)| size(*w, *h)));
        }
    }
}

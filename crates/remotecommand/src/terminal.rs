//! How large a terminal is.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TerminalSize {
    /// How many columns.
    #[serde(alias = "width")]
    pub width: u16,
    /// How many rows.
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

/// What is kept of a size that is not whole: a size as clients write it has 33
/// bytes.
const LONGEST: usize = 1024;

/// Reads sizes out of the bytes of the resize channel, which need not be cut
/// where messages are.
#[derive(Debug, Default)]
pub struct ResizeDecoder(Vec<u8>);

/// Something else than sizes. Servers then listen to no further ones, and go
/// on otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the resize channel has something that is not the size of a terminal")]
pub struct ResizeError;

impl ResizeDecoder {
    /// Takes the next bytes, and gives the last size that is whole with them:
    /// an older one is of no use any more.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<TerminalSize>, ResizeError> {
        let mut last = None;
        // A bound for what is parsed at once, whatever the length of a message.
        for block in bytes.chunks(LONGEST) {
            self.0.extend_from_slice(block);
            last = self.take()?.or(last);
            if self.0.len() > LONGEST {
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
    fn sizes_are_written_as_client_go_writes_them() {
        assert_eq!(size(80, 24).encode(), "{\"Width\":80,\"Height\":24}\n");
    }

    #[test]
    fn sizes_are_read_as_go_reads_them() {
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
    fn what_is_kept_has_a_bound() {
        let mut sizes = ResizeDecoder::default();
        let endless = [b"{\"x\":\"".to_vec(), vec![b'a'; 1 << 20]].concat();
        assert_eq!(sizes.push(&endless), Err(ResizeError));
        assert!(sizes.0.capacity() < 8 * LONGEST);
        assert_eq!(
            ResizeDecoder::default().push(&vec![b' '; 1 << 20]),
            Ok(None)
        );
    }

    proptest! {
        #[test]
        fn sizes_need_not_come_in_messages(all: Vec<(u16, u16)>, cut in 1..40usize) {
            let wire: Vec<u8> = all.iter().flat_map(|(w, h)| size(*w, *h).encode()).collect();
            let (mut sizes, mut last) = (ResizeDecoder::default(), None);
            for chunk in wire.chunks(cut) {
                last = sizes.push(chunk).unwrap().or(last);
            }
            prop_assert_eq!(last, all.last().map(|(w, h)| size(*w, *h)));
        }
    }
}

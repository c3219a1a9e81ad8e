//! `DATA`: bytes of a stream.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{Fin, HEAD_BYTES, StreamId};

/// The largest length that 24 bits can express.
pub(crate) const MAX_DATA_BYTES: usize = (1 << 24) - 1;

/// Bytes of a stream. A decoded one may be a part of the sent frame: the decoder does not wait
/// for the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// The stream.
    pub stream: StreamId,
    /// Whether these are the last bytes of the sender.
    pub fin: Fin,
    /// The bytes.
    pub payload: Bytes,
}

/// The head of a data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataHead {
    pub(crate) stream: StreamId,
    pub(crate) fin: Fin,
    /// At most [`MAX_DATA_BYTES`].
    pub(crate) length: usize,
}

impl DataHead {
    pub(crate) fn encode(self) -> [u8; HEAD_BYTES] {
        let [a, b, c, d] = self.stream.get().to_be_bytes();
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        let [_, high, middle, low] = length.to_be_bytes();
        [a, b, c, d, self.fin.flags(), high, middle, low]
    }
}

impl Data {
    /// Appends the bytes, in as many frames as needed.
    pub fn encode(&self, out: &mut BytesMut) {
        let mut rest = &self.payload[..];
        loop {
            let (chunk, after) = rest.split_at(rest.len().min(MAX_DATA_BYTES));
            let head = DataHead {
                stream: self.stream,
                fin: if after.is_empty() { self.fin } else { Fin::No },
                length: chunk.len(),
            };
            out.put_slice(&head.encode());
            out.put_slice(chunk);
            rest = after;
            if rest.is_empty() {
                return;
            }
        }
    }
}

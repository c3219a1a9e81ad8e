//! Whole messages out of chunks.

use bytes::{Bytes, BytesMut};

use crate::decode::MessageChunk;
use crate::frame::MessageKind;

/// Puts chunks together. It holds up to [`Limits::message`](crate::Limits)
/// bytes; a message that came in one chunk is passed on without being copied.
#[derive(Debug, Default)]
pub struct Assembly(BytesMut);

impl Assembly {
    /// Takes the next chunk, and gives the message that is whole with it.
    pub fn push(&mut self, chunk: MessageChunk) -> Option<(MessageKind, Bytes)> {
        if chunk.is_first && chunk.is_last {
            return Some((chunk.kind, chunk.bytes));
        }
        self.0.extend_from_slice(&chunk.bytes);
        chunk
            .is_last
            .then(|| (chunk.kind, std::mem::take(&mut self.0).freeze()))
    }
}

//! Assembles messages from chunks.

use bytes::{Bytes, BytesMut};

use crate::decode::MessageChunk;
use crate::frame::MessageKind;

/// Joins the chunks of a message. It buffers up to [`Limits::message`](crate::Limits) bytes; a
/// message in one chunk is not copied.
#[derive(Debug, Default)]
pub struct Assembly(BytesMut);

impl Assembly {
    /// Adds a chunk, and returns the message if it is complete.
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

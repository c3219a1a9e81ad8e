//! A queue of bytes that keeps the chunks in which they were received.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

/// Chunks below this size are joined: many small ones would cost more than their bytes, and
/// each would keep a whole read buffer alive.
const JOIN_BELOW_BYTES: usize = 2 * 1024;

/// A queue of bytes. Large chunks are kept as they are, small ones are joined.
#[derive(Debug, Default)]
pub(crate) struct BytesList {
    chunks: VecDeque<Bytes>,
    /// Small chunks, after all others.
    joined: BytesMut,
    bytes: usize,
}

impl BytesList {
    /// How many bytes are queued.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        self.bytes += chunk.len();
        let is_first = self.bytes == chunk.len();
        if chunk.len() < JOIN_BELOW_BYTES && !is_first {
            self.joined.extend_from_slice(&chunk);
            if self.joined.len() >= JOIN_BELOW_BYTES {
                self.chunks.push_back(self.joined.split().freeze());
            }
        } else {
            if !self.joined.is_empty() {
                self.chunks.push_back(self.joined.split().freeze());
            }
            self.chunks.push_back(chunk);
        }
    }

    /// Takes the first chunk, or up to `limit` bytes of it.
    pub(crate) fn pop(&mut self, limit: usize) -> Option<Bytes> {
        let Some(first) = self.chunks.front_mut() else {
            if self.joined.is_empty() || limit == 0 {
                return None;
            }
            let length = self.joined.len().min(limit);
            self.bytes -= length;
            return Some(self.joined.split_to(length).freeze());
        };
        if first.len() > limit {
            if limit == 0 {
                return None;
            }
            self.bytes -= limit;
            let chunk = first.slice(..limit);
            first.advance(limit);
            return Some(chunk);
        }
        let chunk = self.chunks.pop_front();
        self.bytes -= chunk.as_ref().map_or(0, Bytes::len);
        chunk
    }

    /// Discards everything; returns how many bytes that was.
    pub(crate) fn clear(&mut self) -> usize {
        self.chunks = VecDeque::new();
        self.joined = BytesMut::new();
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_small_chunks_are_joined() {
        let mut list = BytesList::default();
        for _ in 0..100_000 {
            list.push(Bytes::from_static(b"x"));
        }
        assert!(list.chunks.len() < 60, "{}", list.chunks.len());
        assert_eq!(list.bytes(), 100_000);
        assert_eq!(list.clear(), 100_000);
        assert_eq!(list.pop(1), None);
    }

    #[test]
    fn a_single_chunk_is_not_copied() {
        let mut list = BytesList::default();
        let chunk = Bytes::from(vec![7; 3]);
        list.push(chunk.clone());
        assert_eq!(list.pop(usize::MAX).unwrap().as_ptr(), chunk.as_ptr());
        assert!(list.is_empty());
    }

    proptest! {
        #[test]
        fn bytes_are_returned_in_order(
            steps in proptest::collection::vec((0usize..5000, 0usize..6000), 0..60)
        ) {
            let mut list = BytesList::default();
            let (mut pushed, mut popped) = (Vec::new(), Vec::new());
            for (index, (push, limit)) in steps.into_iter().enumerate() {
                let chunk = vec![u8::try_from(index).unwrap(); push];
                pushed.extend_from_slice(&chunk);
                list.push(chunk.into());
                if let Some(chunk) = list.pop(limit) {
                    prop_assert!(chunk.len() <= limit && !chunk.is_empty());
                    popped.extend_from_slice(&chunk);
                }
                prop_assert_eq!(list.bytes(), pushed.len() - popped.len());
            }
            while let Some(chunk) = list.pop(usize::MAX) {
                popped.extend_from_slice(&chunk);
            }
            prop_assert_eq!(pushed, popped);
        }
    }
}

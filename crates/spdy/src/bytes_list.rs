//! Bytes that wait, as the pieces in which they came.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

/// BytesList below this are put together while they wait, or many small ones would
/// cost more than their bytes, and each keep a whole read buffer alive.
const JOIN_BELOW_BYTES: usize = 2 * 1024;

/// A queue of bytes. Large pieces stay what they are, small ones are joined.
#[derive(Debug, Default)]
pub(crate) struct BytesList {
    whole: VecDeque<Bytes>,
    /// Small pieces, behind all the others.
    joined: BytesMut,
    bytes: usize,
}

impl BytesList {
    /// How many bytes wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.bytes += piece.len();
        let is_first = self.bytes == piece.len();
        if piece.len() < JOIN_BELOW_BYTES && !is_first {
            self.joined.extend_from_slice(&piece);
            if self.joined.len() >= JOIN_BELOW_BYTES {
                self.whole.push_back(self.joined.split().freeze());
            }
        } else {
            if !self.joined.is_empty() {
                self.whole.push_back(self.joined.split().freeze());
            }
            self.whole.push_back(piece);
        }
    }

    /// Takes the first piece, or as much of it as `most`.
    pub(crate) fn pop(&mut self, most: usize) -> Option<Bytes> {
        let Some(first) = self.whole.front_mut() else {
            if self.joined.is_empty() || most == 0 {
                return None;
            }
            let length = self.joined.len().min(most);
            self.bytes -= length;
            return Some(self.joined.split_to(length).freeze());
        };
        if first.len() > most {
            if most == 0 {
                return None;
            }
            self.bytes -= most;
            let piece = first.slice(..most);
            first.advance(most);
            return Some(piece);
        }
        let piece = self.whole.pop_front();
        self.bytes -= piece.as_ref().map_or(0, Bytes::len);
        piece
    }

    /// Throws away all that waits; gives how much it was.
    pub(crate) fn clear(&mut self) -> usize {
        self.whole = VecDeque::new();
        self.joined = BytesMut::new();
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_small_pieces_become_few() {
        let mut pieces = BytesList::default();
        for _ in 0..100_000 {
            pieces.push(Bytes::from_static(b"x"));
        }
        assert!(pieces.whole.len() < 60, "{}", pieces.whole.len());
        assert_eq!(pieces.bytes(), 100_000);
        assert_eq!(pieces.clear(), 100_000);
        assert_eq!(pieces.pop(1), None);
    }

    #[test]
    fn a_single_piece_is_not_copied() {
        let mut pieces = BytesList::default();
        let piece = Bytes::from(vec![7; 3]);
        pieces.push(piece.clone());
        assert_eq!(pieces.pop(usize::MAX).unwrap().as_ptr(), piece.as_ptr());
        assert!(pieces.is_empty());
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(
            steps in proptest::collection::vec((0usize..5000, 0usize..6000), 0..60)
        ) {
            let mut pieces = BytesList::default();
            let (mut pushed, mut popped) = (Vec::new(), Vec::new());
            for (index, (push, most)) in steps.into_iter().enumerate() {
                let piece = vec![u8::try_from(index).unwrap(); push];
                pushed.extend_from_slice(&piece);
                pieces.push(piece.into());
                if let Some(piece) = pieces.pop(most) {
                    prop_assert!(piece.len() <= most && !piece.is_empty());
                    popped.extend_from_slice(&piece);
                }
                prop_assert_eq!(pieces.bytes(), pushed.len() - popped.len());
            }
            while let Some(piece) = pieces.pop(usize::MAX) {
                popped.extend_from_slice(&piece);
            }
            prop_assert_eq!(pushed, popped);
        }
    }
}

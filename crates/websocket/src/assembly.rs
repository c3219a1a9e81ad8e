//! Whole messages out of pieces.

use bytes::{Bytes, BytesMut};

use crate::decode::Piece;
use crate::frame::Kind;

/// Puts pieces together. It holds up to [`Limits::message`](crate::Limits)
/// bytes; a message that came in one piece is passed on without being copied.
#[derive(Debug, Default)]
pub struct Assembly(BytesMut);

impl Assembly {
    /// Takes the next piece, and gives the message that is whole with it.
    pub fn piece(&mut self, piece: Piece) -> Option<(Kind, Bytes)> {
        if piece.starts && piece.ends {
            return Some((piece.kind, piece.bytes));
        }
        self.0.extend_from_slice(&piece.bytes);
        piece
            .ends
            .then(|| (piece.kind, std::mem::take(&mut self.0).freeze()))
    }
}

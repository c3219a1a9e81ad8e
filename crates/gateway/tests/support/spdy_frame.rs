//! Raw SPDY frames.

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The type of a PING (SPDY/3.1, 2.6.5).
pub(crate) const PING: u16 = 6;

/// A raw frame.
pub(crate) struct Frame(pub(crate) Vec<u8>);

impl Frame {
    pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut frame = vec![0; 8];
        io.read_exact(&mut frame).await.ok()?;
        let length = u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize;
        frame.resize(8 + length, 0);
        io.read_exact(&mut frame[8..]).await.ok()?;
        Some(Self(frame))
    }

    /// The type of a control frame; `None` for data.
    pub(crate) fn control_type(&self) -> Option<u16> {
        let kind = u16::from_be_bytes([self.0[2], self.0[3]]);
        (self.0[0] & 0x80 != 0).then_some(kind)
    }
}

//! Errors of a connection or of one of its streams.

use std::io;
use std::sync::Arc;

use crate::frame::{FrameError, GoAwayStatus, MalformedFrame, ResetStatus};
use crate::header_block::HeaderBlockError;

/// Why a connection failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The remote does not use SPDY/3.
    #[error("SPDY version {0} is not supported")]
    Version(u16),
    /// A malformed frame.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    /// It ended inside a frame.
    #[error("the connection ended inside a frame")]
    UnexpectedEof,
    /// Headers that cannot be decoded or encoded.
    #[error(transparent)]
    Headers(#[from] HeaderBlockError),
    /// The remote violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The byte stream failed.
    #[error("connection failed: {0}")]
    Io(Arc<io::Error>),
}

impl From<MalformedFrame> for Error {
    fn from(MalformedFrame(what): MalformedFrame) -> Self {
        Self::Malformed(what)
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Malformed(malformed) => malformed.into(),
            FrameError::Headers(error) => error.into(),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Why a connection has ended, as its streams see it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Closed {
    /// The remote ended it between two frames, before the stream had ended.
    #[error("the other side ended the connection")]
    Remote,
    /// The remote ended it after a `GOAWAY`.
    #[error("the remote sent GOAWAY ({0:?})")]
    GoAway(GoAwayStatus),
    /// It was closed locally.
    #[error("the connection was closed")]
    Local,
    /// It failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Why a stream failed. Others may continue.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamError {
    /// The remote refused the stream, or sent a `GOAWAY` before it handled it: nothing has
    /// happened, and a retry is safe.
    #[error("the other side refused the stream")]
    Refused,
    /// The remote reset it.
    #[error("the other side reset the stream ({0:?})")]
    ResetByRemote(ResetStatus),
    /// It was reset locally.
    #[error("the stream was reset ({0:?})")]
    ResetLocally(ResetStatus),
    /// Its writing half was finished.
    #[error("the stream takes no more data")]
    Finished,
    /// The headers cannot be sent.
    #[error(transparent)]
    Headers(#[from] HeaderBlockError),
    /// The connection ended before the stream.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Why no stream can be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// The limit of either side is reached.
    #[error("too many streams on one connection")]
    TooMany,
    /// The remote accepts no more streams, or the connection is about to close.
    #[error("the connection takes no more streams")]
    GoingAway,
    /// The headers cannot be sent.
    #[error(transparent)]
    Headers(#[from] HeaderBlockError),
    /// The connection has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
}

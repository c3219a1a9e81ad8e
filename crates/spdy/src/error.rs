//! What can go wrong, and for whom: a connection or one of its streams.

use std::io;
use std::sync::Arc;

use crate::frame::{GoAwayStatus, MalformedFrame, ResetStatus};
use crate::header_block::HeaderBlockError;

/// Why a connection cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The other side does not speak SPDY/3.
    #[error("SPDY version {0} is not spoken here")]
    Version(u16),
    /// A frame that is none.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    /// It ended where it must not.
    #[error("the connection ended inside a frame")]
    UnexpectedEof,
    /// Headers that cannot be read or written.
    #[error(transparent)]
    Headers(#[from] HeaderBlockError),
    /// The other side broke a rule.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// What carries the frames failed.
    #[error("connection failed: {0}")]
    Io(Arc<io::Error>),
}

impl From<MalformedFrame> for Error {
    fn from(MalformedFrame(what): MalformedFrame) -> Self {
        Self::Malformed(what)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Why a connection is over, as its streams see it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Closed {
    /// It ended where a frame may end, though this stream had not.
    #[error("the other side ended the connection")]
    Remote,
    /// It ended after a `GOAWAY`.
    #[error("the other side went away ({0:?})")]
    GoAway(GoAwayStatus),
    /// It was ended here.
    #[error("the connection was closed")]
    Local,
    /// It failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Why a stream cannot go on. Others may.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamError {
    /// The other side refused to begin it, or went away before it looked: nothing
    /// has on_event, and it is safe to try again.
    #[error("the other side refused the stream")]
    Refused,
    /// The other side ended it.
    #[error("the other side reset the stream ({0:?})")]
    ResetByRemote(ResetStatus),
    /// It was ended here.
    #[error("the stream was reset ({0:?})")]
    ResetLocally(ResetStatus),
    /// Its writing half is finished.
    #[error("the stream takes no more data")]
    Finished,
    /// The headers cannot be sent.
    #[error(transparent)]
    Headers(#[from] HeaderBlockError),
    /// The connection is over before the stream was.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Why no stream can be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// As many are open as either side allows.
    #[error("too many streams on one connection")]
    TooMany,
    /// The other side takes no more, or the connection is about to end.
    #[error("the connection takes no more streams")]
    GoingAway,
    /// The headers cannot be sent.
    #[error(transparent)]
    Headers(#[from] HeaderBlockError),
    /// The connection is over.
    #[error(transparent)]
    Closed(#[from] Closed),
}

//! Decodes the messages of a WebSocket into channel events.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use skewbridge_websocket::MessageChunk;

use crate::base64_text::{Base64Text, InvalidBase64};
use crate::channel::{ChannelId, Input, Output};
use crate::protocol::{Encoding, Protocol};

/// Replaces the channel number and closes the channel that the next byte names.
pub(crate) const CLOSE_SIGNAL: u8 = 255;

/// What the other end sent on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelEvent<C> {
    /// Data. It may be empty: a message without data, such as the first one of a server.
    Data(C, Bytes),
    /// The channel is closed: no data follows.
    Closed(C),
}

/// A message that the protocol does not allow. Kubernetes ends the connection as well, except
/// for invalid base64, which it drops, so that input is lost without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    /// A close signal does not name exactly one channel, in one byte.
    #[error("a close signal that does not name exactly one channel")]
    CloseSignal,
    /// A close signal names an unknown channel.
    #[error("a close signal for the unknown channel {0}")]
    CloseUnknown(u8),
    /// A message of a text protocol is not base64.
    #[error("a message that is not base64")]
    Base64,
}

impl From<InvalidBase64> for ReaderError {
    fn from(InvalidBase64: InvalidBase64) -> Self {
        Self::Base64
    }
}

/// Reads the messages of a client.
pub type FromClient = Reader<Input>;

/// Reads the messages of a server.
pub type FromServer = Reader<Output>;

/// Reads the messages of one end. Messages may arrive in chunks, and are neither buffered nor
/// copied (except to decode base64).
///
/// Text and binary messages are treated alike, as Kubernetes does. Data for a channel of the
/// other direction is dropped, and so is data on a closed channel.
#[derive(Debug)]
pub struct Reader<C> {
    encoding: Encoding,
    has_close_signal: bool,
    state: State,
    /// A bit for each closed channel. Only the first few can be closed.
    closed: u8,
    channels: PhantomData<C>,
}

#[derive(Debug)]
enum State {
    /// Before the first byte of a message.
    Number,
    Data {
        number: u8,
        text: Base64Text,
        /// No event was returned for this message yet.
        empty: bool,
    },
    /// After the close signal.
    Closing,
    /// After the number of the channel to close.
    Closed(u8),
}

impl<C: ChannelId> Reader<C> {
    /// Reads messages of this protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            encoding: protocol.encoding(),
            has_close_signal: protocol.version().has_close_signal() && C::CLOSABLE,
            state: State::Number,
            closed: 0,
            channels: PhantomData,
        }
    }

    /// Decodes the next chunk of a message.
    pub fn read_chunk(
        &mut self,
        chunk: MessageChunk,
    ) -> Result<Option<ChannelEvent<C>>, ReaderError> {
        let mut bytes = chunk.bytes;
        if chunk.is_first {
            self.state = State::Number;
        }
        if matches!(self.state, State::Number) && !bytes.is_empty() {
            self.state = self.begin(bytes.get_u8());
        }
        if matches!(self.state, State::Closing) && !bytes.is_empty() {
            self.state = State::Closed(bytes.get_u8());
        }
        match &mut self.state {
            State::Closing if chunk.is_last => Err(ReaderError::CloseSignal),
            State::Closed(_) if !bytes.is_empty() => Err(ReaderError::CloseSignal),
            State::Closed(number) if chunk.is_last => {
                let number = *number;
                if number >= C::CHANNEL_COUNT {
                    return Err(ReaderError::CloseUnknown(number));
                }
                Ok(self.close(number).map(ChannelEvent::Closed))
            }
            // No event yet, or an empty message.
            State::Number | State::Closing | State::Closed(_) => Ok(None),
            State::Data {
                number,
                text,
                empty,
            } => {
                let Some(channel) = C::from_number(*number) else {
                    return Ok(None);
                };
                if self.closed & bit(*number) != 0 {
                    return Ok(None);
                }
                if self.encoding == Encoding::Base64 {
                    bytes = text.push(&bytes)?;
                    if chunk.is_last {
                        text.end()?;
                    }
                }
                if bytes.is_empty() && !(chunk.is_last && *empty) {
                    return Ok(None);
                }
                *empty = false;
                Ok(Some(ChannelEvent::Data(channel, bytes)))
            }
        }
    }

    fn begin(&self, first: u8) -> State {
        if self.has_close_signal && first == CLOSE_SIGNAL {
            return State::Closing;
        }
        let number = match self.encoding {
            Encoding::Binary => first,
            Encoding::Base64 => first.wrapping_sub(b'0'),
        };
        State::Data {
            number,
            text: Base64Text::default(),
            empty: true,
        }
    }

    /// A client may close only channels that it writes. As in Kubernetes, other close signals
    /// and repeated ones are ignored.
    fn close(&mut self, number: u8) -> Option<C> {
        let channel = C::from_number(number)?;
        let before = self.closed;
        self.closed |= bit(number);
        (self.closed != before).then_some(channel)
    }
}

/// Channels that can be closed have numbers below eight.
fn bit(number: u8) -> u8 {
    1u8.checked_shl(number.into()).unwrap_or_default()
}

#[cfg(test)]
mod tests;

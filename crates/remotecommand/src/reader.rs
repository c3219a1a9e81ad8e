//! Messages of a WebSocket, taken apart by channel.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use skewbridge_websocket::MessageChunk;

use crate::base64_text::{Base64Text, Invalid};
use crate::channel::{ChannelId, Input, Output};
use crate::protocol::{Encoding, Protocol};

/// Stands where the number of a channel does, and says that the channel in the
/// next byte is closed.
pub(crate) const CLOSE_SIGNAL: u8 = 255;

/// What the other end says on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelEvent<C> {
    /// Some bytes, or none: a message without data, such as the first one of a
    /// server.
    Data(C, Bytes),
    /// Nothing follows on that channel.
    Closed(C),
}

/// What the other end may not say. Kubernetes ends the connection as well,
/// except for text that is not base64, which it drops: input that is lost in
/// silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    /// It names one channel, in one byte.
    #[error("a signal to close that does not name one channel")]
    CloseSignal,
    /// It names a channel that there is not.
    #[error("a signal to close channel {0}")]
    CloseUnknown(u8),
    /// A message of a text protocol is not base64.
    #[error("a message that is not base64")]
    Base64,
}

impl From<Invalid> for ReaderError {
    fn from(Invalid: Invalid) -> Self {
        Self::Base64
    }
}

/// Reads what a client says.
pub type FromClient = Reader<Input>;

/// Reads what a server says.
pub type FromServer = Reader<Output>;

/// Reads the messages of one end. Messages may come in chunks, and nothing of
/// them is kept or copied (base64 is, to decode it).
///
/// Whether messages are text or binary does not matter, as it does not to
/// Kubernetes. What is for no channel of this direction is dropped, and so is
/// what follows on a channel that was closed.
#[derive(Debug)]
pub struct Reader<C> {
    encoding: Encoding,
    closes: bool,
    state: State,
    /// Numbers of channels that are closed, as bits. Only the first few can be.
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
        /// Nothing has been given of this message.
        empty: bool,
    },
    /// After the signal.
    Closing,
    /// After the number of the channel to close.
    Closed(u8),
}

impl<C: ChannelId> Reader<C> {
    /// Reads what is said in this protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            encoding: protocol.encoding(),
            closes: protocol.version().has_close_signal() && C::CLOSABLE,
            state: State::Number,
            closed: 0,
            channels: PhantomData,
        }
    }

    /// Takes the next chunk of a message.
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
                if number >= C::NUMBERS {
                    return Err(ReaderError::CloseUnknown(number));
                }
                Ok(self.close(number).map(ChannelEvent::Closed))
            }
            // Nothing yet, or an empty message.
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
        if self.closes && first == CLOSE_SIGNAL {
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

    /// A channel that the other end only reads is not its to close: to
    /// Kubernetes that means nothing, nor does a second time.
    fn close(&mut self, number: u8) -> Option<C> {
        let channel = C::from_number(number)?;
        let before = self.closed;
        self.closed |= bit(number);
        (self.closed != before).then_some(channel)
    }
}

/// Numbers of channels that can be closed are below eight.
fn bit(number: u8) -> u8 {
    1u8.checked_shl(number.into()).unwrap_or_default()
}

#[cfg(test)]
mod tests;

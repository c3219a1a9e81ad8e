//! gRPC framing without I/O: a flag for compression, the length in four bytes, the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// The largest message that is sent or received, without its prefix. etcd accepts requests up to
/// 1.5 MiB and splits watch responses at 2 MiB; a listing may be larger, but 4 MiB are enough for
/// many thousands of bridges.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Flag and length.
const PREFIX_BYTES: usize = 5;

/// Why bytes are not valid messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a message of {0} bytes, more than {MAX_MESSAGE_BYTES}")]
    TooLarge(u32),
    #[error("an unexpected compressed message")]
    Compressed,
    #[error("the stream ends inside a message")]
    UnexpectedEof,
}

/// A message of this size is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Oversized(pub(crate) usize);

/// Encodes a message in its frame.
pub(crate) fn encode(message: &impl Message) -> Result<Bytes, Oversized> {
    let length = message.encoded_len();
    let prefix = match u32::try_from(length) {
        Ok(prefix) if length <= MAX_MESSAGE_BYTES => prefix,
        _ => return Err(Oversized(length)),
    };
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(prefix);
    message.encode_raw(&mut frame);
    Ok(frame.freeze())
}

/// Decodes messages from bytes in any chunks.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds bytes. The caller takes all messages before it adds more, so at most one message
    /// and one chunk are buffered.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next message, if it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some((prefix, _)) = self.buffer.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *prefix;
        if compressed != 0 {
            return Err(FrameError::Compressed);
        }
        let announced = u32::from_be_bytes(length);
        let length = match usize::try_from(announced) {
            Ok(length) if length <= MAX_MESSAGE_BYTES => length,
            _ => return Err(FrameError::TooLarge(announced)),
        };
        if self.buffer.len() < PREFIX_BYTES + length {
            self.buffer
                .reserve(PREFIX_BYTES + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(PREFIX_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Whether the stream may end here.
    pub(crate) fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(FrameError::UnexpectedEof)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::messages::PutRequest;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    fn put(value: Vec<u8>) -> PutRequest {
        PutRequest {
            key: "k".into(),
            value: value.into(),
            lease: 0,
        }
    }

    #[test]
    fn a_too_large_message_is_rejected_by_its_prefix() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0x00, 0x40, 0x00, 0x01]);
        assert_eq!(decoder.next(), Err(FrameError::TooLarge(4_194_305)));
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0x00, 0x40, 0x00, 0x00]);
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn a_compressed_message_is_rejected() {
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 0]);
        assert_eq!(decoder.next(), Err(FrameError::Compressed));
    }

    #[test]
    fn a_stream_that_ends_inside_a_message_is_an_error() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.finish(), Ok(()));
        decoder.push(&[0, 0]);
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.finish(), Err(FrameError::UnexpectedEof));
    }

    #[test]
    fn a_too_large_message_is_not_sent() {
        assert!(encode(&put(vec![0; MAX_MESSAGE_BYTES - 100])).is_ok());
        assert!(encode(&put(vec![0; MAX_MESSAGE_BYTES])).is_err());
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_messages(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bytes = framed(&messages);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for pair in cuts.windows(2) {
                decoder.push(&bytes[pair[0]..pair[1]]);
                while let Some(message) = decoder.next().unwrap() {
                    seen.push(message.to_vec());
                }
            }
            prop_assert_eq!(seen, messages);
            prop_assert_eq!(decoder.finish(), Ok(()));
        }

        #[test]
        fn encoded_messages_are_decoded(value in prop::collection::vec(any::<u8>(), 0..200)) {
            let sent = put(value);
            let mut decoder = Decoder::default();
            decoder.push(&encode(&sent).unwrap());
            let message = decoder.next().unwrap().unwrap();
            prop_assert_eq!(PutRequest::decode(message).unwrap(), sent);
        }

        #[test]
        fn arbitrary_bytes_never_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8)) {
            let mut decoder = Decoder::default();
            'chunks: for chunk in chunks {
                decoder.push(&chunk);
                loop {
                    match decoder.next() {
                        Ok(Some(message)) => { let _ = crate::messages::WatchResponse::decode(message); }
                        Ok(None) => break,
                        Err(_) => break 'chunks,
                    }
                }
            }
        }
    }
}

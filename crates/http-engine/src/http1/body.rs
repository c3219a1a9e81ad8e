//! Message bodies: framing, and an incremental decoder.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::line_ending::has_bare_lf;

/// Maximum length of a chunk size line, extensions included. Extensions are ignored; Kubernetes
/// clients and servers send none.
const MAX_CHUNK_LINE_BYTES: usize = 256;

/// Maximum size of the trailer section. It is parsed again for each received chunk, so it is small;
/// Kubernetes clients and servers send at most one field.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

const MAX_TRAILER_FIELDS: usize = 64;

/// How the end of a body is marked (RFC 9112, 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Empty,
    /// `Content-Length`
    Length(u64),
    /// `Transfer-Encoding: chunked`
    Chunked,
    /// A response that ends with its connection.
    UntilClose,
}

impl Framing {
    /// A decoder for a body with this framing.
    pub fn decoder(self) -> Decoder {
        Decoder(match self {
            Self::Empty => State::Done,
            Self::Length(length) => State::Length(length),
            Self::Chunked => State::ChunkSize,
            Self::UntilClose => State::UntilClose,
        })
    }
}

/// Decodes a body.
#[derive(Debug)]
pub struct Decoder(State);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    UntilClose,
    Done,
}

/// A decoded part of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyEvent {
    /// A part of the data, never empty.
    Data(Bytes),
    /// Fields after the last chunk; the body is complete.
    Trailers(HeaderMap),
    /// The body is complete.
    End,
}

/// Why a body is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// A malformed chunk.
    #[error("malformed chunked body: {0}")]
    Chunk(&'static str),
    /// The connection ended before the body did.
    #[error("the connection ended before the body was complete")]
    Incomplete,
}

impl Decoder {
    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.0 == State::Done
    }

    /// The bytes that are still to come, where that is known.
    pub fn remaining(&self) -> Option<u64> {
        match self.0 {
            State::Length(left) => Some(left),
            State::Done => Some(0),
            _ => None,
        }
    }

    /// Decodes the next part from the front of `buffer`; `None` means that more bytes are needed.
    /// After [`BodyEvent::End`] or [`BodyEvent::Trailers`] every call returns `End`.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<BodyEvent>, FramingError> {
        loop {
            match self.0 {
                State::Done => return Ok(Some(BodyEvent::End)),
                State::Length(left) => {
                    let Some((data, left)) = take(buffer, left) else {
                        return Ok(None);
                    };
                    self.0 = if left == 0 {
                        State::Done
                    } else {
                        State::Length(left)
                    };
                    return Ok(Some(BodyEvent::Data(data)));
                }
                State::UntilClose => {
                    return Ok(
                        (!buffer.is_empty()).then(|| BodyEvent::Data(buffer.split().freeze()))
                    );
                }
                State::ChunkSize => {
                    let Some(size) = chunk_size(buffer)? else {
                        return Ok(None);
                    };
                    self.0 = if size == 0 {
                        State::Trailers
                    } else {
                        State::ChunkData(size)
                    };
                }
                State::ChunkData(left) => {
                    let Some((data, left)) = take(buffer, left) else {
                        return Ok(None);
                    };
                    self.0 = if left == 0 {
                        State::ChunkEnd
                    } else {
                        State::ChunkData(left)
                    };
                    return Ok(Some(BodyEvent::Data(data)));
                }
                State::ChunkEnd => match buffer.get(..2) {
                    None => return Ok(None),
                    Some(b"\r\n") => {
                        let _ = buffer.split_to(2);
                        self.0 = State::ChunkSize;
                    }
                    Some(_) => return Err(FramingError::Chunk("a chunk longer than its size")),
                },
                State::Trailers => {
                    let Some(trailers) = trailers(buffer)? else {
                        return Ok(None);
                    };
                    self.0 = State::Done;
                    return Ok(Some(if trailers.is_empty() {
                        BodyEvent::End
                    } else {
                        BodyEvent::Trailers(trailers)
                    }));
                }
            }
        }
    }

    /// To be called at the end of the input: an error if the body is incomplete.
    pub fn end_of_input(&mut self) -> Result<(), FramingError> {
        match self.0 {
            State::Done | State::UntilClose => {
                self.0 = State::Done;
                Ok(())
            }
            _ => Err(FramingError::Incomplete),
        }
    }
}

fn take(buffer: &mut BytesMut, left: u64) -> Option<(Bytes, u64)> {
    if buffer.is_empty() {
        return None;
    }
    let length = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    Some((buffer.split_to(length).freeze(), left - length as u64))
}

fn chunk_size(buffer: &mut BytesMut) -> Result<Option<u64>, FramingError> {
    let window = &buffer[..buffer.len().min(MAX_CHUNK_LINE_BYTES)];
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        return if buffer.len() >= MAX_CHUNK_LINE_BYTES {
            Err(FramingError::Chunk("a chunk size line without an end"))
        } else {
            Ok(None)
        };
    };
    let line = window[..end]
        .strip_suffix(b"\r")
        .ok_or(FramingError::Chunk("a chunk size line without CR"))?;
    if line
        .iter()
        .any(|byte| byte.is_ascii_control() && *byte != b'\t')
    {
        return Err(FramingError::Chunk("a control byte in a chunk size line"));
    }
    let digits = line.split(|byte| *byte == b';').next().unwrap_or(line);
    let digits = digits.trim_ascii_end();
    // 15 hexadecimal digits cannot overflow u64.
    if digits.is_empty() || digits.len() > 15 {
        return Err(FramingError::Chunk("invalid chunk size"));
    }
    let mut size = 0;
    for digit in digits {
        let digit = char::from(*digit)
            .to_digit(16)
            .ok_or(FramingError::Chunk("invalid chunk size"))?;
        size = size * 16 + u64::from(digit);
    }
    let _ = buffer.split_to(end + 1);
    Ok(Some(size))
}

fn trailers(buffer: &mut BytesMut) -> Result<Option<HeaderMap>, FramingError> {
    if buffer.starts_with(b"\r\n") {
        let _ = buffer.split_to(2);
        return Ok(Some(HeaderMap::new()));
    }
    let invalid = FramingError::Chunk("invalid trailers");
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
    let (length, map) = match httparse::parse_headers(buffer, &mut fields).map_err(|_| invalid)? {
        httparse::Status::Partial if buffer.len() > MAX_TRAILER_BYTES => return Err(invalid),
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete((length, fields)) => {
            let mut map = HeaderMap::with_capacity(fields.len());
            for field in fields {
                let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| invalid)?;
                let value = HeaderValue::from_bytes(field.value).map_err(|_| invalid)?;
                map.append(name, value);
            }
            (length, map)
        }
    };
    let lines = buffer.split_to(length);
    if has_bare_lf(&lines) {
        return Err(invalid);
    }
    Ok(Some(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The events of `wire`, received in these chunks.
    fn decode(
        framing: Framing,
        pieces: &[&[u8]],
    ) -> Result<(Vec<u8>, HeaderMap, bool), FramingError> {
        let mut decoder = framing.decoder();
        let mut buffer = BytesMut::new();
        let (mut data, mut trailers) = (Vec::new(), HeaderMap::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while let Some(piece) = decoder.decode(&mut buffer)? {
                match piece {
                    BodyEvent::Data(bytes) => {
                        assert!(!bytes.is_empty());
                        data.extend_from_slice(&bytes);
                    }
                    BodyEvent::Trailers(map) => trailers = map,
                    BodyEvent::End => break,
                }
            }
        }
        Ok((data, trailers, decoder.is_done()))
    }

    #[test]
    fn a_body_ends_after_its_content_length() {
        let mut decoder = Framing::Length(3).decoder();
        let mut buffer = BytesMut::from("abcNEXT");
        assert_eq!(
            decoder.decode(&mut buffer),
            Ok(Some(BodyEvent::Data("abc".into())))
        );
        assert_eq!(decoder.decode(&mut buffer), Ok(Some(BodyEvent::End)));
        assert_eq!(&buffer[..], b"NEXT");
    }

    #[test]
    fn chunks_extensions_and_trailers_are_decoded() {
        let wire = b"4\r\nwiki\r\n5;name=value\r\npedia\r\n0\r\nGrpc-Status: 0\r\n\r\n";
        let (data, trailers, done) = decode(Framing::Chunked, &[wire]).unwrap();
        assert_eq!(data, b"wikipedia");
        assert_eq!(trailers["grpc-status"], "0");
        assert!(done);
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for wire in [
            &b"x\r\n"[..],
            b"\r\n",
            b"-1\r\n",
            b"+1\r\nx\r\n",
            b"0x1\r\nx\r\n",
            b"1\nx\r\n",
            b"1\r\nxx\r\n",
            b"1\r\nx\n\n0\r\n\r\n",
            b"ffffffffffffffff\r\n",
            b"1;a\rb\r\nx\r\n",
            b"1;a\0b\r\nx\r\n",
            b"1\r;a\r\nx\r\n",
            b"0\r\nbad trailer\r\n\r\n",
            b"0\r\nA: b\n\r\n",
        ] {
            assert!(decode(Framing::Chunked, &[wire]).is_err(), "{wire:?}");
        }
        let endless = vec![b'1'; MAX_CHUNK_LINE_BYTES];
        assert!(decode(Framing::Chunked, &[&endless]).is_err());
    }

    #[test]
    fn a_truncated_body_is_not_complete() {
        for framing in [Framing::Length(2), Framing::Chunked] {
            let mut decoder = framing.decoder();
            assert_eq!(decoder.end_of_input(), Err(FramingError::Incomplete));
        }
        assert_eq!(Framing::UntilClose.decoder().end_of_input(), Ok(()));
        assert_eq!(Framing::Empty.decoder().end_of_input(), Ok(()));
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_body(
            chunks in proptest::collection::vec(proptest::collection::vec(0u8.., 1..40), 0..8),
            cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let mut wire = BytesMut::new();
            let mut encoder = crate::http1::Encoder::Chunked;
            for chunk in &chunks {
                encoder.write_data(&mut wire, chunk).unwrap();
            }
            encoder.finish(&mut wire, None).unwrap();
            let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut < wire.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&wire[from..cut]);
                from = cut;
            }
            pieces.push(&wire[from..]);
            let (data, _, done) = decode(Framing::Chunked, &pieces).unwrap();
            prop_assert_eq!(data, chunks.concat());
            prop_assert!(done);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(0u8.., 0..512)) {
            let _ = decode(Framing::Chunked, &[&bytes]);
        }
    }
}

//! Compressed blocks of headers.
//!
//! All blocks of one direction of a connection are one zlib stream that begins
//! with the dictionary of SPDY/3, each flushed to a byte. So a block can be read
//! only after all blocks before it, and one that cannot be read ends the
//! connection.

use bytes::{BufMut as _, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::dictionary::DICTIONARY;
use crate::headers::Headers;

/// The largest block as it comes. Kubernetes sends less than 100 bytes.
pub const MAX_COMPRESSED_BYTES: usize = 16 * 1024;

/// The largest block when it is unpacked: zlib can make a thousand times as much
/// of what comes.
pub const MAX_BLOCK_BYTES: usize = 64 * 1024;

/// The largest block that is sent: one that is accepted even if it does not
/// compress.
pub const MAX_SENT_BYTES: usize = MAX_COMPRESSED_BYTES - 64;

/// How far back the compressor looks, as a power of two: just over the dictionary.
/// What is sent is small, and there is one compressor for each connection.
const WINDOW_BITS: u8 = 11;

/// Why a block of headers could not be written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderBlockError {
    /// More than a block may have.
    #[error("headers that are too large")]
    TooLarge,
    /// Not what zlib writes, or with another dictionary.
    #[error("headers that cannot be unpacked")]
    Compression,
    /// Unpacked, but not names and values.
    #[error("malformed headers: {0}")]
    Malformed(&'static str),
}

/// Packs the blocks of one direction.
#[derive(Debug)]
pub struct Compressor {
    stream: Compress,
    block: Vec<u8>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self::new()
    }
}

impl Compressor {
    /// The beginning of a direction.
    pub fn new() -> Self {
        let mut stream = Compress::new_with_window_bits(Compression::default(), true, WINDOW_BITS);
        // A dictionary is refused only after the first byte.
        let _ = stream.set_dictionary(&DICTIONARY);
        Self {
            stream,
            block: Vec::new(),
        }
    }

    /// Appends a block to `out`; what is too large is refused before any of it is
    /// packed.
    pub(crate) fn append(
        &mut self,
        headers: &Headers,
        out: &mut BytesMut,
    ) -> Result<(), HeaderBlockError> {
        if headers.block_bytes() > MAX_SENT_BYTES || headers.len() > crate::headers::MAX_HEADERS {
            return Err(HeaderBlockError::TooLarge);
        }
        self.block.clear();
        headers.encode(&mut self.block);
        // Bytes that do not compress grow by five for each 16 KiB, and the flush adds five.
        let mut packed = Vec::with_capacity(self.block.len() + 64);
        let before = self.stream.total_in();
        loop {
            let taken = usize::try_from(self.stream.total_in() - before).unwrap_or(usize::MAX);
            let rest = self.block.get(taken..).unwrap_or_default();
            self.stream
                .compress_vec(rest, &mut packed, FlushCompress::Sync)
                .map_err(|_| HeaderBlockError::Compression)?;
            // All is written when there was room for more.
            if packed.len() < packed.capacity() {
                break;
            }
            packed.reserve(256);
        }
        out.put_slice(&packed);
        Ok(())
    }
}

/// Unpacks the blocks of one direction.
#[derive(Debug)]
pub struct Decompressor {
    stream: Decompress,
    block: Vec<u8>,
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

impl Decompressor {
    /// The beginning of a direction.
    pub fn new() -> Self {
        Self {
            stream: Decompress::new(true),
            block: Vec::new(),
        }
    }

    /// Reads a block. A frame that has none at all has no headers.
    pub(crate) fn headers(&mut self, packed: &[u8]) -> Result<Headers, HeaderBlockError> {
        if packed.is_empty() {
            return Ok(Headers::new());
        }
        self.unpack(packed)?;
        Headers::parse(&self.block).map_err(HeaderBlockError::Malformed)
    }

    fn unpack(&mut self, mut packed: &[u8]) -> Result<(), HeaderBlockError> {
        self.block.clear();
        loop {
            // One byte more than allowed tells too much from just enough.
            let room = (MAX_BLOCK_BYTES + 1 - self.block.len()).min(4096);
            self.block.reserve(room);
            let (taken, given) = (self.stream.total_in(), self.stream.total_out());
            let result = self
                .stream
                .decompress_vec(packed, &mut self.block, FlushDecompress::Sync);
            let taken = usize::try_from(self.stream.total_in() - taken).unwrap_or(usize::MAX);
            packed = packed.get(taken..).unwrap_or_default();
            match result {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.stream
                        .set_dictionary(&DICTIONARY)
                        .map_err(|_| HeaderBlockError::Compression)?;
                    continue;
                }
                Ok(Status::Ok | Status::BufError) => {}
                // The stream lasts as long as the connection.
                Ok(Status::StreamEnd) | Err(_) => return Err(HeaderBlockError::Compression),
            }
            if self.block.len() > MAX_BLOCK_BYTES {
                return Err(HeaderBlockError::TooLarge);
            }
            let stands_still = taken == 0 && self.stream.total_out() == given;
            if stands_still || packed.is_empty() && self.block.len() < self.block.capacity() {
                break;
            }
        }
        if packed.is_empty() {
            Ok(())
        } else {
            Err(HeaderBlockError::Compression)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(compressor: &mut Compressor, headers: &Headers) -> Vec<u8> {
        let mut out = BytesMut::new();
        compressor.append(headers, &mut out).unwrap();
        out.to_vec()
    }

    #[test]
    fn the_dictionary_is_the_one_of_spdy_3() {
        let (mut low, mut high) = (1u32, 0u32);
        for byte in DICTIONARY {
            low = (low + u32::from(byte)) % 65521;
            high = (high + low) % 65521;
        }
        assert_eq!(high << 16 | low, 0xe3c6_a7c2);
        assert_eq!(DICTIONARY.len(), 1423);
    }

    #[test]
    fn blocks_share_one_context() {
        let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
        let headers = Headers::new().with("streamtype", "stdout");
        let first = packed(&mut compressor, &headers);
        let second = packed(&mut compressor, &headers);
        assert!(second.len() < first.len());
        assert_eq!(decompressor.headers(&first), Ok(headers.clone()));
        assert_eq!(decompressor.headers(&second), Ok(headers.clone()));
        // Without what came before it means nothing.
        assert!(Decompressor::new().headers(&second).is_err());
    }

    #[test]
    fn blocks_of_every_size_up_to_the_bound_come_through() {
        let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
        let mut noise = 1u32;
        for size in (0..5000).chain([10_000, MAX_SENT_BYTES - 13]) {
            let value: Vec<u8> = (0..size)
                .map(|_| {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    noise.to_be_bytes()[0] | 1
                })
                .collect();
            let headers = Headers::new().with("v", &value);
            let block = packed(&mut compressor, &headers);
            assert!(block.len() <= MAX_COMPRESSED_BYTES);
            assert_eq!(decompressor.headers(&block), Ok(headers), "{size}");
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_goes_off() {
        let mut bomb = Compress::new(Compression::best(), true);
        bomb.set_dictionary(&DICTIONARY).unwrap();
        let mut packed = Vec::with_capacity(MAX_COMPRESSED_BYTES);
        bomb.compress_vec(&vec![0; 8 << 20], &mut packed, FlushCompress::Sync)
            .unwrap();
        assert!(packed.len() < MAX_COMPRESSED_BYTES);
        let mut decompressor = Decompressor::new();
        assert_eq!(
            decompressor.headers(&packed),
            Err(HeaderBlockError::TooLarge)
        );
        assert!(decompressor.block.capacity() <= 2 * MAX_BLOCK_BYTES);
        let large = Headers::new().with("v", vec![b'v'; MAX_SENT_BYTES]);
        let mut compressor = Compressor::new();
        assert_eq!(
            compressor.append(&large, &mut BytesMut::new()),
            Err(HeaderBlockError::TooLarge)
        );
    }

    #[test]
    fn another_dictionary_or_the_end_of_the_stream_is_refused() {
        let mut other = Compress::new(Compression::best(), true);
        other.set_dictionary(b"another").unwrap();
        let mut packed = Vec::with_capacity(1024);
        other
            .compress_vec(&[0; 4], &mut packed, FlushCompress::Sync)
            .unwrap();
        assert!(Decompressor::new().headers(&packed).is_err());
        let mut finished = Compress::new(Compression::best(), true);
        let mut packed = Vec::with_capacity(1024);
        finished
            .compress_vec(&[0; 4], &mut packed, FlushCompress::Finish)
            .unwrap();
        assert!(Decompressor::new().headers(&packed).is_err());
    }
}

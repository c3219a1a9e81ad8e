//! Compressed header blocks.
//!
//! All blocks of one direction of a connection are one zlib stream that starts with the SPDY/3
//! dictionary, each flushed to a byte boundary. A block can therefore be decoded only after
//! all blocks before it, and one that cannot be decoded ends the connection.

use bytes::{BufMut as _, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::dictionary::DICTIONARY;
use crate::headers::Headers;

/// The largest compressed block. Kubernetes sends less than 100 bytes.
pub const MAX_COMPRESSED_BYTES: usize = 16 * 1024;

/// The largest decompressed block: zlib can expand a thousandfold.
pub const MAX_BLOCK_BYTES: usize = 64 * 1024;

/// The largest block that is sent: one that is accepted even if it does not compress.
pub const MAX_SENT_BYTES: usize = MAX_COMPRESSED_BYTES - 64;

/// The window of the compressor, as a power of two: just larger than the dictionary. Blocks
/// are small, and there is one compressor per connection.
const WINDOW_BITS: u8 = 11;

/// Why a header block could not be encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderBlockError {
    /// The block exceeds its limit.
    #[error("the headers are too large")]
    TooLarge,
    /// Not a zlib stream, or one with another dictionary.
    #[error("the headers cannot be decompressed")]
    Compression,
    /// The decompressed block is malformed.
    #[error("malformed headers: {0}")]
    Malformed(&'static str),
}

/// Compresses the blocks of one direction.
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
    /// Starts at the beginning of a connection.
    pub fn new() -> Self {
        let mut stream = Compress::new_with_window_bits(Compression::default(), true, WINDOW_BITS);
        // A dictionary is rejected only after the first byte.
        let _ = stream.set_dictionary(&DICTIONARY);
        Self {
            stream,
            block: Vec::new(),
        }
    }

    /// Appends a block to `out`; a block that is too large is rejected before any of it is
    /// compressed.
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
        // Incompressible data grows by five bytes for each 16 KiB, and the flush adds five.
        let mut compressed = Vec::with_capacity(self.block.len() + 64);
        let before = self.stream.total_in();
        loop {
            let taken = usize::try_from(self.stream.total_in() - before).unwrap_or(usize::MAX);
            let rest = self.block.get(taken..).unwrap_or_default();
            self.stream
                .compress_vec(rest, &mut compressed, FlushCompress::Sync)
                .map_err(|_| HeaderBlockError::Compression)?;
            // Everything is written if the buffer was not filled.
            if compressed.len() < compressed.capacity() {
                break;
            }
            compressed.reserve(256);
        }
        out.put_slice(&compressed);
        Ok(())
    }
}

/// Decompresses the blocks of one direction.
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
    /// Starts at the beginning of a connection.
    pub fn new() -> Self {
        Self {
            stream: Decompress::new(true),
            block: Vec::new(),
        }
    }

    /// Decodes a block. A frame without a block has no headers.
    pub(crate) fn headers(&mut self, compressed: &[u8]) -> Result<Headers, HeaderBlockError> {
        if compressed.is_empty() {
            return Ok(Headers::new());
        }
        self.decompress(compressed)?;
        Headers::parse(&self.block).map_err(HeaderBlockError::Malformed)
    }

    fn decompress(&mut self, mut compressed: &[u8]) -> Result<(), HeaderBlockError> {
        self.block.clear();
        loop {
            // One byte more than allowed distinguishes too much from just enough.
            let room = (MAX_BLOCK_BYTES + 1 - self.block.len()).min(4096);
            self.block.reserve(room);
            let (taken, given) = (self.stream.total_in(), self.stream.total_out());
            let result =
                self.stream
                    .decompress_vec(compressed, &mut self.block, FlushDecompress::Sync);
            let taken = usize::try_from(self.stream.total_in() - taken).unwrap_or(usize::MAX);
            compressed = compressed.get(taken..).unwrap_or_default();
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
            let makes_no_progress = taken == 0 && self.stream.total_out() == given;
            if makes_no_progress
                || compressed.is_empty() && self.block.len() < self.block.capacity()
            {
                break;
            }
        }
        if compressed.is_empty() {
            Ok(())
        } else {
            Err(HeaderBlockError::Compression)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressed(compressor: &mut Compressor, headers: &Headers) -> Vec<u8> {
        let mut out = BytesMut::new();
        compressor.append(headers, &mut out).unwrap();
        out.to_vec()
    }

    #[test]
    fn the_dictionary_matches_spdy_3() {
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
        let first = compressed(&mut compressor, &headers);
        let second = compressed(&mut compressor, &headers);
        assert!(second.len() < first.len());
        assert_eq!(decompressor.headers(&first), Ok(headers.clone()));
        assert_eq!(decompressor.headers(&second), Ok(headers.clone()));
        // A block cannot be decoded without those before it.
        assert!(Decompressor::new().headers(&second).is_err());
    }

    #[test]
    fn blocks_of_every_size_up_to_the_limit_round_trip() {
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
            let block = compressed(&mut compressor, &headers);
            assert!(block.len() <= MAX_COMPRESSED_BYTES);
            assert_eq!(decompressor.headers(&block), Ok(headers), "{size}");
        }
    }

    #[test]
    fn a_decompression_bomb_is_rejected() {
        let mut bomb = Compress::new(Compression::best(), true);
        bomb.set_dictionary(&DICTIONARY).unwrap();
        let mut compressed = Vec::with_capacity(MAX_COMPRESSED_BYTES);
        bomb.compress_vec(&vec![0; 8 << 20], &mut compressed, FlushCompress::Sync)
            .unwrap();
        assert!(compressed.len() < MAX_COMPRESSED_BYTES);
        let mut decompressor = Decompressor::new();
        assert_eq!(
            decompressor.headers(&compressed),
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
    fn another_dictionary_or_the_end_of_the_stream_is_rejected() {
        let mut other = Compress::new(Compression::best(), true);
        other.set_dictionary(b"another").unwrap();
        let mut compressed = Vec::with_capacity(1024);
        other
            .compress_vec(&[0; 4], &mut compressed, FlushCompress::Sync)
            .unwrap();
        assert!(Decompressor::new().headers(&compressed).is_err());
        let mut finished = Compress::new(Compression::best(), true);
        let mut compressed = Vec::with_capacity(1024);
        finished
            .compress_vec(&[0; 4], &mut compressed, FlushCompress::Finish)
            .unwrap();
        assert!(Decompressor::new().headers(&compressed).is_err());
    }
}

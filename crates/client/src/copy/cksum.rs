//! The checksum of POSIX's `cksum`, which every container with basic programs has.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// How much of a file is read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// CRC-32 with the most significant bit first, over the bytes and then their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cksum {
    crc: u32,
    length: u64,
}

const POLYNOMIAL: u32 = 0x04c1_1db7;

/// The CRC of each byte, followed by up to seven zero bytes: eight bytes are processed at a
/// time.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut add_byte = 0;
    let mut number = 0_u32;
    while add_byte < 256 {
        let mut crc = number << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ POLYNOMIAL
            };
            bit += 1;
        }
        tables[0][add_byte] = crc;
        add_byte += 1;
        number += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut add_byte = 0;
        while add_byte < 256 {
            let crc = tables[zeros - 1][add_byte];
            tables[zeros][add_byte] = (crc << 8) ^ tables[0][(crc >> 24) as usize];
            add_byte += 1;
        }
        zeros += 1;
    }
    tables
}

impl Cksum {
    /// The checksum of a file's prefix, if the file is long enough. Does not move the file
    /// position.
    pub(super) fn of(file: &File, length: u64) -> io::Result<Option<Self>> {
        let mut sum = Self::default();
        let is_long_enough = sum.add_file(file, length, || false)?;
        Ok(is_long_enough.then_some(sum))
    }

    /// Adds a file's prefix. Returns `false` if the file is too short, or if `should_stop`
    /// returned `true`.
    pub(super) fn add_file(
        &mut self,
        file: &File,
        length: u64,
        should_stop: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < length {
            let wanted = (length - at).min(CHUNK_BYTES as u64);
            let wanted = usize::try_from(wanted).unwrap_or(CHUNK_BYTES);
            let read = file.read_at(&mut chunk[..wanted], at)?;
            if read == 0 || should_stop() {
                return Ok(false);
            }
            self.add(&chunk[..read]);
            at += read as u64;
        }
        Ok(true)
    }

    /// How many bytes were added.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let [a, b, c, d] = self.crc.to_be_bytes();
            let at = |zeros: usize, add_byte: u8| TABLES[zeros][usize::from(add_byte)];
            self.crc = at(7, chunk[0] ^ a)
                ^ at(6, chunk[1] ^ b)
                ^ at(5, chunk[2] ^ c)
                ^ at(4, chunk[3] ^ d)
                ^ at(3, chunk[4])
                ^ at(2, chunk[5])
                ^ at(1, chunk[6])
                ^ at(0, chunk[7]);
        }
        for &add_byte in chunks.remainder() {
            self.add_byte(add_byte);
        }
    }

    fn add_byte(&mut self, add_byte: u8) {
        let copy_spec = (self.crc >> 24) as u8 ^ add_byte;
        self.crc = (self.crc << 8) ^ TABLES[0][usize::from(copy_spec)];
    }

    pub(super) fn finish(mut self) -> u32 {
        let mut length = self.length;
        while length > 0 {
            self.add_byte((length & 0xff) as u8);
            length >>= 8;
        }
        !self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_cksum() {
        // As printed by `cksum` of coreutils.
        let rows: [(&[u8], u32); 4] = [
            (b"", 4_294_967_295),
            (b"123456789", 930_766_865),
            (b"hello\n", 3_015_617_425),
            (&[0; 1000], 0),
        ];
        for (bytes, expected) in &rows[..3] {
            let mut sum = Cksum::default();
            sum.add(bytes);
            assert_eq!(sum.finish(), *expected, "{bytes:?}");
        }
        // Independent of the chunks.
        let (mut whole, mut split) = (Cksum::default(), Cksum::default());
        let bytes: Vec<u8> = (0..1000_u32).map(|it| (it * 7 % 251) as u8).collect();
        whole.add(&bytes);
        for chunk in bytes.chunks(13) {
            split.add(chunk);
        }
        assert_eq!(whole.finish(), split.finish());
    }
}

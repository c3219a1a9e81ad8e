//! A large file of which a part is already in the container: the rest is sent, after
//! the part is known to be right by its checksum, and so is the whole afterwards.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use super::cat;
use super::commands;
use super::container::{Container, Ended, ask};
use super::options::{Options, Preserve};
use super::tally::Tally;
use super::upload::{self, Way};

/// What is there of a file has to be worth two more commands.
const WORTH: u64 = 4 << 20;

/// How long the answer of `cksum` may be.
const ANSWER: u64 = 1 << 10;

/// Goes on with each large file of which a part is there, and notes those that are
/// whole then. Whatever goes wrong, a file that is not noted is sent again.
pub(super) async fn go_on(
    container: &dyn Container,
    from: &Path,
    way: &Way,
    there: &mut HashMap<Vec<u8>, (u64, i64)>,
    options: &Options,
) {
    let parts: Vec<_> = there
        .iter()
        .filter(|(_, (size, _))| *size >= WORTH)
        .map(|(name, (size, _))| (name.clone(), *size))
        .collect();
    for (name, part) in parts {
        if let Some(whole) = finish(container, from, way, &name, part, options).await {
            there.insert(name, whole);
        }
    }
}

async fn finish(
    container: &dyn Container,
    from: &Path,
    way: &Way,
    name: &[u8],
    part: u64,
    options: &Options,
) -> Option<(u64, i64)> {
    let path = upload::local(from, way, name)?;
    let status = path.symlink_metadata().ok()?;
    let size = status.len();
    if !status.is_file() || part >= size {
        return None;
    }
    let place = way.place(str::from_utf8(name).ok()?);
    let known = sum_of(&path, part).await?;
    if asked(container, commands::checksum(&place)).await? != (known, part) {
        return None;
    }
    let command = commands::append(&place, size);
    let tally = Arc::new(Tally::default());
    let (ended, _) = cat::send(container, command, &path, part, size, &tally)
        .await
        .ok()?;
    if ended != Ended::Well {
        return None;
    }
    let (mode, time) = match options.preserve {
        Preserve::Yes => (status.mode() & 0o7777, status.mtime()),
        Preserve::No => (0o644, 0),
    };
    let owner = (status.uid().into(), status.gid().into());
    let said = asked(container, commands::dress(&place, owner, mode, time)).await?;
    let whole = sum_of(&path, size).await?;
    // Its time counts as set, whether or not the container has a program for that.
    (said == (whole, size)).then_some((size, status.mtime()))
}

async fn asked(container: &dyn Container, command: Vec<String>) -> Option<(u32, u64)> {
    let answer = ask(container, command, ANSWER).await.ok()?;
    if answer.ended != Ended::Well {
        return None;
    }
    let text = String::from_utf8(answer.stdout).ok()?;
    let mut fields = text.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

async fn sum_of(path: &Path, length: u64) -> Option<u32> {
    let path = path.to_path_buf();
    let summing = tokio::task::spawn_blocking(move || {
        let mut sum = Sum::default();
        let read = cat::each_piece(&path, 0, length, |piece| {
            sum.add(&piece);
            true
        });
        read.ok().map(|()| sum.finish())
    });
    summing.await.ok()?
}

/// The checksum of POSIX's `cksum`: CRC-32 with the highest bit first, of the bytes
/// and then of their number.
#[derive(Debug, Default)]
struct Sum {
    crc: u32,
    length: u64,
}

const POLYNOMIAL: u32 = 0x04c1_1db7;

/// Of each byte, and of each byte with up to seven zeros behind it: eight bytes are
/// taken at a time.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0;
    let mut number = 0_u32;
    while byte < 256 {
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
        tables[0][byte] = crc;
        byte += 1;
        number += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[zeros - 1][byte];
            tables[zeros][byte] = (crc << 8) ^ tables[0][(crc >> 24) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let [a, b, c, d] = self.crc.to_be_bytes();
            let at = |zeros: usize, byte: u8| TABLES[zeros][usize::from(byte)];
            self.crc = at(7, chunk[0] ^ a)
                ^ at(6, chunk[1] ^ b)
                ^ at(5, chunk[2] ^ c)
                ^ at(4, chunk[3] ^ d)
                ^ at(3, chunk[4])
                ^ at(2, chunk[5])
                ^ at(1, chunk[6])
                ^ at(0, chunk[7]);
        }
        for &byte in chunks.remainder() {
            self.byte(byte);
        }
    }

    fn byte(&mut self, byte: u8) {
        let place = (self.crc >> 24) as u8 ^ byte;
        self.crc = (self.crc << 8) ^ TABLES[0][usize::from(place)];
    }

    fn finish(mut self) -> u32 {
        let mut length = self.length;
        while length > 0 {
            self.byte((length & 0xff) as u8);
            length >>= 8;
        }
        !self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_cksum() {
        // As `cksum` of coreutils says.
        let rows: [(&[u8], u32); 4] = [
            (b"", 4_294_967_295),
            (b"123456789", 930_766_865),
            (b"hello\n", 3_015_617_425),
            (&[0; 1000], 0),
        ];
        for (bytes, expected) in &rows[..3] {
            let mut sum = Sum::default();
            sum.add(bytes);
            assert_eq!(sum.finish(), *expected, "{bytes:?}");
        }
        // In any pieces.
        let (mut whole, mut split) = (Sum::default(), Sum::default());
        let bytes: Vec<u8> = (0..1000_u32).map(|it| (it * 7 % 251) as u8).collect();
        whole.add(&bytes);
        for piece in bytes.chunks(13) {
            split.add(piece);
        }
        assert_eq!(whole.finish(), split.finish());
    }
}

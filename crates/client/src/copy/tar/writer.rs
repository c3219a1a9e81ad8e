//! Encodes entries so that every tar reads them: ustar, with GNU's long names and large numbers
//! where they do not fit.

use super::block::{self, Bytes};
use super::{BLOCK_BYTES, Entry, Kind};

/// tar programs read twenty blocks at a time, and some complain about less.
const RECORD_BYTES: usize = 20 * BLOCK_BYTES;

static ZEROS: [u8; RECORD_BYTES] = [0; RECORD_BYTES];

/// GNU's name for an entry that holds a long name.
const LONG: &[u8] = b"././@LongLink";

/// Writes an entry's header. The content follows, then its [`padding`].
pub fn write_entry(entry: &Entry, archive: &mut Vec<u8>) {
    if entry.name.len() > block::NAME.len() {
        write_long(b'L', &entry.name, archive);
    }
    if entry.link.len() > block::LINK.len() {
        write_long(b'K', &entry.link, archive);
    }
    let mut header = blank(
        &entry.name,
        match entry.kind {
            Kind::File => b'0',
            Kind::HardLink => b'1',
            Kind::Symlink => b'2',
            Kind::Character => b'3',
            Kind::Block => b'4',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
        },
    );
    let size = if entry.kind == Kind::File {
        entry.size
    } else {
        0
    };
    fill(
        &mut header,
        block::LINK.start,
        block::LINK.len(),
        &entry.link,
    );
    block::write_number(&mut header[block::MODE], i64::from(entry.mode & 0o7777));
    block::write_number(&mut header[block::UID], owner(entry.uid));
    block::write_number(&mut header[block::GID], owner(entry.gid));
    block::write_number(&mut header[block::SIZE], size.cast_signed());
    block::write_number(&mut header[block::MTIME], entry.mtime);
    block::seal(&mut header);
    archive.extend_from_slice(&header);
}

/// The length of what [`write_entry`] writes.
pub fn entry_length(entry: &Entry) -> usize {
    let long = |text: &[u8], room: usize| {
        if text.len() > room {
            BLOCK_BYTES + (text.len() + 1).next_multiple_of(BLOCK_BYTES)
        } else {
            0
        }
    };
    BLOCK_BYTES + long(&entry.name, block::NAME.len()) + long(&entry.link, block::LINK.len())
}

/// The padding after content of this size.
pub fn padding(size: u64) -> &'static [u8] {
    let missing = size.wrapping_neg() % BLOCK_BYTES as u64;
    &ZEROS[..usize::try_from(missing).unwrap_or_default()]
}

/// Writes the end marker; an archive without it counts as truncated.
pub fn write_end(archive: &mut Vec<u8>) {
    archive.extend_from_slice(&ZEROS);
}

/// Owner IDs have 32 bits.
fn owner(number: u64) -> i64 {
    u32::try_from(number).unwrap_or(u32::MAX).into()
}

fn write_long(kind: u8, name: &[u8], archive: &mut Vec<u8>) {
    let size = name.len() as u64 + 1;
    let mut header = blank(LONG, kind);
    block::write_number(&mut header[block::SIZE], size.cast_signed());
    block::seal(&mut header);
    archive.extend_from_slice(&header);
    archive.extend_from_slice(name);
    archive.push(0);
    archive.extend_from_slice(padding(size));
}

fn blank(name: &[u8], kind: u8) -> Bytes {
    let mut header = [0; BLOCK_BYTES];
    fill(&mut header, block::NAME.start, block::NAME.len(), name);
    header[block::TYPE_OFFSET] = kind;
    header[block::MAGIC].copy_from_slice(block::GNU);
    for field in [block::MODE, block::UID, block::GID, block::MTIME] {
        block::write_number(&mut header[field], 0);
    }
    header
}

fn fill(header: &mut Bytes, start: usize, room: usize, text: &[u8]) {
    let length = text.len().min(room);
    header[start..start + length].copy_from_slice(&text[..length]);
}

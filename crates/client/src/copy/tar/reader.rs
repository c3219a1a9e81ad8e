//! Parses an archive into events, whatever chunks it comes in.

use super::block::{self, Bytes};
use super::pax::Records;
use super::{BLOCK_BYTES, Entry, Kind, MAX_NAME_BYTES, MAX_PAX_BYTES, Violation};

/// An event of the reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A file begins. Its content follows, if it has any.
    Entry(Entry),
    /// A part of its content: never empty, never more than its size.
    Data(&'a [u8]),
    /// The archive is complete.
    End,
}

/// Where an interrupted archive can be resumed, and how to recognise it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint<'a> {
    /// Where the header of the last entry begins.
    pub header_at: u64,
    /// That header with its extensions. Another header at this offset means another archive.
    pub header: &'a [u8],
    /// The first missing byte.
    pub resume_at: u64,
}

/// Reads an archive.
#[derive(Debug, Default)]
pub struct Reader {
    state: State,
    /// How many bytes of the archive have been consumed.
    offset: u64,
    /// The blocks of the current header, its extensions first.
    header: Vec<u8>,
    /// The fields of the next entry that the extensions set.
    extensions: Extensions,
    /// Whether the previous block was the first of the two zero blocks that end an archive.
    zero: bool,
    /// Where the header of the last entry began, and its bytes.
    last: Option<u64>,
    last_header: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Header,
    /// The header is read up to `until`, with the body of this extension.
    Extension {
        kind: u8,
        body: usize,
        until: usize,
        size: usize,
    },
    Contents {
        left: u64,
        padding: u64,
    },
    Padding(u64),
    Ended,
}

/// The extensions of the next header.
#[derive(Debug, Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Records,
    /// Whether the entry has extensions.
    any: bool,
}

impl Reader {
    /// A reader at the beginning of an archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Consumes the bytes of the next event from the input. `None` means that all input has
    /// been consumed, and more is needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        loop {
            match self.state {
                State::Header => {
                    let until = self.header.len() / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES;
                    if !self.fill_header(until, input) {
                        return Ok(None);
                    }
                    if let Some(event) = self.header_block()? {
                        return Ok(Some(event));
                    }
                }
                State::Extension {
                    kind,
                    body,
                    until,
                    size,
                } => {
                    if !self.fill_header(until, input) {
                        return Ok(None);
                    }
                    self.extension(kind, body, size)?;
                    self.state = State::Header;
                }
                State::Contents { left: 0, padding } => self.state = State::Padding(padding),
                State::Contents { left, padding } => {
                    let taken = take(input, left);
                    if taken.is_empty() {
                        return Ok(None);
                    }
                    let left = left - taken.len() as u64;
                    self.offset += taken.len() as u64;
                    self.state = State::Contents { left, padding };
                    return Ok(Some(Event::Data(taken)));
                }
                State::Padding(0) => self.state = State::Header,
                State::Padding(left) => {
                    let taken = take(input, left).len() as u64;
                    if taken == 0 {
                        return Ok(None);
                    }
                    self.offset += taken;
                    self.state = State::Padding(left - taken);
                }
                State::Ended => {
                    // tar programs pad their last record with zeros.
                    self.offset += input.len() as u64;
                    *input = &[];
                    return Ok(None);
                }
            }
        }
    }

    /// Whether the end marker has been read. An archive without it is truncated.
    pub fn is_complete(&self) -> bool {
        self.state == State::Ended
    }

    /// How many bytes have been consumed.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Rewinds over an incomplete header, to where the archive can be resumed. `None` means
    /// from the start.
    pub fn rewind(&mut self) -> Option<Checkpoint<'_>> {
        self.offset -= self.header.len() as u64;
        if std::mem::take(&mut self.zero) {
            self.offset -= BLOCK_BYTES as u64;
        }
        self.header.clear();
        self.extensions = Extensions::default();
        if let State::Extension { .. } = self.state {
            self.state = State::Header;
        }
        Some(Checkpoint {
            header_at: self.last?,
            header: &self.last_header,
            resume_at: self.offset,
        })
    }

    /// Reads the header up to a length; returns whether it is complete.
    fn fill_header(&mut self, until: usize, input: &mut &[u8]) -> bool {
        let taken = take(input, (until - self.header.len()) as u64);
        self.header.extend_from_slice(taken);
        self.offset += taken.len() as u64;
        self.header.len() == until
    }

    fn header_block(&mut self) -> Result<Option<Event<'static>>, Violation> {
        let at = self.header.len() - BLOCK_BYTES;
        let place = self.offset - BLOCK_BYTES as u64;
        let wrong = Violation::Checksum { at: place };
        let Ok(block) = Bytes::try_from(&self.header[at..]) else {
            return Err(wrong);
        };
        if block == [0; BLOCK_BYTES] && !self.extensions.any {
            self.header.clear();
            if !std::mem::replace(&mut self.zero, true) {
                return Ok(None);
            }
            self.state = State::Ended;
            return Ok(Some(Event::End));
        }
        if self.zero || !block::is_intact(&block) {
            return Err(wrong);
        }
        let kind = block[block::TYPE_OFFSET];
        if let Some((what, limit)) = extends(kind) {
            let size = size_of(&block)?;
            let size = usize::try_from(size).ok().filter(|size| *size <= limit);
            let size = size.ok_or(Violation::TooLong { what, limit })?;
            let body = self.header.len();
            // A name occurs at most once in each form, so there are few of these.
            if body > MAX_PAX_BYTES {
                return Err(Violation::TooLong {
                    what: "header",
                    limit: MAX_PAX_BYTES,
                });
            }
            self.extensions.any = true;
            self.state = State::Extension {
                kind,
                body,
                until: body + size.div_ceil(BLOCK_BYTES) * BLOCK_BYTES,
                size,
            };
            return Ok(None);
        }
        let entry = self.entry(&block)?;
        let padding = super::padding(entry.size).len() as u64;
        self.state = State::Contents {
            left: entry.size,
            padding,
        };
        self.last = Some(self.offset - self.header.len() as u64);
        std::mem::swap(&mut self.header, &mut self.last_header);
        self.header.clear();
        Ok(Some(Event::Entry(entry)))
    }

    fn extension(&mut self, kind: u8, body: usize, size: usize) -> Result<(), Violation> {
        let body_bytes = &self.header[body..body + size];
        match kind {
            b'L' => self.extensions.name = Some(block::text(body_bytes).to_vec()),
            b'K' => self.extensions.link = Some(block::text(body_bytes).to_vec()),
            b'x' => self.extensions.records = Records::read(body_bytes)?,
            b'g' => Records::read_global(body_bytes)?,
            // A volume label.
            _ => {}
        }
        Ok(())
    }

    fn entry(&mut self, block: &Bytes) -> Result<Entry, Violation> {
        let extensions = std::mem::take(&mut self.extensions);
        let name = extensions.records.path.or(extensions.name);
        let name = name.unwrap_or_else(|| name_of(block));
        let kind = kind_of(block, &name)?;
        let link = extensions.records.link.or(extensions.link);
        let link = link.unwrap_or_else(|| block::text(&block[block::LINK]).to_vec());
        for text in [&name, &link] {
            if text.len() > MAX_NAME_BYTES {
                return Err(Violation::TooLong {
                    what: "name",
                    limit: MAX_NAME_BYTES,
                });
            }
        }
        let is_link = matches!(kind, Kind::Symlink | Kind::HardLink);
        if name.is_empty() || name.contains(&0) || link.contains(&0) || link.is_empty() && is_link {
            return Err(Violation::Name);
        }
        let size = match extensions.records.size {
            Some(size) => size,
            None => size_of(block)?,
        };
        let size = match kind {
            Kind::File => size,
            // Some programs write the directory's size on disk.
            Kind::Directory => 0,
            _ if size == 0 => 0,
            kind => return Err(Violation::Contents(kind)),
        };
        let (mtime, mtime_nanos) = match extensions.records.mtime {
            Some(time) => time,
            None => (block::number(&block[block::MTIME], "mtime")?, 0),
        };
        let natural = |field, name| {
            let number = block::number(field, name)?;
            u64::try_from(number).map_err(|_| Violation::Number { field: name })
        };
        let mode = natural(&block[block::MODE], "mode")?;
        Ok(Entry {
            name,
            kind,
            mode: (mode & 0o7777) as u32,
            uid: natural(&block[block::UID], "uid")?,
            gid: natural(&block[block::GID], "gid")?,
            size,
            mtime,
            mtime_nanos,
            link: if is_link { link } else { Vec::new() },
        })
    }
}

/// Whether an entry type extends the next entry, and how long it may be.
fn extends(kind: u8) -> Option<(&'static str, usize)> {
    match kind {
        b'L' | b'K' => Some(("name", MAX_NAME_BYTES)),
        b'x' | b'g' => Some(("pax header", MAX_PAX_BYTES)),
        b'V' => Some(("label", 0)),
        _ => None,
    }
}

fn kind_of(block: &Bytes, name: &[u8]) -> Result<Kind, Violation> {
    Ok(match block[block::TYPE_OFFSET] {
        // In the oldest format a trailing slash marks a directory.
        b'0' | 0 if name.ends_with(b"/") => Kind::Directory,
        // '7' is a contiguous file.
        b'0' | 0 | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' => Kind::Character,
        b'4' => Kind::Block,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'S' => return Err(Violation::Unsupported("a sparse file")),
        b'M' => return Err(Violation::Unsupported("a file of several volumes")),
        b'D' => return Err(Violation::Unsupported("an incremental directory")),
        other => return Err(Violation::Type(other)),
    })
}

fn size_of(block: &Bytes) -> Result<u64, Violation> {
    let size = block::number(&block[block::SIZE], "size")?;
    u64::try_from(size).map_err(|_| Violation::Number { field: "size" })
}

/// POSIX headers, but not GNU's, have a separate name prefix.
fn name_of(block: &Bytes) -> Vec<u8> {
    let name = block::text(&block[block::NAME]);
    let prefix = block::text(&block[block::PREFIX]);
    if block[block::MAGIC].starts_with(b"ustar\0") && !prefix.is_empty() {
        [prefix, b"/", name].concat()
    } else {
        name.to_vec()
    }
}

fn take<'a>(input: &mut &'a [u8], at_most: u64) -> &'a [u8] {
    let length = usize::try_from(at_most).map_or(input.len(), |most| most.min(input.len()));
    let (taken, rest) = input.split_at(length);
    *input = rest;
    taken
}

#[cfg(test)]
mod tests;

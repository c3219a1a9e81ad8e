//! Bytes of an archive to events, whatever pieces they come in.

use super::block::{self, Bytes};
use super::pax::Records;
use super::{BLOCK, Entry, Kind, MAX_NAME, MAX_PAX, Violation};

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Another file begins. Its contents come next, if it has any.
    Entry(Entry),
    /// Some of its contents, never none and never more than it said.
    Data(&'a [u8]),
    /// The archive is whole.
    End,
}

/// Where a broken archive can be gone on with, and how to know it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint<'a> {
    /// Where the header of the last entry begins.
    pub header_at: u64,
    /// That header, with all that belongs to it. Another one at this place is
    /// another archive.
    pub header: &'a [u8],
    /// The first byte that is missing.
    pub resume_at: u64,
}

/// Reads an archive.
#[derive(Debug, Default)]
pub struct Reader {
    state: State,
    /// How many bytes of the archive have been consumed.
    offset: u64,
    /// The blocks of the header that is being read, those that extend it first.
    header: Vec<u8>,
    /// What the blocks so far say of the entry to come.
    told: Told,
    /// Whether the block before was one of the two that end an archive.
    zero: bool,
    /// The header of the last entry, and where it began.
    last: Option<u64>,
    last_header: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Header,
    /// Up to here the header is what belongs to this type.
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

/// What extends the next header.
#[derive(Debug, Default)]
struct Told {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Records,
    /// Whether there was anything.
    any: bool,
}

impl Reader {
    /// At the beginning of an archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event's bytes from the front of the input. `None` is that all
    /// of it has been taken, and more is needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        loop {
            match self.state {
                State::Header => {
                    let until = self.header.len() / BLOCK * BLOCK + BLOCK;
                    if !self.gather(until, input) {
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
                    if !self.gather(until, input) {
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
                    // Programs fill up the last of their records.
                    self.offset += input.len() as u64;
                    *input = &[];
                    return Ok(None);
                }
            }
        }
    }

    /// Whether the end has been seen. Whatever came before it, an archive without
    /// it is cut off.
    pub fn is_complete(&self) -> bool {
        self.state == State::Ended
    }

    /// How many bytes have been read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes back over a header that is not whole, to where the archive can be gone
    /// on with. `None` is at its beginning.
    pub fn rewind(&mut self) -> Option<Checkpoint<'_>> {
        self.offset -= self.header.len() as u64;
        if std::mem::take(&mut self.zero) {
            self.offset -= BLOCK as u64;
        }
        self.header.clear();
        self.told = Told::default();
        if let State::Extension { .. } = self.state {
            self.state = State::Header;
        }
        Some(Checkpoint {
            header_at: self.last?,
            header: &self.last_header,
            resume_at: self.offset,
        })
    }

    /// Takes what is missing up to a length of the header; whether it has come.
    fn gather(&mut self, until: usize, input: &mut &[u8]) -> bool {
        let taken = take(input, (until - self.header.len()) as u64);
        self.header.extend_from_slice(taken);
        self.offset += taken.len() as u64;
        self.header.len() == until
    }

    fn header_block(&mut self) -> Result<Option<Event<'static>>, Violation> {
        let at = self.header.len() - BLOCK;
        let place = self.offset - BLOCK as u64;
        let wrong = Violation::Checksum { at: place };
        let Ok(block) = Bytes::try_from(&self.header[at..]) else {
            return Err(wrong);
        };
        if block == [0; BLOCK] && !self.told.any {
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
        let kind = block[block::TYPE];
        if let Some((what, limit)) = extends(kind) {
            let size = size_of(&block)?;
            let size = usize::try_from(size).ok().filter(|size| *size <= limit);
            let size = size.ok_or(Violation::TooLong { what, limit })?;
            let body = self.header.len();
            // A name is told at most once in each way, so there are few of these.
            if body > MAX_PAX {
                return Err(Violation::TooLong {
                    what: "header",
                    limit: MAX_PAX,
                });
            }
            self.told.any = true;
            self.state = State::Extension {
                kind,
                body,
                until: body + size.div_ceil(BLOCK) * BLOCK,
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
        let said = &self.header[body..body + size];
        match kind {
            b'L' => self.told.name = Some(block::text(said).to_vec()),
            b'K' => self.told.link = Some(block::text(said).to_vec()),
            b'x' => self.told.records = Records::read(said)?,
            b'g' => Records::read_global(said)?,
            // The label of a volume.
            _ => {}
        }
        Ok(())
    }

    fn entry(&mut self, block: &Bytes) -> Result<Entry, Violation> {
        let told = std::mem::take(&mut self.told);
        let name = told.records.path.or(told.name);
        let name = name.unwrap_or_else(|| name_of(block));
        let kind = kind_of(block, &name)?;
        let link = told.records.link.or(told.link);
        let link = link.unwrap_or_else(|| block::text(&block[block::LINK]).to_vec());
        for text in [&name, &link] {
            if text.len() > MAX_NAME {
                return Err(Violation::TooLong {
                    what: "name",
                    limit: MAX_NAME,
                });
            }
        }
        let is_link = matches!(kind, Kind::Symlink | Kind::HardLink);
        if name.is_empty() || name.contains(&0) || link.contains(&0) || link.is_empty() && is_link {
            return Err(Violation::Name);
        }
        let size = match told.records.size {
            Some(size) => size,
            None => size_of(block)?,
        };
        let size = match kind {
            Kind::File => size,
            // Some write what a directory takes on their disk.
            Kind::Directory => 0,
            _ if size == 0 => 0,
            kind => return Err(Violation::Contents(kind)),
        };
        let (mtime, mtime_nanos) = match told.records.mtime {
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

/// What is no entry but says something of the next, and how long it may be.
fn extends(kind: u8) -> Option<(&'static str, usize)> {
    match kind {
        b'L' | b'K' => Some(("name", MAX_NAME)),
        b'x' | b'g' => Some(("pax header", MAX_PAX)),
        b'V' => Some(("label", 0)),
        _ => None,
    }
}

fn kind_of(block: &Bytes, name: &[u8]) -> Result<Kind, Violation> {
    Ok(match block[block::TYPE] {
        // Before there were types, a slash at the end was one.
        b'0' | 0 if name.ends_with(b"/") => Kind::Directory,
        // '7' is a file that a system may lay out in one piece.
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

/// In POSIX's headers, but not in GNU's, names can have a front part elsewhere.
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

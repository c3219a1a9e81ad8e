//! What of a copy that was cut is in the container already, so that only the rest is sent.
//!
//! A file counts as there if its name, size, time and checksum are those of the file here.
//! Sizes and times alone would keep what somebody else has put there, or what a file here
//! was before it changed.
//!
//! The one that tar was at when it was ended may have all that, and not its owner and its
//! permissions: GNU tar sets them last, if it is root. So these count as well, unless none of
//! many files has them that are all of ours: some volumes keep none.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use super::append::{self, Part};
use super::cksum::Sum;
use super::commands;
use super::container::{Container, Ended, each_line};
use super::error::Error;
use super::options::{Options, Preserve};
use super::tally::Tally;
use super::tar::MAX_NAME;
use super::way::{self, FILLED, Way};

/// Of how many files it is known that they are there. A number of 64 bits is kept of each,
/// whatever its name: about 40 MiB for two sets of so many, and half of that more if none is
/// dressed as here. Further ones are sent again.
const MOST_FILES: usize = 1 << 20;

/// A name, and up to five numbers before it.
const LONGEST_LINE: usize = MAX_NAME + 128;

/// As many files may be there of which tar was ended at each.
const FEW: usize = 2;

/// How many bytes of names a command is given: they are a part of its URL, for which some
/// proxies have no more than 8 KiB.
const LONGEST_COMMAND: usize = 4 << 10;

/// By how many commands it is asked for what is in a directory that is filled; what has
/// further names is sent again.
const MOST_COMMANDS: usize = 64;

/// What is there, by numbers that nobody else can make.
#[derive(Debug, Default)]
pub(super) struct There {
    keys: RandomState,
    /// Names, sizes and times; without times where they are not kept.
    likely: HashSet<u64>,
    /// Names, sizes and checksums.
    certain: HashSet<u64>,
    with_times: bool,
    /// How many of those that are like those here are dressed like them, and which are not.
    dressed: u64,
    undressed: HashSet<u64>,
    /// Files that have just been proven to be there, as they were here then.
    proven: Vec<(Vec<u8>, Identity)>,
    count: u64,
}

/// What changes with a file.
type Identity = (u64, u64, u64, (i64, i64), (i64, i64));

fn identity(status: &Metadata) -> Identity {
    (
        status.dev(),
        status.ino(),
        status.size(),
        (status.mtime(), status.mtime_nsec()),
        (status.ctime(), status.ctime_nsec()),
    )
}

impl There {
    /// Looks, and goes on with large files of which a part is there. An error is that the
    /// connection was lost.
    pub(super) async fn ask(
        container: &dyn Container,
        from: &Path,
        way: &Way,
        options: &Options,
        tally: &Arc<Tally>,
    ) -> Result<Self, Error> {
        let mut there = Self {
            with_times: options.preserve == Preserve::Yes,
            ..Self::default()
        };
        let (places, prefix) = (places(from, way), way.place(""));
        let mut parts = Vec::new();
        for some in &places {
            let summed = each_line(container, commands::sums(some), LONGEST_LINE, |line| {
                if let Some((sum, size, name)) = read(line, prefix.as_bytes()) {
                    if let Ok(size) = u64::try_from(size) {
                        there.note_sum(name, size, sum);
                        there.count += 1;
                    }
                    Part::note(&mut parts, from, way, name, size, sum);
                }
            });
            still_there(summed.await?)?;
        }
        for part in parts {
            match append::go_on(container, way, &part, options, tally).await? {
                // Its time counts as set, whether or not there is a program for that.
                Some(status) => there.proven.push((part.name, identity(&status))),
                None => there.count -= 1,
            }
        }
        if !there.with_times || there.certain.is_empty() {
            return Ok(there);
        }
        for some in &places {
            let listed = each_line(container, commands::statuses(some), LONGEST_LINE, |line| {
                if let Some((status, name)) = Status::read(line, prefix.as_bytes()) {
                    let path = way::local(from, way, name);
                    let here = path.and_then(|path| path.symlink_metadata().ok());
                    there.note_status(name, &status, here.as_ref());
                }
            });
            still_there(listed.await?)?;
        }
        if way.dresses_late() {
            there.leave_out_undressed(way.is_staged());
        }
        Ok(there)
    }

    /// How many files are, more or less: of some, only a part may be.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether this file is, as it is here.
    pub(super) fn has(&self, name: &[u8], file: &File, status: &Metadata) -> bool {
        let mut proven = self.proven.iter().filter(|(known, _)| known == name);
        if proven.any(|(_, known)| *known == identity(status)) {
            return true;
        }
        let size = status.size();
        let likely = self.likely_key(name, size, status.mtime());
        if !self.likely.contains(&likely) {
            return false;
        }
        match Sum::of(file, size) {
            Ok(Some(sum)) => {
                let key = self.key(name, size, sum.finish().into());
                self.certain.contains(&key)
            }
            _ => false,
        }
    }

    fn note_sum(&mut self, name: &[u8], size: u64, sum: i64) {
        let key = self.key(name, size, sum);
        note(&mut self.certain, key);
        if !self.with_times {
            let key = self.likely_key(name, size, 0);
            note(&mut self.likely, key);
        }
    }

    fn note_status(&mut self, name: &[u8], status: &Status, here: Option<&Metadata>) {
        let key = self.likely_key(name, status.size, status.time);
        note(&mut self.likely, key);
        let alike = here.filter(|it| (it.size(), it.mtime()) == (status.size, status.time));
        match alike {
            Some(here) if status.dress == Dress::of(here) => self.dressed += 1,
            Some(_) => note(&mut self.undressed, key),
            None => {}
        }
    }

    /// Where nothing was before, they are all of ours.
    fn leave_out_undressed(&mut self, all_ours: bool) {
        if !all_ours || self.dressed > 0 || self.undressed.len() <= FEW {
            let undressed = std::mem::take(&mut self.undressed);
            self.likely.retain(|key| !undressed.contains(key));
        }
    }

    fn likely_key(&self, name: &[u8], size: u64, time: i64) -> u64 {
        self.key(name, size, if self.with_times { time } else { 0 })
    }

    fn key(&self, name: &[u8], size: u64, more: i64) -> u64 {
        self.keys.hash_one((name, size, more))
    }
}

/// What is to be looked at, in as many commands as that takes. Of a directory that is
/// filled that is only what has a name of the source: it may be the root of a container,
/// and all the rest of it is none of ours.
fn places(from: &Path, way: &Way) -> Vec<Vec<String>> {
    let top = way.name();
    if top != FILLED {
        return vec![vec![way.place(&top)]];
    }
    let names = std::fs::read_dir(from).into_iter().flatten().flatten();
    // What cannot be a word of a command is sent again.
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    in_commands(names.map(|name| way.place(&format!("{FILLED}/{name}"))))
}

fn in_commands(places: impl Iterator<Item = String>) -> Vec<Vec<String>> {
    let (mut commands, mut length) = (Vec::<Vec<String>>::new(), 0);
    for place in places {
        let fits = length + place.len() <= LONGEST_COMMAND;
        let is_last = commands.len() == MOST_COMMANDS;
        match commands.last_mut() {
            Some(last) if fits => {
                length += place.len();
                last.push(place);
            }
            _ if is_last => break,
            _ => {
                length = place.len();
                commands.push(vec![place]);
            }
        }
    }
    commands
}

fn note(set: &mut HashSet<u64>, key: u64) {
    if set.len() < MOST_FILES {
        set.insert(key);
    }
}

/// What a file has beside its contents and its time.
#[derive(Debug, PartialEq, Eq)]
struct Dress {
    mode: u32,
    owner: (u32, u32),
}

impl Dress {
    fn of(status: &Metadata) -> Self {
        Self {
            mode: status.mode() & 0o7777,
            owner: (status.uid(), status.gid()),
        }
    }
}

/// What `stat` says of a file.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    size: u64,
    time: i64,
    dress: Dress,
}

impl Status {
    /// Also its name, without what all names begin with.
    fn read<'a>(line: &'a [u8], prefix: &[u8]) -> Option<(Self, &'a [u8])> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut field = || str::from_utf8(fields.next()?).ok();
        let status = Self {
            size: field()?.parse().ok()?,
            time: field()?.parse().ok()?,
            dress: Dress {
                mode: u32::from_str_radix(field()?, 8).ok()?,
                owner: (field()?.parse().ok()?, field()?.parse().ok()?),
            },
        };
        let name = fields.next()?.strip_prefix(prefix)?;
        Some((status, name))
    }
}

/// A program that is missing, or complains, says less; a connection that was lost says
/// nothing at all.
fn still_there(ended: Ended) -> Result<(), Error> {
    match ended {
        Ended::Cut(cause) => Err(way::cut(cause)),
        _ => Ok(()),
    }
}

/// Two numbers and a name, without what all names begin with.
fn read<'a>(line: &'a [u8], prefix: &[u8]) -> Option<(i64, i64, &'a [u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let mut number = || str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok();
    let numbers = (number()?, number()?);
    let name = fields.next()?.strip_prefix(prefix)?;
    Some((numbers.0, numbers.1, name))
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn lines_are_two_numbers_and_a_name() {
        let rows = [
            (
                "12 1700000000 /tmp/s/a b",
                Some((12, 1_700_000_000, "s/a b")),
            ),
            ("0 -5 /tmp/c", Some((0, -5, "c"))),
            ("4294967295 0 /tmp/d", Some((4_294_967_295, 0, "d"))),
            ("find: x: denied", None),
            ("7 8 /else", None),
            ("7 8", None),
        ];
        for (line, expected) in rows {
            let expected = expected.map(|(a, b, name)| (a, b, name.as_bytes()));
            assert_eq!(read(line.as_bytes(), b"/tmp/"), expected, "{line}");
        }
    }

    #[test]
    fn lines_are_five_numbers_and_a_name() {
        let status = Status {
            size: 12,
            time: -5,
            dress: Dress {
                mode: 0o4755,
                owner: (1000, 65_534),
            },
        };
        let rows = [
            ("12 -5 4755 1000 65534 /tmp/a b", Some((status, "a b"))),
            ("12 -5 4789 1000 65534 /tmp/a b", None),
            ("12 -5 755 1000 65534 /else", None),
            ("12 -5 755 1000 /tmp/a", None),
            ("stat: cannot stat '/tmp/a'", None),
        ];
        for (line, expected) in rows {
            let expected = expected.map(|(status, name)| (status, name.as_bytes()));
            let found = Status::read(line.as_bytes(), b"/tmp/");
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn only_what_has_a_name_of_the_source_is_looked_at() {
        let scratch = ScratchDir::new();
        scratch.write("a b", "");
        scratch.write("-c", "");
        // Where to, whether that is filled, and what is looked at.
        let rows: [(&str, bool, &[&str]); 4] = [
            ("/", true, &["/./-c", "/./a b"]),
            ("/srv", true, &["/srv/./-c", "/srv/./a b"]),
            ("there", true, &["./there/./-c", "./there/./a b"]),
            ("/srv/new", false, &["/srv/new"]),
        ];
        for (to, fills, expected) in rows {
            let mut found = places(scratch.path(), &Way::new(to, fills, false, true));
            found[0].sort();
            assert_eq!(found, [expected], "{to}");
        }
        let command = commands::sums(&["/srv/./a b".to_owned()]).join(",");
        assert_eq!(command, "find,/srv/./a b,-xdev,-type,f,-exec,cksum,{},+");
    }

    #[test]
    fn many_names_are_several_commands_and_no_more_than_there_may_be() {
        let name = || "n".repeat(LONGEST_COMMAND / 4);
        for (names, expected) in [(0, 0), (1, 1), (4, 1), (5, 2), (4 * MOST_COMMANDS + 1, 64)] {
            let commands = in_commands(std::iter::repeat_with(name).take(names));
            assert_eq!(commands.len(), expected, "{names}");
            let asked: usize = commands.iter().map(Vec::len).sum();
            assert_eq!(asked, names.min(4 * MOST_COMMANDS));
        }
        // One that is longer than all that is allowed has a command of its own.
        let long = ["n".repeat(2 * LONGEST_COMMAND), "m".to_owned()];
        assert_eq!(in_commands(long.into_iter()).len(), 2);
    }

    /// As a file is here, but for its time and its permissions.
    fn there_as(status: &Metadata, time: i64, other: u32) -> Status {
        let mut dress = Dress::of(status);
        dress.mode ^= other;
        Status {
            size: status.len(),
            time,
            dress,
        }
    }

    #[test]
    fn a_file_is_there_only_with_its_size_time_and_contents() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", "contents");
        let (file, status) = (File::open(&path).unwrap(), path.metadata().unwrap());
        let (size, time) = (status.len(), status.mtime());
        let sum = Sum::of(&file, size).unwrap().unwrap();
        let sum = i64::from(sum.finish());
        // With times or not; which sum and time are there; whether it is.
        let rows = [
            (true, sum, time, true),
            (true, sum + 1, time, false),
            (true, sum, time + 1, false),
            (false, sum, time + 1, true),
            (false, sum + 1, time, false),
        ];
        for (with_times, sum, time, expected) in rows {
            let mut there = There {
                with_times,
                ..There::default()
            };
            there.note_sum(b"it/file", size, sum);
            if with_times {
                let there_now = there_as(&status, time, 0);
                there.note_status(b"it/file", &there_now, Some(&status));
            }
            assert_eq!(there.has(b"it/file", &file, &status), expected);
            assert!(!there.has(b"it/other", &file, &status));
        }
        // Whether all are ours; how many others are dressed as here, and are not; whether it
        // is, and is there.
        let rows = [
            (true, 0, 0, true, true),
            (true, 0, 0, false, false),
            (true, 0, 1, false, false),
            (true, 0, 2, false, true),
            (true, 1, 2, false, false),
            (true, 1, 2, true, true),
            (true, 1000, 1000, false, false),
            (false, 0, 2, false, false),
            (false, 0, 1000, true, true),
        ];
        for (all_ours, dressed, undressed, is_dressed, expected) in rows {
            let mut there = There {
                with_times: true,
                ..There::default()
            };
            there.note_sum(b"it/file", size, sum);
            let all = (0..dressed).map(|_| 0).chain((0..undressed).map(|_| 0o44));
            for (number, other) in all.enumerate() {
                let name = format!("it/{number}");
                let status_there = there_as(&status, time, other);
                there.note_status(name.as_bytes(), &status_there, Some(&status));
            }
            let status_there = there_as(&status, time, if is_dressed { 0 } else { 0o44 });
            there.note_status(b"it/file", &status_there, Some(&status));
            there.leave_out_undressed(all_ours);
            let has = there.has(b"it/file", &file, &status);
            let row = (all_ours, dressed, undressed, is_dressed);
            assert_eq!(has, expected, "{row:?}");
        }
        assert!(!There::default().has(b"it/file", &file, &status));
        // What was proven is there as long as it is not touched here.
        let mut there = There::default();
        there.proven.push((b"it/file".to_vec(), identity(&status)));
        assert!(there.has(b"it/file", &file, &status));
        std::fs::write(&path, "other contents").unwrap();
        assert!(!there.has(b"it/file", &file, &path.metadata().unwrap()));
    }
}

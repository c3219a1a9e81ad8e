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

use super::cksum::Cksum;
use super::commands;
use super::container::{CommandEnd, Container, for_each_line};
use super::error::Error;
use super::options::{Options, Preserve};
use super::progress::Progress;
use super::resume::{self, PartialFile};
use super::tar::MAX_NAME;
use super::upload_plan::{self, CURRENT_DIR, UploadPlan};

/// Of how many files it is known that they are there. A number of 64 bits is kept of each,
/// whatever its name: about 40 MiB for two sets of so many, and half of that more if none is
/// dressed as here. Further ones are sent again.
const MAX_TRACKED_FILES: usize = 1 << 20;

/// A name, and up to five numbers before it.
const MAX_LINE_BYTES: usize = MAX_NAME + 128;

/// As many files may be there of which tar was ended at each.
const MAX_INTERRUPTED_FILES: usize = 2;

/// How many bytes of names a command is given: they are a part of its URL, for which some
/// proxies have no more than 8 KiB.
const MAX_COMMAND_BYTES: usize = 4 << 10;

/// By how many commands it is asked for what is in a directory that is filled; what has
/// further names is sent again.
const MAX_COMMANDS: usize = 64;

/// What is there, by numbers that nobody else can make.
#[derive(Debug, Default)]
pub(super) struct RemoteInventory {
    hasher: RandomState,
    /// Names, sizes and times; without times where they are not kept.
    candidates: HashSet<u64>,
    /// Names, sizes and checksums.
    verified: HashSet<u64>,
    with_times: bool,
    /// How many of those that are like those here are dressed like them, and which are not.
    metadata_matches: u64,
    metadata_mismatches: HashSet<u64>,
    /// Files that have just been proven to be there, as they were here then.
    resumed: Vec<(Vec<u8>, Identity)>,
    count: u64,
}

/// What changes with a file.
type Identity = (u64, u64, u64, (i64, i64), (i64, i64));

fn file_identity(status: &Metadata) -> Identity {
    (
        status.dev(),
        status.ino(),
        status.size(),
        (status.mtime(), status.mtime_nsec()),
        (status.ctime(), status.ctime_nsec()),
    )
}

impl RemoteInventory {
    /// Looks, and goes on with large files of which a part is there. An error is that the
    /// connection was lost.
    pub(super) async fn query(
        container: &dyn Container,
        from: &Path,
        plan: &UploadPlan,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Self, Error> {
        let mut inventory = Self {
            with_times: options.preserve == Preserve::Yes,
            ..Self::default()
        };
        let (container_paths, prefix) = (container_paths(from, plan), plan.copy_spec(""));
        let mut partial_files = Vec::new();
        for paths in &container_paths {
            let summing = for_each_line(
                container,
                commands::cksum_files(paths),
                MAX_LINE_BYTES,
                |line| {
                    if let Some((sum, size, name)) = parse_cksum_line(line, prefix.as_bytes()) {
                        if let Ok(size) = u64::try_from(size) {
                            inventory.record_cksum(name, size, sum);
                            inventory.count += 1;
                        }
                        PartialFile::add_candidate(&mut partial_files, from, plan, name, size, sum);
                    }
                },
            );
            check_connection(summing.await?)?;
        }
        for partial in partial_files {
            match resume::resume_file(container, plan, &partial, options, progress).await? {
                // Its time counts as set, whether or not there is a program for that.
                Some(status) => inventory
                    .resumed
                    .push((partial.name, file_identity(&status))),
                None => inventory.count -= 1,
            }
        }
        if !inventory.with_times || inventory.verified.is_empty() {
            return Ok(inventory);
        }
        for paths in &container_paths {
            let listing = for_each_line(
                container,
                commands::stat_files(paths),
                MAX_LINE_BYTES,
                |line| {
                    if let Some((status, name)) = Status::parse_line(line, prefix.as_bytes()) {
                        let path = upload_plan::local_path(from, plan, name);
                        let local = path.and_then(|path| path.symlink_metadata().ok());
                        inventory.record_status(name, &status, local.as_ref());
                    }
                },
            );
            check_connection(listing.await?)?;
        }
        if plan.sets_metadata_last() {
            inventory.drop_metadata_mismatches(plan.is_staged());
        }
        Ok(inventory)
    }

    /// How many files are, more or less: of some, only a part may be.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether this file is, as it is here.
    pub(super) fn contains(&self, name: &[u8], file: &File, status: &Metadata) -> bool {
        let mut resumed = self.resumed.iter().filter(|(known, _)| known == name);
        if resumed.any(|(_, known)| *known == file_identity(status)) {
            return true;
        }
        let size = status.size();
        let candidates = self.candidate_key(name, size, status.mtime());
        if !self.candidates.contains(&candidates) {
            return false;
        }
        match Cksum::of(file, size) {
            Ok(Some(sum)) => {
                let key = self.key(name, size, sum.finish().into());
                self.verified.contains(&key)
            }
            _ => false,
        }
    }

    fn record_cksum(&mut self, name: &[u8], size: u64, sum: i64) {
        let key = self.key(name, size, sum);
        record(&mut self.verified, key);
        if !self.with_times {
            let key = self.candidate_key(name, size, 0);
            record(&mut self.candidates, key);
        }
    }

    fn record_status(&mut self, name: &[u8], status: &Status, local: Option<&Metadata>) {
        let key = self.candidate_key(name, status.size, status.time);
        record(&mut self.candidates, key);
        let same_size_and_time =
            local.filter(|it| (it.size(), it.mtime()) == (status.size, status.time));
        match same_size_and_time {
            Some(local) if status.metadata == FileMetadata::of(local) => self.metadata_matches += 1,
            Some(_) => record(&mut self.metadata_mismatches, key),
            None => {}
        }
    }

    /// Where nothing was before, they are all of ours.
    fn drop_metadata_mismatches(&mut self, is_staged: bool) {
        if !is_staged
            || self.metadata_matches > 0
            || self.metadata_mismatches.len() <= MAX_INTERRUPTED_FILES
        {
            let metadata_mismatches = std::mem::take(&mut self.metadata_mismatches);
            self.candidates
                .retain(|key| !metadata_mismatches.contains(key));
        }
    }

    fn candidate_key(&self, name: &[u8], size: u64, time: i64) -> u64 {
        self.key(name, size, if self.with_times { time } else { 0 })
    }

    fn key(&self, name: &[u8], size: u64, more: i64) -> u64 {
        self.hasher.hash_one((name, size, more))
    }
}

/// What is to be looked at, in as many commands as that takes. Of a directory that is
/// filled that is only what has a name of the source: it may be the root of a container,
/// and all the rest of it is none of ours.
fn container_paths(from: &Path, plan: &UploadPlan) -> Vec<Vec<String>> {
    let top = plan.name();
    if top != CURRENT_DIR {
        return vec![vec![plan.copy_spec(&top)]];
    }
    let names = std::fs::read_dir(from).into_iter().flatten().flatten();
    // What cannot be a word of a command is sent again.
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    split_into_commands(names.map(|name| plan.copy_spec(&format!("{CURRENT_DIR}/{name}"))))
}

fn split_into_commands(container_paths: impl Iterator<Item = String>) -> Vec<Vec<String>> {
    let (mut commands, mut length) = (Vec::<Vec<String>>::new(), 0);
    for copy_spec in container_paths {
        let fits = length + copy_spec.len() <= MAX_COMMAND_BYTES;
        let is_last = commands.len() == MAX_COMMANDS;
        match commands.last_mut() {
            Some(last) if fits => {
                length += copy_spec.len();
                last.push(copy_spec);
            }
            _ if is_last => break,
            _ => {
                length = copy_spec.len();
                commands.push(vec![copy_spec]);
            }
        }
    }
    commands
}

fn record(set: &mut HashSet<u64>, key: u64) {
    if set.len() < MAX_TRACKED_FILES {
        set.insert(key);
    }
}

/// What a file has beside its contents and its time.
#[derive(Debug, PartialEq, Eq)]
struct FileMetadata {
    mode: u32,
    owner: (u32, u32),
}

impl FileMetadata {
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
    metadata: FileMetadata,
}

impl Status {
    /// Also its name, without what all names begin with.
    fn parse_line<'a>(line: &'a [u8], prefix: &[u8]) -> Option<(Self, &'a [u8])> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut field = || str::from_utf8(fields.next()?).ok();
        let status = Self {
            size: field()?.parse().ok()?,
            time: field()?.parse().ok()?,
            metadata: FileMetadata {
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
fn check_connection(exit: CommandEnd) -> Result<(), Error> {
    match exit {
        CommandEnd::Disconnected(cause) => Err(upload_plan::disconnected(cause)),
        _ => Ok(()),
    }
}

/// Two numbers and a name, without what all names begin with.
fn parse_cksum_line<'a>(line: &'a [u8], prefix: &[u8]) -> Option<(i64, i64, &'a [u8])> {
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
            assert_eq!(
                parse_cksum_line(line.as_bytes(), b"/tmp/"),
                expected,
                "{line}"
            );
        }
    }

    #[test]
    fn lines_are_five_numbers_and_a_name() {
        let status = Status {
            size: 12,
            time: -5,
            metadata: FileMetadata {
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
            let found = Status::parse_line(line.as_bytes(), b"/tmp/");
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
        for (to, into_existing, expected) in rows {
            let mut found = container_paths(
                scratch.path(),
                &UploadPlan::new(to, into_existing, false, true),
            );
            found[0].sort();
            assert_eq!(found, [expected], "{to}");
        }
        let command = commands::cksum_files(&["/srv/./a b".to_owned()]).join(",");
        assert_eq!(command, "find,/srv/./a b,-xdev,-type,f,-exec,cksum,{},+");
    }

    #[test]
    fn many_names_are_several_commands_and_no_more_than_there_may_be() {
        let name = || "n".repeat(MAX_COMMAND_BYTES / 4);
        for (names, expected) in [(0, 0), (1, 1), (4, 1), (5, 2), (4 * MAX_COMMANDS + 1, 64)] {
            let commands = split_into_commands(std::iter::repeat_with(name).take(names));
            assert_eq!(commands.len(), expected, "{names}");
            let total: usize = commands.iter().map(Vec::len).sum();
            assert_eq!(total, names.min(4 * MAX_COMMANDS));
        }
        // One that is longer than all that is allowed has a command of its own.
        let long = ["n".repeat(2 * MAX_COMMAND_BYTES), "m".to_owned()];
        assert_eq!(split_into_commands(long.into_iter()).len(), 2);
    }

    /// As a file is here, but for its time and its permissions.
    fn remote_status(status: &Metadata, time: i64, other: u32) -> Status {
        let mut metadata = FileMetadata::of(status);
        metadata.mode ^= other;
        Status {
            size: status.len(),
            time,
            metadata,
        }
    }

    #[test]
    fn a_file_is_there_only_with_its_size_time_and_contents() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", "contents");
        let (file, status) = (File::open(&path).unwrap(), path.metadata().unwrap());
        let (size, time) = (status.len(), status.mtime());
        let sum = Cksum::of(&file, size).unwrap().unwrap();
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
            let mut inventory = RemoteInventory {
                with_times,
                ..RemoteInventory::default()
            };
            inventory.record_cksum(b"it/file", size, sum);
            if with_times {
                let remote = remote_status(&status, time, 0);
                inventory.record_status(b"it/file", &remote, Some(&status));
            }
            assert_eq!(inventory.contains(b"it/file", &file, &status), expected);
            assert!(!inventory.contains(b"it/other", &file, &status));
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
        for (is_staged, metadata_matches, metadata_mismatches, matches_metadata, expected) in rows {
            let mut inventory = RemoteInventory {
                with_times: true,
                ..RemoteInventory::default()
            };
            inventory.record_cksum(b"it/file", size, sum);
            let all = (0..metadata_matches)
                .map(|_| 0)
                .chain((0..metadata_mismatches).map(|_| 0o44));
            for (number, other) in all.enumerate() {
                let name = format!("it/{number}");
                let remote = remote_status(&status, time, other);
                inventory.record_status(name.as_bytes(), &remote, Some(&status));
            }
            let remote = remote_status(&status, time, if matches_metadata { 0 } else { 0o44 });
            inventory.record_status(b"it/file", &remote, Some(&status));
            inventory.drop_metadata_mismatches(is_staged);
            let contains = inventory.contains(b"it/file", &file, &status);
            let row = (
                is_staged,
                metadata_matches,
                metadata_mismatches,
                matches_metadata,
            );
            assert_eq!(contains, expected, "{row:?}");
        }
        assert!(!RemoteInventory::default().contains(b"it/file", &file, &status));
        // What was proven is there as long as it is not touched here.
        let mut inventory = RemoteInventory::default();
        inventory
            .resumed
            .push((b"it/file".to_vec(), file_identity(&status)));
        assert!(inventory.contains(b"it/file", &file, &status));
        std::fs::write(&path, "other contents").unwrap();
        assert!(!inventory.contains(b"it/file", &file, &path.metadata().unwrap()));
    }
}

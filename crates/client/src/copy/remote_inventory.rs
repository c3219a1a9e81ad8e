//! Which files of an interrupted upload are already in the container, so that only the rest is
//! sent.
//!
//! A file counts as present if its name, size, time and checksum equal those of the local file.
//! Sizes and times alone would keep files of another origin, or an older version of a local
//! file.
//!
//! A file at which tar was interrupted may match in all of these but lack its owner and
//! permissions: GNU tar sets them last, if it is root. So owner and permissions count as well,
//! except on volumes that do not store them: there, none of many files that this copy wrote has
//! them.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use super::cksum::Cksum;
use super::commands;
use super::container_exec::{CommandEnd, Container, for_each_line};
use super::error::Error;
use super::options::{Options, Preserve};
use super::progress::Progress;
use super::resume::{self, PartialFile};
use super::tar::MAX_NAME_BYTES;
use super::upload_plan::{self, CURRENT_DIR, UploadPlan};

/// How many files are tracked, as 64-bit hashes whatever their names: about 40 MiB for two
/// sets, and half of that more if no file has the local metadata. Further files are sent again.
const MAX_TRACKED_FILES: usize = 1 << 20;

/// A name, and up to five numbers before it.
const MAX_LINE_BYTES: usize = MAX_NAME_BYTES + 128;

/// How many files may exist at which a tar was interrupted.
const MAX_INTERRUPTED_FILES: usize = 2;

/// How many bytes of names one command gets: they are part of its URL, which some proxies limit
/// to 8 KiB.
const MAX_COMMAND_BYTES: usize = 4 << 10;

/// How many commands inspect an existing target directory; files with further names are sent
/// again.
const MAX_COMMANDS: usize = 64;

/// The files in the container, as keyed hashes that cannot be forged.
#[derive(Debug, Default)]
pub(super) struct RemoteInventory {
    hasher: RandomState,
    /// Names, sizes and times; without times where they are not preserved.
    candidates: HashSet<u64>,
    /// Names, sizes and checksums.
    verified: HashSet<u64>,
    with_times: bool,
    /// How many matching files have the local owner and permissions, and how many have not.
    metadata_matches: u64,
    metadata_mismatches: HashSet<u64>,
    /// Files that have just been completed, with their local identity at that time.
    resumed: Vec<(Vec<u8>, Identity)>,
    count: u64,
}

/// What changes when a file changes.
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
    /// Inspects the container, and completes large partial files. An error means that the
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
        let (container_paths, prefix) = (container_paths(from, plan), plan.container_path(""));
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
                // The time of the file counts as set, whether or not the container has a program
                // that sets it.
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

    /// Approximately how many files are present: some may be partial.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether the container has this file in its current local state.
    pub(super) fn contains(&self, name: &[u8], file: &File, status: &Metadata) -> bool {
        let mut resumed = self.resumed.iter().filter(|(known, _)| known == name);
        if resumed.any(|(_, known)| *known == file_identity(status)) {
            return true;
        }
        let size = status.size();
        let candidate = self.candidate_key(name, size, status.mtime());
        if !self.candidates.contains(&candidate) {
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

    /// In a staging directory, all files are ours.
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

/// The paths to inspect, split into commands. In an existing target directory only names of the
/// source are inspected: it may be the root of a container, whose other files are not ours.
fn container_paths(from: &Path, plan: &UploadPlan) -> Vec<Vec<String>> {
    let top = plan.name();
    if top != CURRENT_DIR {
        return vec![vec![plan.container_path(&top)]];
    }
    let names = std::fs::read_dir(from).into_iter().flatten().flatten();
    // Names that cannot be command arguments are sent again.
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    split_into_commands(names.map(|name| plan.container_path(&format!("{CURRENT_DIR}/{name}"))))
}

fn split_into_commands(container_paths: impl Iterator<Item = String>) -> Vec<Vec<String>> {
    let (mut commands, mut length) = (Vec::<Vec<String>>::new(), 0);
    for path in container_paths {
        let fits = length + path.len() <= MAX_COMMAND_BYTES;
        let is_last = commands.len() == MAX_COMMANDS;
        match commands.last_mut() {
            Some(last) if fits => {
                length += path.len();
                last.push(path);
            }
            _ if is_last => break,
            _ => {
                length = path.len();
                commands.push(vec![path]);
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

/// A file's metadata beside its size and time.
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

/// The `stat` output for a file.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    size: u64,
    time: i64,
    metadata: FileMetadata,
}

impl Status {
    /// Parses a line, and returns the name without the common prefix as well.
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

/// A missing or failing program prints less; only a lost connection is an error.
fn check_connection(exit: CommandEnd) -> Result<(), Error> {
    match exit {
        CommandEnd::Disconnected(cause) => Err(upload_plan::disconnected(cause)),
        _ => Ok(()),
    }
}

/// Parses two numbers and a name; the name is returned without the common prefix.
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
    fn cksum_lines_are_two_numbers_and_a_name() {
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
    fn stat_lines_are_five_numbers_and_a_name() {
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
    fn only_names_of_the_source_are_inspected() {
        let scratch = ScratchDir::new();
        scratch.write("a b", "");
        scratch.write("-c", "");
        // The target, whether it exists, and the inspected paths.
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
    fn many_names_are_split_into_a_limited_number_of_commands() {
        let name = || "n".repeat(MAX_COMMAND_BYTES / 4);
        for (names, expected) in [(0, 0), (1, 1), (4, 1), (5, 2), (4 * MAX_COMMANDS + 1, 64)] {
            let commands = split_into_commands(std::iter::repeat_with(name).take(names));
            assert_eq!(commands.len(), expected, "{names}");
            let total: usize = commands.iter().map(Vec::len).sum();
            assert_eq!(total, names.min(4 * MAX_COMMANDS));
        }
        // A name longer than the limit gets a command of its own.
        let long = ["n".repeat(2 * MAX_COMMAND_BYTES), "m".to_owned()];
        assert_eq!(split_into_commands(long.into_iter()).len(), 2);
    }

    /// The local metadata with another time and other permissions.
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
    fn a_file_is_present_only_with_its_size_time_and_content() {
        let scratch = ScratchDir::new();
        let path = scratch.write("file", "contents");
        let (file, status) = (File::open(&path).unwrap(), path.metadata().unwrap());
        let (size, time) = (status.len(), status.mtime());
        let sum = Cksum::of(&file, size).unwrap().unwrap();
        let sum = i64::from(sum.finish());
        // With times or not; the remote checksum and time; whether it is present.
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
        // Whether all files are ours; how many others have the local metadata and how many have
        // not; whether this one has it, and is present.
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
        // A completed file is present until it changes locally.
        let mut inventory = RemoteInventory::default();
        inventory
            .resumed
            .push((b"it/file".to_vec(), file_identity(&status)));
        assert!(inventory.contains(b"it/file", &file, &status));
        std::fs::write(&path, "other contents").unwrap();
        assert!(!inventory.contains(b"it/file", &file, &path.metadata().unwrap()));
    }
}

//! The commands that copies run in containers. Names are arguments, never part of a script, and
//! never look like flags. `tar` is all that is needed; with a shell, interrupted copies can be
//! resumed, and incomplete files never have their final name.

use super::copy_spec::RemotePath;
use super::options::{Options, Preserve, Retries};
use super::remote_writer::RemoteWriter;

/// The name of the copied tree inside the staging directory, until it is complete.
pub(super) const STAGED_NAME: &str = "it";

/// The last entry of a staged archive. A tar whose input ends between two entries treats that as
/// the end of the archive; without this entry nothing is moved into place.
pub(super) const COMPLETE_MARKER: &str = "whole";

/// Exists in the staging directory once everything has been moved into place.
pub(super) const DONE_MARKER: &str = "done";

/// The words that [`PROBE`] and [`STOP_WRITER`] print.
pub(super) mod reply {
    /// tar exists.
    pub(in super::super) const TAR: &str = "tar";
    /// Files can be staged and renamed.
    pub(in super::super) const STAGE: &str = "stage";
    /// The first path is a directory.
    pub(in super::super) const DIRECTORY: &str = "directory";
    /// The second path is a directory.
    pub(in super::super) const INNER: &str = "inner";
    /// The writer could not be stopped.
    pub(in super::super) const BUSY: &str = "busy";
}

const PROBE: &str = "\
command -v tar >/dev/null 2>&1 && echo tar
command -v mv >/dev/null 2>&1 && command -v rm >/dev/null 2>&1 && echo stage
[ -d \"$1\" ] && echo directory
[ -d \"$2\" ] && echo inner
exit 0";

/// Prints a line with the checksum of an archive's prefix, then the archive from an offset on.
/// Both come from one run of tar: two runs may see two versions of a file.
///
/// The pipe must be left exactly where the checksum ends. Only dd guarantees that: head may
/// read ahead. The exit status must be tar's, not that of the other programs: hence file
/// descriptors 3 and 4.
const RESUME_PACK: &str = "\
exec 4>&1
s=$({ { tar -c -f - -C \"$1\" \"$2\" 4>&-; echo $? >&3; } | tail -c +\"$3\" | {
{ dd bs=\"$4\" count=\"$5\" iflag=fullblock; dd bs=1 count=\"$6\"; } 2>/dev/null | cksum &&
tail -c +\"$7\"
} >&4; } 3>&1)
exit \"${s:-1}\"";

/// The block size for the checksum: one call for each block, and one for each remaining byte.
const CKSUM_BLOCK_BYTES: u64 = 16 << 10;

/// The start time of a process, unless it has ended: field 22 of its `/proc` stat, which a space in
/// the program name would shift; the names of these programs have none. Together with the process
/// ID it identifies the process although IDs are reused.
macro_rules! start_time {
    () => {
        "born() { read -r l </proc/\"$1\"/stat && set -- $l && [ \"$3\" != Z ] && echo \"${22}\"; } \
         2>/dev/null\n"
    };
}

/// Announces the writer, its shell and their user, with a dash for unknown values. The empty
/// line ends a line that the shell may have printed before.
macro_rules! announce {
    ($writer:literal) => {
        concat!(
            "b=$(born ",
            $writer,
            ") c=$(born $$) u=$(id -u 2>/dev/null)\necho\necho \"skewbridge ",
            $writer,
            " ${b:--} $$ ${c:--} ${u:--}\"\n"
        )
    };
}

/// Extracts into an existing directory, and announces the writer.
const UNPACK_ANNOUNCED: &str = concat!(start_time!(), announce!("$$"), "exec tar \"$@\"");

/// Extracts beside the target, announces the writer, and renames when the whole archive has
/// arrived. The script itself removes an incomplete copy if it will not be resumed: a client that
/// has lost its connection cannot.
///
/// A marker file shows a resuming client that everything is in place. That the staging directory is
/// missing would prove nothing: it may never have existed.
const UNPACK_STAGED: &str = concat!(
    start_time!(),
    "\
d=$1 s=$2 t=$3 k=$4; shift 4
end() { c=$?; [ $k = keep ] || rm -rf \"$d/$s\"; exit $c; }
exec 3<&0
tar -x -f - -C \"$d\" \"$@\" <&3 3<&- &
p=$!
exec 3<&-
",
    announce!("$p"),
    "\
wait \"$p\" || end
[ -e \"$d/$s/whole\" ] || { echo 'the archive was cut off' >&2; false; } || end
if [ -d \"$t\" ]; then echo \"$t is a directory now\" >&2; false; fi || end
mv -f \"$d/$s/it\" \"$t\" || end
if [ $k = keep ]; then : >\"$d/$s/done\"; else rm -rf \"$d/$s\"; fi
exit 0"
);

/// Kills the writer of a lost connection, and waits for it and its shell to end: otherwise they
/// would create further files while the existing ones are inspected, replaced or removed.
const STOP_WRITER: &str = concat!(
    start_time!(),
    "\
n=0
while t=$(born \"$1\"); [ \"$t\" = \"$2\" ] || [ \"$(born \"$3\")\" = \"$4\" ]; do
if [ $n -eq 20 ]; then echo busy; break; fi
[ \"$t\" != \"$2\" ] || kill -9 \"$1\" 2>/dev/null
n=$((n + 1))
sleep 0.1 2>/dev/null || sleep 1
done
[ -z \"$5\" ] || rm -rf \"$5\"
exit 0"
);

/// One file without tar: a shell cannot distinguish truncation from the end, so the bytes are
/// counted.
const UNPACK_CAT: &str = "\
t=$1
end() { c=$?; rm -f \"$t\"; exit $c; }
cat >\"$t\" || end
n=$(wc -c <\"$t\") || end
[ $n -eq \"$3\" ] || { echo \"only $n of $3 bytes came\" >&2; false; } || end
chmod \"$4\" \"$t\" 2>/dev/null
if [ -d \"$2\" ]; then echo \"$2 is a directory now\" >&2; false; fi || end
mv -f \"$t\" \"$2\" || end";

/// Appends to a file, and announces the writer.
const APPEND: &str = concat!(
    start_time!(),
    "\
exec 3<&0
cat >>\"$1\" <&3 3<&- &
p=$!
exec 3<&-
",
    announce!("$p"),
    "\
wait \"$p\" || exit
n=$(wc -c <\"$1\") || exit
if [ \"$n\" -ne \"$2\" ]; then echo \"$n instead of $2 bytes are there\" >&2; exit 1; fi
exit 0"
);

/// Sets the metadata that the archive would have set on a resumed file.
const SET_METADATA: &str = "\
chown \"$2\" \"$1\" 2>/dev/null
chmod \"$3\" \"$1\" 2>/dev/null
touch -d \"@$4\" \"$1\" 2>/dev/null
cksum <\"$1\"";

fn to_strings<const N: usize>(to_strings: [&str; N]) -> Vec<String> {
    to_strings.map(str::to_owned).to_vec()
}

fn shell<const N: usize>(shell: &str, arguments: [&str; N]) -> Vec<String> {
    let mut command = to_strings(["sh", "-c", shell, "sh"]);
    command.extend(arguments.map(str::to_owned));
    command
}

/// Creates an archive of a path.
pub(super) fn pack(path: &RemotePath) -> Vec<String> {
    to_strings([
        "tar",
        "-c",
        "-f",
        "-",
        "-C",
        &path.directory,
        &path.tar_argument(),
    ])
}

/// The archive from `offset` on, preceded by the checksum of `prefix_length` bytes from
/// `prefix_start` on. Offsets start at zero.
pub(super) fn resume_pack(
    path: &RemotePath,
    prefix_start: u64,
    prefix_length: u64,
    offset: u64,
) -> Vec<String> {
    let skipped = offset.saturating_sub(prefix_start + prefix_length);
    shell(
        RESUME_PACK,
        [
            &path.directory,
            &path.tar_argument(),
            &(prefix_start + 1).to_string(),
            &CKSUM_BLOCK_BYTES.to_string(),
            &(prefix_length / CKSUM_BLOCK_BYTES).to_string(),
            &(prefix_length % CKSUM_BLOCK_BYTES).to_string(),
            &(skipped + 1).to_string(),
        ],
    )
}

/// Inspects a path, and one inside it.
pub(super) fn probe(path: &str, inner: &str) -> Vec<String> {
    shell(PROBE, [path, inner])
}

/// Inspects a path without a shell.
pub(super) fn is_directory(path: &str) -> Vec<String> {
    to_strings(["test", "-d", path])
}

/// Whether a file exists.
pub(super) fn is_file(path: &str) -> Vec<String> {
    to_strings(["test", "-f", path])
}

/// Extracts into a directory, and announces the writer.
pub(super) fn unpack_announced(directory: &str, preserve: Preserve) -> Vec<String> {
    let mut command = shell(UNPACK_ANNOUNCED, ["-x", "-f", "-", "-C", directory]);
    command.extend(preserve_flags(preserve));
    command
}

/// Extracts into a directory without a shell, so without an announcement.
pub(super) fn unpack(directory: &str, preserve: Preserve) -> Vec<String> {
    let mut command = to_strings(["tar", "-x", "-f", "-", "-C", directory]);
    command.extend(preserve_flags(preserve));
    command
}

/// Extracts into a staging directory, announces the writer, and renames the result when it is
/// complete.
pub(super) fn unpack_staged(
    directory: &str,
    stage: &str,
    target: &str,
    options: &Options,
) -> Vec<String> {
    let keep = match options.retries {
        Retries::AtMost(0) => "drop",
        _ => "keep",
    };
    let mut command = shell(UNPACK_STAGED, [directory, stage, target, keep]);
    command.extend(preserve_flags(options.preserve));
    command
}

/// kubectl's flags. Unlike kubectl, times are kept by default.
fn preserve_flags(preserve: Preserve) -> Vec<String> {
    match preserve {
        Preserve::Yes => Vec::new(),
        Preserve::No => to_strings(["--no-same-permissions", "--no-same-owner", "-m"]),
    }
}

/// Writes a file, and renames it when it is complete.
pub(super) fn unpack_cat(temporary: &str, target: &str, size: u64, mode: u32) -> Vec<String> {
    shell(
        UNPACK_CAT,
        [temporary, target, &size.to_string(), &format!("{mode:o}")],
    )
}

/// The checksums and sizes of all files of trees.
pub(super) fn cksum_files(paths: &[String]) -> Vec<String> {
    find_exec(paths, ["cksum"])
}

/// The sizes, times, permissions, owners and groups of all files of trees.
pub(super) fn stat_files(paths: &[String]) -> Vec<String> {
    find_exec(paths, ["stat", "-c", "%s %Y %a %u %g %n"])
}

/// Runs a program on all files of trees, except on mounted file systems.
fn find_exec<const N: usize>(paths: &[String], program: [&str; N]) -> Vec<String> {
    let mut command = to_strings(["find"]);
    command.extend_from_slice(paths);
    command.extend(to_strings(["-xdev", "-type", "f", "-exec"]));
    command.extend(to_strings(program));
    command.extend(to_strings(["{}", "+"]));
    command
}

/// The POSIX checksum of a file.
pub(super) fn checksum(path: &str) -> Vec<String> {
    shell("cksum <\"$1\"", [path])
}

/// Appends to a file up to this size, and announces the writer.
pub(super) fn append(path: &str, size: u64) -> Vec<String> {
    shell(APPEND, [path, &size.to_string()])
}

/// Sets a file's owner, permissions and time where possible, and prints its checksum.
pub(super) fn set_metadata(path: &str, owner: (u64, u64), mode: u32, time: i64) -> Vec<String> {
    shell(
        SET_METADATA,
        [
            path,
            &format!("{}:{}", owner.0, owner.1),
            &format!("{mode:o}"),
            &time.to_string(),
        ],
    )
}

/// Stops a writer whose connection was lost, and removes a staging directory, if there is one.
pub(super) fn stop_writer(writer: &RemoteWriter, stage: Option<&str>) -> Vec<String> {
    let [writer_pid, writer_started, shell_pid, shell_started] = writer.fields();
    let stage = stage.unwrap_or_default();
    shell(
        STOP_WRITER,
        [writer_pid, writer_started, shell_pid, shell_started, stage],
    )
}

/// Removes a staging directory that has no writer.
pub(super) fn remove(stage: &str) -> Vec<String> {
    to_strings(["rm", "-rf", stage])
}

/// The checksum and size of a file, without a shell.
pub(super) fn cksum(path: &str) -> Vec<String> {
    to_strings(["cksum", path])
}

/// A file from an offset on (starting at zero).
pub(super) fn tail(path: &str, offset: u64) -> Vec<String> {
    to_strings(["tail", "-c", &format!("+{}", offset + 1), path])
}

/// A whole file.
pub(super) fn cat(path: &str) -> Vec<String> {
    to_strings(["cat", path])
}

/// The size of a file.
pub(super) fn count_bytes(path: &str) -> Vec<String> {
    to_strings(["wc", "-c", path])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use skewbridge_testkit::ScratchDir;

    use super::*;
    use crate::copy::tar::{Entry, Kind, write_end, write_entry};

    type Replace = dyn Fn(&std::path::Path);
    type Put = fn(&ScratchDir) -> bool;

    /// Uploads an empty file to `dir/target` without tar, with real programs.
    fn upload_cat(scratch: &ScratchDir) -> bool {
        let directory = scratch.path().join("dir").display().to_string();
        let (stage, target) = (format!("{directory}/stage"), format!("{directory}/target"));
        run(&unpack_cat(&stage, &target, 0, 0o600), &[])
    }

    /// Uploads an archive of an empty file to `dir/target`, with real programs.
    fn upload_tar(scratch: &ScratchDir) -> bool {
        let directory = scratch.path().join("dir").display().to_string();
        let options = Options::default();
        let target = format!("{directory}/target");
        let command = unpack_staged(&directory, "stage", &target, &options);
        let mut archive = Vec::new();
        write_entry(&Entry::new("stage/", Kind::Directory), &mut archive);
        for name in [STAGED_NAME, COMPLETE_MARKER] {
            let entry = Entry::new(format!("stage/{name}"), Kind::File);
            write_entry(&entry, &mut archive);
        }
        write_end(&mut archive);
        run(&command, &archive)
    }

    fn run(command: &[String], input: &[u8]) -> bool {
        use std::io::Write as _;
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // tar may exit before it has read all of the end marker.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait().unwrap().success()
    }

    #[test]
    fn nothing_is_moved_into_a_target_that_has_become_a_directory() {
        // What the target has become meanwhile, and whether it is replaced.
        let rows: [(&str, &Replace, bool); 4] = [
            ("nothing", &|_| {}, true),
            (
                "a symlink to nothing",
                &|it| symlink("no", it).unwrap(),
                true,
            ),
            ("a directory", &|it| std::fs::create_dir(it).unwrap(), false),
            (
                "a symlink to one",
                &|it| symlink("../other", it).unwrap(),
                false,
            ),
        ];
        let methods: [(&str, Put); 2] = [("tar", upload_tar), ("cat", upload_cat)];
        let command = rows.iter().flat_map(|row| methods.map(|plan| (row, plan)));
        for ((what, replace, expected), (method, upload_tar)) in command {
            let (what, expected) = (format!("{what}, by {method}"), *expected);
            let scratch = ScratchDir::new();
            let other = scratch.path().join("other");
            std::fs::create_dir(&other).unwrap();
            std::fs::create_dir(scratch.path().join("dir")).unwrap();
            let target = scratch.path().join("dir/target");
            replace(&target);
            assert_eq!(upload_tar(&scratch), expected, "{what}");
            let is_file = target.symlink_metadata().unwrap().is_file();
            assert_eq!(is_file, expected, "{what}");
            assert_eq!(other.read_dir().unwrap().count(), 0, "{what}");
            assert!(!scratch.path().join("dir/stage").exists(), "{what}");
        }
    }
}

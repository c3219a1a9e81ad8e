//! The commands of a copy, word by word. Names are arguments, never text of a script,
//! and never look like flags. `tar` is all that is needed; where there is a shell too,
//! broken copies go on where they stopped, and what is not whole has no name.

use super::copy_spec::RemotePath;
use super::options::{Options, Preserve, Retries};
use super::remote_writer::RemoteWriter;

/// What everything that goes into a pod is below until it is whole.
pub(super) const STAGED_NAME: &str = "it";

/// The last entry of such an archive. A tar that is cut off between two entries takes
/// that for the end; what comes without this is not put in place.
pub(super) const COMPLETE_MARKER: &str = "whole";

/// What is in the stage when everything has been put in place.
pub(super) const DONE_MARKER: &str = "done";

/// The words that [`PROBE`] and [`STOP_WRITER`] answer.
pub(super) mod reply {
    /// There is a tar.
    pub(in super::super) const TAR: &str = "tar";
    /// What is whole can be renamed.
    pub(in super::super) const STAGE: &str = "stage";
    /// The first path is a directory.
    pub(in super::super) const DIRECTORY: &str = "directory";
    /// What would be in it is one too.
    pub(in super::super) const INNER: &str = "inner";
    /// Who was to be ended is still at work.
    pub(in super::super) const BUSY: &str = "busy";
}

const PROBE: &str = "\
command -v tar >/dev/null 2>&1 && echo tar
command -v mv >/dev/null 2>&1 && command -v rm >/dev/null 2>&1 && echo stage
[ -d \"$1\" ] && echo directory
[ -d \"$2\" ] && echo inner
exit 0";

/// An archive from a byte on, behind a line with the checksum of what it is known by. Both
/// are of one run of tar: what two of them say may be of two versions of a file.
///
/// A pipe has to be left where the sum ends. Of all programs only dd does so: a head may
/// read further than it says. What tar ended with is what counts, not what the others did:
/// hence the third and fourth handles.
const RESUME_PACK: &str = "\
exec 4>&1
s=$({ { tar -c -f - -C \"$1\" \"$2\" 4>&-; echo $? >&3; } | tail -c +\"$3\" | {
{ dd bs=\"$4\" count=\"$5\" iflag=fullblock; dd bs=1 count=\"$6\"; } 2>/dev/null | cksum &&
tail -c +\"$7\"
} >&4; } 3>&1)
exit \"${s:-1}\"";

/// In what blocks it is summed up: a call for each, and one for each byte of the rest.
const CKSUM_BLOCK_BYTES: u64 = 16 << 10;

/// When a process began, unless it has ended: `/proc` says so in its 22nd word, and no name
/// of ours has a space in it. With its number that is itself, whose number is given again.
macro_rules! start_time {
    () => {
        "born() { read -r l </proc/\"$1\"/stat && set -- $l && [ \"$3\" != Z ] && echo \"${22}\"; } \
         2>/dev/null\n"
    };
}

/// Says who writes, which shell that is of, and whose both are, with a dash for what cannot
/// be known there. What a shell has said before is a line of its own.
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

/// What that line begins with.
pub(super) const ANNOUNCEMENT_PREFIX: &str = "skewbridge ";

/// Extracts into a directory that is there, and says who does.
const UNPACK_ANNOUNCED: &str = concat!(start_time!(), announce!("$$"), "exec tar \"$@\"");

/// Extracts beside the target, says who does, and renames when all is there. What is not
/// whole is removed there, if nobody will go on with it: who has lost the connection cannot.
///
/// That it is in its place is said by a file, if somebody may ask: that the stage is gone
/// says nothing, it may never have been there.
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

/// Ends who writes for a lost connection, and waits for that and for its shell: they may be
/// at work still, and would go on making what is looked at, made anew or removed.
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

/// One file without a tar: a shell cannot tell a cut from an end, so it is counted.
const UNPACK_CAT: &str = "\
t=$1
end() { c=$?; rm -f \"$t\"; exit $c; }
cat >\"$t\" || end
n=$(wc -c <\"$t\") || end
[ $n -eq \"$3\" ] || { echo \"only $n of $3 bytes came\" >&2; false; } || end
chmod \"$4\" \"$t\" 2>/dev/null
if [ -d \"$2\" ]; then echo \"$2 is a directory now\" >&2; false; fi || end
mv -f \"$t\" \"$2\" || end";

/// Goes on with a file, and says who does.
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

/// What a file that was gone on with should have had from its archive.
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

/// An archive of a path.
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

/// The same from a byte on, behind the checksum of so many bytes from another one on.
/// Bytes are counted from zero.
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

/// What is at a path, and at one inside it.
pub(super) fn probe(path: &str, inner: &str) -> Vec<String> {
    shell(PROBE, [path, inner])
}

/// The same without a shell.
pub(super) fn is_directory(path: &str) -> Vec<String> {
    to_strings(["test", "-d", path])
}

/// Whether there is a file.
pub(super) fn is_file(path: &str) -> Vec<String> {
    to_strings(["test", "-f", path])
}

/// Extracts into a directory, and says who does.
pub(super) fn unpack_announced(directory: &str, preserve: Preserve) -> Vec<String> {
    let mut command = shell(UNPACK_ANNOUNCED, ["-x", "-f", "-", "-C", directory]);
    command.extend(preserve_flags(preserve));
    command
}

/// The same without a shell, and without a word.
pub(super) fn unpack(directory: &str, preserve: Preserve) -> Vec<String> {
    let mut command = to_strings(["tar", "-x", "-f", "-", "-C", directory]);
    command.extend(preserve_flags(preserve));
    command
}

/// Extracts into a directory below a name, says who does, and renames what is there when it
/// is whole.
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

/// As kubectl asks for it. The times are kept otherwise, which kubectl does not.
fn preserve_flags(preserve: Preserve) -> Vec<String> {
    match preserve {
        Preserve::Yes => Vec::new(),
        Preserve::No => to_strings(["--no-same-permissions", "--no-same-owner", "-m"]),
    }
}

/// Writes a file, and renames it when it is whole.
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

/// Their sizes, times, permissions, owners and groups.
pub(super) fn stat_files(paths: &[String]) -> Vec<String> {
    find_exec(paths, ["stat", "-c", "%s %Y %a %u %g %n"])
}

/// Runs a program with all files of trees, but for what is mounted in them.
fn find_exec<const N: usize>(paths: &[String], program: [&str; N]) -> Vec<String> {
    let mut command = to_strings(["find"]);
    command.extend_from_slice(paths);
    command.extend(to_strings(["-xdev", "-type", "f", "-exec"]));
    command.extend(to_strings(program));
    command.extend(to_strings(["{}", "+"]));
    command
}

/// The checksum of a file, as POSIX has it.
pub(super) fn checksum(path: &str) -> Vec<String> {
    shell("cksum <\"$1\"", [path])
}

/// Goes on with a file that is to be so large, and says who does.
pub(super) fn resume(path: &str, size: u64) -> Vec<String> {
    shell(APPEND, [path, &size.to_string()])
}

/// Gives a file its owner, permissions and time where that can be done, and says its
/// checksum.
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

/// Lets somebody write no more, though its connection was lost; and removes a stage that
/// nobody needs any more, if there is one.
pub(super) fn stop_writer(writer: &RemoteWriter, stage: Option<&str>) -> Vec<String> {
    let [writer_pid, writer_started, shell_pid, shell_started] = writer.fields();
    let stage = stage.unwrap_or_default();
    shell(
        STOP_WRITER,
        [writer_pid, writer_started, shell_pid, shell_started, stage],
    )
}

/// The same where nobody can be at work there.
pub(super) fn remove(stage: &str) -> Vec<String> {
    to_strings(["rm", "-rf", stage])
}

/// The checksum and size of a file, without a shell.
pub(super) fn cksum(path: &str) -> Vec<String> {
    to_strings(["cksum", path])
}

/// One file from a byte on (counted from zero).
pub(super) fn tail(path: &str, offset: u64) -> Vec<String> {
    to_strings(["tail", "-c", &format!("+{}", offset + 1), path])
}

/// One file.
pub(super) fn cat(path: &str) -> Vec<String> {
    to_strings(["cat", path])
}

/// How large it is.
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

    /// Puts an empty file at `dir/target` without a tar, by the real programs.
    fn upload_cat(scratch: &ScratchDir) -> bool {
        let directory = scratch.path().join("dir").display().to_string();
        let (stage, target) = (format!("{directory}/stage"), format!("{directory}/target"));
        run(&unpack_cat(&stage, &target, 0, 0o600), &[])
    }

    /// Puts an archive of an empty file at `dir/target`, by the real programs.
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
        // tar may leave before it has read all of the end.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait().unwrap().success()
    }

    #[test]
    fn nothing_is_moved_into_what_has_become_a_directory() {
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

//! Generated files: printed, or written to a directory without replacing what is not theirs.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::client_command::{Failure, print_stderr};

/// A file that an administrator puts on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GeneratedFile {
    /// Its name in `--output-dir`.
    pub(super) name: &'static str,
    pub(super) mode: Mode,
    /// With a comment at its top that lists what changes and how to undo it, where the format has
    /// comments.
    pub(super) text: String,
}

/// The permissions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// 0644.
    Readable,
    /// 0600, as kubeadm writes manifests.
    Private,
}

/// The permissions of directories that are created.
const DIRECTORY_MODE: u32 = 0o755;

impl Mode {
    fn bits(self) -> u32 {
        match self {
            Self::Readable => 0o644,
            Self::Private => 0o600,
        }
    }
}

/// Prints one file as it is, and several with the name of each above it.
pub(super) fn print(files: &[GeneratedFile]) {
    // Write errors are ignored: the reader may have closed the pipe.
    let _ = io::stdout().write_all(printed(files).as_bytes());
}

fn printed(files: &[GeneratedFile]) -> String {
    if let [only] = files {
        return only.text.clone();
    }
    let mut text = String::new();
    for file in files {
        if !text.is_empty() {
            text.push('\n');
        }
        // Writing to a string does not fail.
        let _ = write!(text, "# ===== {} =====\n{}", file.name, file.text);
    }
    text
}

/// What has to be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Write,
    Replace,
    Keep,
}

/// Writes all files, or none if one of them would replace other content and `force` is not set.
pub(super) fn write(files: &[GeneratedFile], directory: &Path, force: bool) -> Result<(), Failure> {
    let mut planned = Vec::new();
    for file in files {
        let path = directory.join(file.name);
        let action = plan(file, &path, force)?;
        planned.push((file, path, action));
    }
    create(directory).map_err(|error| failed(directory, &error))?;
    for (file, path, action) in planned {
        match action {
            Action::Keep => print_stderr(format_args!("{}: unchanged", path.display())),
            Action::Write | Action::Replace => {
                replace(file, directory, &path).map_err(|error| failed(&path, &error))?;
                let done = if action == Action::Replace {
                    "replaced"
                } else {
                    "written"
                };
                print_stderr(format_args!("{}: {done}", path.display()));
            }
        }
    }
    Ok(())
}

/// Creates a directory that the user of the bridge can enter, whatever the umask of root.
fn create(directory: &Path) -> io::Result<()> {
    let missing = directory.ancestors().take_while(|it| !it.exists());
    let missing: Vec<_> = missing.filter(|it| !it.as_os_str().is_empty()).collect();
    fs::create_dir_all(directory)?;
    for created in missing {
        fs::set_permissions(created, Permissions::from_mode(DIRECTORY_MODE))?;
    }
    Ok(())
}

/// Compares a file with what is there.
fn plan(file: &GeneratedFile, path: &Path, force: bool) -> Result<Action, Failure> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Action::Write),
        Err(error) => return Err(failed(path, &error)),
        Ok(found) if !found.is_file() => {
            let path = path.display();
            return Err(Failure::new(format_args!(
                "--output-dir: {path} is not a regular file, and is not replaced; remove it or \
                 write to another directory"
            )));
        }
        Ok(_) => {}
    }
    let found = fs::read(path).map_err(|error| failed(path, &error))?;
    if found == file.text.as_bytes() {
        Ok(Action::Keep)
    } else if force {
        Ok(Action::Replace)
    } else {
        let path = path.display();
        Err(Failure::new(format_args!(
            "--output-dir: {path} exists with other content, and nothing was written; compare the \
             two, and give --force to replace it"
        )))
    }
}

/// Replaces a file atomically: writes a temporary file in the same directory and renames it.
fn replace(file: &GeneratedFile, directory: &Path, path: &Path) -> io::Result<()> {
    // kubelet reads all files of its directory except those whose names begin with a dot.
    let temporary: PathBuf = directory.join(format!(".{}.{}.tmp", file.name, std::process::id()));
    let written = write_new(file, &temporary).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_new(file: &GeneratedFile, path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(file.mode.bits());
    let mut written = options.open(path)?;
    // Without the bits that the umask of root removes, the user of the bridge could not read it.
    written.set_permissions(Permissions::from_mode(file.mode.bits()))?;
    written.write_all(file.text.as_bytes())?;
    written.sync_all()
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("--output-dir: {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    fn file(text: &str) -> GeneratedFile {
        GeneratedFile {
            name: "a.yaml",
            mode: Mode::Readable,
            text: text.to_owned(),
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn a_single_file_is_printed_as_it_is_and_several_with_their_names() {
        let [one, other] = [file("one\n"), file("two\n")];
        assert_eq!(printed(std::slice::from_ref(&one)), "one\n");
        let expected = "# ===== a.yaml =====\none\n\n# ===== a.yaml =====\ntwo\n";
        assert_eq!(printed(&[one, other]), expected);
    }

    #[test]
    fn files_are_written_with_their_mode_and_nothing_is_left_beside_them() {
        let directory = ScratchDir::new();
        let below = directory.path().join("a/b");
        write(&[file("one\n")], &below, false).unwrap();
        assert_eq!(fs::read_to_string(below.join("a.yaml")).unwrap(), "one\n");
        let mode = fs::metadata(below.join("a.yaml")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o644);
        assert_eq!(names(&below), ["a.yaml"]);
    }

    #[test]
    fn other_content_is_replaced_only_with_force() {
        let directory = ScratchDir::new();
        let path = directory.path().join("a.yaml");
        write(&[file("one\n")], directory.path(), false).unwrap();
        write(&[file("one\n")], directory.path(), false).unwrap();
        let wrong = write(&[file("two\n")], directory.path(), false).unwrap_err();
        assert!(
            wrong
                .to_string()
                .contains("a.yaml exists with other content")
        );
        assert!(wrong.to_string().contains("--force"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        write(&[file("two\n")], directory.path(), true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(names(directory.path()), ["a.yaml"]);
    }

    #[test]
    fn of_several_files_none_is_written_if_one_would_replace_other_content() {
        let directory = ScratchDir::new();
        fs::write(directory.path().join("b.yaml"), "mine").unwrap();
        let other = GeneratedFile {
            name: "b.yaml",
            ..file("two\n")
        };
        write(&[file("one\n"), other], directory.path(), false).unwrap_err();
        assert_eq!(names(directory.path()), ["b.yaml"]);
    }

    #[test]
    fn a_link_or_directory_is_never_replaced() {
        let directory = ScratchDir::new();
        let target = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&target, directory.path().join("a.yaml")).unwrap();
        for force in [false, true] {
            let wrong = write(&[file("one\n")], directory.path(), force).unwrap_err();
            assert!(wrong.to_string().contains("not a regular file"), "{wrong}");
        }
        assert!(!target.exists());
    }
}

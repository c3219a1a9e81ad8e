//! Whether two builds of the same sources are equal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::build;
use super::packages::{CHECKSUMS, sha256};
use super::platform::{Profile, Program};
use super::source::Source;
use super::staging::failed;
use crate::step::{self, StepError};

/// The second compilation of `dist --check`: that of the crates of this workspace, in another
/// directory. It uses the target directory of the first one, so that the crates of others, which
/// take most of the time, are not compiled again. `dist --verify` compiles everything again.
pub(super) struct SecondCompilation {
    source: Source,
    directory: PathBuf,
}

/// The directory of the copy, below that of the check. Its name is in the flags of both
/// compilations, and so it does not change.
const COPY: &str = "copy";

impl SecondCompilation {
    /// Before the first compilation. After a difference, or a run that was interrupted, the target
    /// directory has crates that were compiled from the copy, and is not used again.
    pub(super) fn prepare(source: &Source, directory: &Path) -> Result<Self, StepError> {
        let second = Self {
            source: source.compiled_also_in(checkout(&directory.join(COPY))),
            directory: directory.to_owned(),
        };
        if second.unfinished().exists() {
            let target = second.target();
            fs::remove_dir_all(&target).map_err(failed(&target))?;
        }
        Ok(second)
    }

    /// The sources of the first compilation.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// The target directory of both.
    pub(super) fn target(&self) -> PathBuf {
        self.directory.join("build")
    }

    /// In the target directory while it is used for the copy.
    fn unfinished(&self) -> PathBuf {
        self.target().join("second-compilation-unfinished")
    }

    /// Compiles the program again, and compares it with that in the packages of the first
    /// compilation.
    pub(super) fn compare(&self, program: Program, packages: &Path) -> Result<(), StepError> {
        let unfinished = self.unfinished();
        fs::write(&unfinished, "").map_err(failed(&unfinished))?;
        // The copied files are newer than what was made from the original ones: cargo compiles them.
        let copy = Copy::of(&self.source, self.directory.join(COPY))?;
        let again = build::build(program, Profile::Dev, copy.source(), &self.target())?;
        let first = packages.join(program.name()).join("skewbridge");
        if sha256(&first)? != sha256(&again.path)? {
            return Err(StepError(format!(
                "{program} differs if it is compiled in another directory; compare {} and {}",
                first.display(),
                again.path.display()
            )));
        }
        println!("{program}: compiled again in another directory, it has the same checksum.");
        fs::remove_file(&unfinished).map_err(failed(&unfinished))
    }
}

/// A directory for the copy of a complete second build.
pub(super) fn temporary_directory() -> PathBuf {
    let name = format!("skewbridge-second-build-{}", std::process::id());
    std::env::temp_dir().join(name)
}

/// The checkout in the directory of a copy.
fn checkout(directory: &Path) -> PathBuf {
    directory.join("another-checkout")
}

/// The sources in another directory, removed when it is dropped.
pub(super) struct Copy {
    directory: PathBuf,
    source: Source,
}

impl Copy {
    /// Copies the files of the sources, with their changes, as new files.
    pub(super) fn of(source: &Source, directory: PathBuf) -> Result<Self, StepError> {
        let root = checkout(&directory);
        fs::create_dir_all(&root).map_err(failed(&root))?;
        let copy = Self {
            source: source.copied_to(root.clone()),
            directory,
        };
        let mut list = list_of_files(source);
        let line = step::describe(&list);
        list.current_dir(source.root()).stdout(Stdio::piped());
        let mut list = list.spawn().map_err(failed(Path::new(&line)))?;
        let names = list
            .stdout
            .take()
            .ok_or_else(|| StepError(format!("`{line}` has no output")))?;
        let archive = copy.directory.join("sources.tar");
        let mut pack = Command::new("tar");
        pack.args(["--create", "--null", "--files-from=-", "--file"])
            .arg(&archive)
            .current_dir(source.root())
            .stdin(names);
        let packed = step::run(&mut pack);
        let listed = list.wait().map_err(failed(Path::new(&line)))?;
        packed?;
        step::check_status(&line, listed)?;
        let mut unpack = Command::new("tar");
        unpack
            .args(["--extract", "--touch", "--file"])
            .arg(&archive);
        step::run(unpack.arg("--directory").arg(&root))?;
        Ok(copy)
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// A target directory that is not in the checkout.
    pub(super) fn target(&self) -> PathBuf {
        self.directory.join("build")
    }

    pub(super) fn out(&self) -> PathBuf {
        self.directory.join("out")
    }
}

/// Prints the names of the files of the sources: those that git knows with new ones, or in an
/// unpacked archive all.
fn list_of_files(source: &Source) -> Command {
    if source.root().join(".git").exists() {
        let mut git = Command::new("git");
        git.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        git
    } else {
        let mut find = Command::new("find");
        find.args([
            ".", "-path", "./target", "-prune", "-o", "-type", "f", "-print0",
        ]);
        find
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Compares the checksums of two results.
pub(super) fn compare(first: &Path, second: &Path) -> Result<(), StepError> {
    let read = |directory: &Path| {
        let path = directory.join(CHECKSUMS);
        fs::read_to_string(&path).map_err(failed(&path))
    };
    let differing = differing(&read(first)?, &read(second)?);
    if differing.is_empty() {
        return Ok(());
    }
    Err(StepError(format!(
        "two builds differ in {}; compare {} and {}",
        differing.join(", "),
        first.display(),
        second.display()
    )))
}

/// Checks that a program names no directory of this machine. Only a second build in another directory
/// shows that nothing differs, but this is the usual reason.
pub(super) fn check_directories(program: &Path, directories: &[PathBuf]) -> Result<(), StepError> {
    for directory in directories {
        // `/src` would also be found in other paths.
        if directory.components().count() < 3 {
            continue;
        }
        let mut grep = Command::new("grep");
        grep.args(["--quiet", "--text", "--fixed-strings", "--regexp"])
            .arg(format!("{}/", directory.display()))
            .arg(program);
        let status = grep.status().map_err(failed(Path::new("grep")))?;
        match status.code() {
            Some(1) => {}
            Some(0) => {
                return Err(StepError(format!(
                    "{} contains the path {}, so that a build in another directory differs",
                    program.display(),
                    directory.display()
                )));
            }
            _ => step::check_status("grep", status)?,
        }
    }
    Ok(())
}

/// The names of files that only one list has, or with another checksum.
fn differing(first: &str, second: &str) -> Vec<String> {
    let only_in = |list: &str, other: &str| {
        let lines = list
            .lines()
            .filter(|line| !other.lines().any(|it| it == *line));
        let names = lines.map(|line| line.rsplit(' ').next().unwrap_or(line).to_owned());
        names.collect::<Vec<_>>()
    };
    let mut names = only_in(first, second);
    names.extend(only_in(second, first));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_this_machine_in_a_program_is_found() {
        let name = format!("xtask-directories-{}", std::process::id());
        let program = std::env::temp_dir().join(name);
        fs::write(
            &program,
            b"\x7fELF\n\0text/home/user/.cargo/registry/a.rs\n",
        )
        .unwrap();
        let check = |directory: &str| check_directories(&program, &[PathBuf::from(directory)]);
        for absent in ["/work/checkout", "/home/user/.car", "/home"] {
            assert!(check(absent).is_ok(), "{absent}");
        }
        let StepError(why) = check("/home/user/.cargo").unwrap_err();
        assert!(why.contains("contains the path /home/user/.cargo"), "{why}");
        fs::remove_file(&program).unwrap();
        assert!(check("/work/checkout").is_err(), "no program");
    }

    #[test]
    fn files_that_differ_are_named() {
        let rows: [(&str, &str, &[&str]); 4] = [
            ("aa  x\nbb  y\n", "aa  x\nbb  y\n", &[]),
            ("aa  x\nbb  y\n", "aa  x\ncc  y\n", &["y"]),
            ("aa  x\n", "aa  x\ncc  y\n", &["y"]),
            ("aa  x\ncc  y\n", "bb  x\n", &["x", "y"]),
        ];
        for (first, second, expected) in rows {
            assert_eq!(differing(first, second), expected, "{first} {second}");
        }
    }
}

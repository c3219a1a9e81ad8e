//! Whether two builds of the same sources are equal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::packages::CHECKSUMS;
use super::source::Source;
use super::staging::failed;
use crate::step::{self, StepError};

/// The sources in another directory, removed when it is dropped.
pub(super) struct Copy {
    directory: PathBuf,
    source: Source,
}

impl Copy {
    /// Copies the files that git knows, with their changes.
    pub(super) fn of(source: &Source) -> Result<Self, StepError> {
        let name = format!("skewbridge-second-build-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let root = directory.join("another-checkout");
        fs::create_dir_all(&root).map_err(failed(&root))?;
        let copy = Self {
            source: source.copied_to(root.clone()),
            directory,
        };
        let mut list = Command::new("git");
        list.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(source.root())
        .stdout(Stdio::piped());
        let mut list = list.spawn().map_err(failed(Path::new("git ls-files")))?;
        let names = list
            .stdout
            .take()
            .ok_or_else(|| StepError("git ls-files has no output".to_owned()))?;
        let archive = copy.directory.join("sources.tar");
        let mut pack = Command::new("tar");
        pack.args(["--create", "--null", "--files-from=-", "--file"])
            .arg(&archive)
            .current_dir(source.root())
            .stdin(names);
        let packed = step::run(&mut pack);
        let listed = list.wait().map_err(failed(Path::new("git ls-files")))?;
        packed?;
        step::check_status("git ls-files", listed)?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--file"]).arg(&archive);
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

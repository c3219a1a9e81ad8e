//! What a program needs of the machine that runs it, as `readelf` reports it.

use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::step::{StepError, output};

/// A version of glibc, or of symbols in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GlibcVersion {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl fmt::Display for GlibcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The needs of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needs {
    /// The dynamic linker.
    pub(super) interpreter: Option<String>,
    pub(super) libraries: Vec<String>,
    /// The newest version of a symbol.
    pub(super) glibc: Option<GlibcVersion>,
}

impl Needs {
    pub(super) fn of(program: &Path) -> Result<Self, StepError> {
        let mut readelf = Command::new("readelf");
        readelf.args(["--wide", "--program-headers", "--dynamic", "--version-info"]);
        Ok(Self::parse(&output(readelf.arg(program))?))
    }

    fn parse(text: &str) -> Self {
        let between = |line: &str, start: &str| {
            let (_, rest) = line.split_once(start)?;
            Some(rest.split(']').next()?.to_owned())
        };
        let mut lines = text.lines();
        let interpreter = lines.find_map(|it| between(it, "[Requesting program interpreter: "));
        let libraries = text
            .lines()
            .filter(|line| line.contains("(NEEDED)"))
            .filter_map(|line| between(line, "Shared library: ["))
            .collect();
        let glibc = text
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("GLIBC_"))
            .filter_map(|version| {
                let mut parts = version.split('.').map(str::parse);
                let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
                Some(GlibcVersion { major, minor })
            })
            .max();
        Self {
            interpreter,
            libraries,
            glibc,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_version_counts() {
        let text = "
  INTERP         0x000318 0x0000000000000318 0x0000000000000318 0x00001c 0x00001c R   0x1
      [Requesting program interpreter: /lib64/ld-linux-x86-64.so.2]
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
  0x0010:   Name: GCC_3.0  Flags: none  Version: 12
  0x0020:   Name: GLIBC_2.9  Flags: none  Version: 11
  0x0030:   Name: GLIBC_2.28  Flags: none  Version: 10
  0x0040:   Name: GLIBC_2.2.5  Flags: none  Version: 9
";
        assert_eq!(
            Needs::parse(text),
            Needs {
                interpreter: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
                libraries: vec!["libgcc_s.so.1".to_owned(), "libc.so.6".to_owned()],
                glibc: Some(GlibcVersion {
                    major: 2,
                    minor: 28
                }),
            }
        );
    }

    #[test]
    fn a_static_program_needs_nothing() {
        let text = "\n  LOAD 0x0\n 0x000000000000000c (INIT) 0x5000\n\nNo version information\n";
        let expected = Needs {
            interpreter: None,
            libraries: Vec::new(),
            glibc: None,
        };
        assert_eq!(Needs::parse(text), expected);
    }
}

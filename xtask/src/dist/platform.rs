//! The programs of a release: architecture, linkage and profile, and what their builds need.

use std::fmt;

/// A CPU architecture, by its name in Debian, Go and container images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Architecture {
    Amd64,
    Arm64,
}

/// How the C library is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Linkage {
    /// glibc of the machine that runs the program. It can load PKCS#11 modules.
    Dynamic,
    /// musl, inside of the program. It runs without any other file.
    Static,
}

/// How a program is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    /// What is installed.
    Release,
    /// For tests of everything but speed.
    Dev,
}

impl Profile {
    pub(super) fn cargo_name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "dev",
        }
    }

    /// Its directory below the target directory.
    pub(super) fn directory(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }
}

/// A program of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    pub(super) architecture: Architecture,
    pub(super) linkage: Linkage,
}

impl Architecture {
    pub(super) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// In the names of Rust targets.
    pub(super) fn rust_name(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// The directory of its libraries in Debian.
    pub(super) fn multiarch(self) -> String {
        format!("{}-linux-gnu", self.rust_name())
    }

    /// The C compiler for glibc, which links the programs of both linkages.
    pub(super) fn compiler(self) -> String {
        format!("{}-gcc", self.multiarch())
    }

    /// The Debian package with the compiler.
    pub(super) fn compiler_package(self) -> &'static str {
        match self {
            Self::Amd64 => "gcc-x86-64-linux-gnu",
            Self::Arm64 => "gcc-aarch64-linux-gnu",
        }
    }

    /// The architecture of this machine.
    pub(super) fn host() -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.rust_name() == std::env::consts::ARCH)
    }
}

impl Program {
    /// Both programs of an architecture.
    pub(super) fn both(architecture: Architecture) -> [Self; 2] {
        [Linkage::Dynamic, Linkage::Static].map(|linkage| Self {
            architecture,
            linkage,
        })
    }

    /// The Rust target.
    pub(super) fn target(self) -> String {
        let libc = match self.linkage {
            Linkage::Dynamic => "gnu",
            Linkage::Static => "musl",
        };
        format!("{}-unknown-linux-{libc}", self.architecture.rust_name())
    }

    /// In file names.
    pub(super) fn name(self) -> String {
        let suffix = match self.linkage {
            Linkage::Dynamic => "",
            Linkage::Static => "-static",
        };
        format!("linux-{}{suffix}", self.architecture.name())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_names_that_rust_debian_and_go_use() {
        let rows = [
            (
                "linux-amd64",
                "x86_64-unknown-linux-gnu",
                "x86_64-linux-gnu-gcc",
            ),
            (
                "linux-amd64-static",
                "x86_64-unknown-linux-musl",
                "x86_64-linux-gnu-gcc",
            ),
            (
                "linux-arm64",
                "aarch64-unknown-linux-gnu",
                "aarch64-linux-gnu-gcc",
            ),
            (
                "linux-arm64-static",
                "aarch64-unknown-linux-musl",
                "aarch64-linux-gnu-gcc",
            ),
        ];
        let programs = Architecture::ALL.into_iter().flat_map(Program::both);
        for (program, (name, target, compiler)) in programs.zip(rows) {
            assert_eq!(program.to_string(), name);
            assert_eq!(program.target(), target);
            assert_eq!(program.architecture.compiler(), compiler);
        }
    }
}

//! Builds the programs of a release, so that two builds of one commit are equal byte by byte.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::elf::GlibcVersion;
use super::platform::{Architecture, Linkage, Profile, Program};
use super::source::Source;
use super::sysroot::Sysroot;
use crate::debian_packages::{self, RequiredProgram};
use crate::production_build;
use crate::step::{self, StepError, cargo, output};

/// A program that was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Built {
    pub(super) program: Program,
    pub(super) path: PathBuf,
    /// The newest glibc that it may need; no limit if it was built with libraries of this machine.
    pub(super) newest_glibc: Option<GlibcVersion>,
}

/// Builds one program.
pub(super) fn build(
    program: Program,
    profile: Profile,
    source: &Source,
    target_directory: &Path,
) -> Result<Built, StepError> {
    let compiler: &'static str = program.architecture.compiler().leak();
    debian_packages::ensure(&[RequiredProgram {
        program: compiler,
        packages: match Architecture::host() {
            Some(host) if host == program.architecture => &["gcc", "libc6-dev"],
            _ => vec![program.architecture.compiler_package()].leak(),
        },
    }])?;
    let target = program.target();
    // Does nothing where it is installed.
    step::run(Command::new("rustup").args(["target", "add", &target]))?;
    let sysroot = Sysroot::provide(&cache()?, program.architecture, profile)?;
    let compiler_headers = output(Command::new(compiler).arg("-print-file-name=include"))?;
    let remapped = remapped_paths(source.root(), target_directory, sysroot.root())?;
    let flags = Flags::new(program, &sysroot, &compiler_headers, &remapped);
    let mut command = cargo(&format!(
        "build --locked --package skewbridge {} --profile {} --target {target}",
        production_build::FLAGS,
        profile.cargo_name(),
    ));
    command
        .current_dir(source.root())
        .env("CARGO_TARGET_DIR", target_directory)
        .env("SKEWBRIDGE_COMMIT", source.commit())
        .env("SOURCE_DATE_EPOCH", source.epoch().to_string())
        .env("CARGO_ENCODED_RUSTFLAGS", flags.rust.join("\x1f"))
        .env("CARGO_INCREMENTAL", "0");
    if profile == Profile::Dev {
        // Packages have no debug information, which would take minutes to compress.
        command
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_STRIP", "symbols");
    }
    let underscored = target.replace('-', "_");
    command
        .env(format!("CC_{underscored}"), compiler)
        .env(format!("CFLAGS_{underscored}"), flags.c.join(" "))
        .env(
            format!("CARGO_TARGET_{}_LINKER", underscored.to_uppercase()),
            compiler,
        );
    step::run(&mut command)?;
    Ok(Built {
        program,
        path: target_directory
            .join(target)
            .join(profile.directory())
            .join("skewbridge"),
        newest_glibc: sysroot.newest_glibc(),
    })
}

/// The flags of both compilers.
#[derive(Debug, PartialEq, Eq)]
struct Flags {
    rust: Vec<String>,
    c: Vec<String>,
}

impl Flags {
    /// `remapped` are the directories of this machine, and their names in the program.
    fn new(
        program: Program,
        sysroot: &Sysroot,
        compiler_headers: &str,
        remapped: &[(String, &str)],
    ) -> Self {
        let (mut c, link) = match program.linkage {
            Linkage::Dynamic => (sysroot.glibc_compile_flags(), sysroot.glibc_link_flags()),
            Linkage::Static => (sysroot.musl_compile_flags(compiler_headers), Vec::new()),
        };
        let mut rust: Vec<String> = link
            .into_iter()
            .map(|flag| format!("-Clink-arg={flag}"))
            .collect();
        for (directory, name) in remapped {
            rust.push(format!("--remap-path-prefix={directory}={name}"));
            c.push(format!("-ffile-prefix-map={directory}={name}"));
        }
        Self { rust, c }
    }
}

/// The directories whose names would be in the program. The last match counts, so the target
/// directory comes after the checkout that it may be in.
fn remapped_paths(
    checkout: &Path,
    target_directory: &Path,
    sysroot: &Path,
) -> Result<Vec<(String, &'static str)>, StepError> {
    let cargo_home = cargo_home()?;
    let directories = [
        (cargo_home.as_path(), "/cargo"),
        (checkout, "/skewbridge"),
        (target_directory, "/target"),
        (sysroot, "/sysroot"),
    ];
    let named = directories.map(|(path, name)| (path.display().to_string(), name));
    Ok(named.to_vec())
}

/// Directories of this machine that no program may contain: a build elsewhere would be different.
pub(super) fn machine_directories(checkout: &Path) -> Result<[PathBuf; 3], StepError> {
    Ok([checkout.to_owned(), cargo_home()?, cache()?])
}

fn cargo_home() -> Result<PathBuf, StepError> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
        .ok_or_else(|| StepError("neither CARGO_HOME nor HOME is set".to_owned()))
}

/// Where downloads are kept.
fn cache() -> Result<PathBuf, StepError> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("skewbridge/dist");
    std::fs::create_dir_all(&cache)
        .map_err(|error| StepError(format!("{}: {error}", cache.display())))?;
    Ok(cache)
}

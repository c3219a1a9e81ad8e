//! The C libraries that programs are built with: headers and stubs of an old Debian release, whose
//! glibc bounds the symbol versions that a program needs.
//!
//! apt verifies the packages with Debian's keyring. It keeps its lists in the cache directory;
//! the packages of this machine do not change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt_sources;
use super::elf::GlibcVersion;
use super::platform::{Architecture, Profile};
use super::staging::failed;
use crate::step::{self, StepError};

/// The release whose glibc (2.31) the programs are linked with: the oldest one with the libraries that
/// they need.
const RELEASE: &str = "bullseye";

/// The newest glibc that a dynamic program may need: Rust's own minimum, older than that of every
/// distribution that is still maintained. See [`OPTIONAL_FUNCTIONS`].
pub(super) const NEWEST_GLIBC: GlibcVersion = GlibcVersion {
    major: 2,
    minor: 17,
};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Headers and libraries of both C libraries, and the unwinder.
const PACKAGES: [&str; 5] = [
    "libc6",
    "libc6-dev",
    "libgcc-s1",
    "linux-libc-dev",
    "musl-dev",
];

/// Functions of glibc that Rust's standard library looks for when the program starts, and does
/// without. The linker would require the version of glibc that has them. They are those newer than
/// Rust's own minimum, glibc 2.17; `checks` fails where a function is missing here.
const OPTIONAL_FUNCTIONS: [&str; 5] = [
    "__cxa_thread_atexit_impl",
    "getrandom",
    "gettid",
    "posix_spawn_file_actions_addchdir_np",
    "statx",
];

/// The unpacked packages of an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sysroot {
    architecture: Architecture,
    root: PathBuf,
    newest_glibc: Option<GlibcVersion>,
}

impl Sysroot {
    /// Downloads the packages, unless they are in the cache directory. Programs that are installed
    /// need the libraries of [`RELEASE`]; a check also accepts those of this machine's release.
    pub(super) fn provide(
        cache: &Path,
        architecture: Architecture,
        profile: Profile,
    ) -> Result<Self, StepError> {
        let unpacked = |release: &str| unpacked(cache, release, architecture);
        let oldest = unpacked(RELEASE).map(|root| Self {
            architecture,
            root,
            newest_glibc: Some(NEWEST_GLIBC),
        });
        let own = || {
            let root = unpacked(&apt_sources::own_release()?)?;
            Ok(Self {
                architecture,
                root,
                newest_glibc: None,
            })
        };
        oldest_or_own(oldest, own, profile)
    }

    /// The newest glibc that programs may need, unless these are the libraries of this machine's
    /// release.
    pub(super) fn newest_glibc(&self) -> Option<GlibcVersion> {
        self.newest_glibc
    }

    /// Where it is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The compiler's flags for programs with glibc. The compiler itself would take the newer
    /// headers and libraries of this machine before those below `--sysroot`.
    pub(super) fn glibc_compile_flags(&self) -> Vec<String> {
        let (root, multiarch) = (self.root.display(), self.architecture.multiarch());
        vec![
            format!("--sysroot={root}"),
            format!("-isystem{root}/usr/include/{multiarch}"),
            format!("-isystem{root}/usr/include"),
        ]
    }

    /// The linker's flags for programs with glibc.
    pub(super) fn glibc_link_flags(&self) -> Vec<String> {
        let (root, multiarch) = (self.root.display(), self.architecture.multiarch());
        vec![
            format!("--sysroot={root}"),
            // `crt1.o` and its companions.
            format!("-B{root}/usr/lib/{multiarch}"),
            format!("-L{root}/usr/lib/{multiarch}"),
            format!("-L{root}/lib/{multiarch}"),
        ]
    }

    /// The compiler's flags for programs with musl. The library itself is part of Rust's target.
    pub(super) fn musl_compile_flags(&self, compiler_headers: &str) -> Vec<String> {
        let (root, name) = (self.root.display(), self.architecture.rust_name());
        vec![
            "-nostdinc".to_owned(),
            format!("-isystem{root}/usr/include/{name}-linux-musl"),
            format!("-isystem{compiler_headers}"),
        ]
    }
}

/// The result for the oldest release, or for a check that of this machine.
fn oldest_or_own<T>(
    oldest: Result<T, StepError>,
    own: impl FnOnce() -> Result<T, StepError>,
    profile: Profile,
) -> Result<T, StepError> {
    match (oldest, profile) {
        (Err(StepError(why)), Profile::Dev) => {
            println!(
                "No libraries of Debian {RELEASE} ({why}): this check builds with those of the \
                 release of this machine, and does not show which glibc a release needs."
            );
            own()
        }
        (Err(StepError(why)), Profile::Release) => Err(StepError(format!(
            "no libraries of Debian {RELEASE}, with which programs run on old machines: {why}; \
             add a source of {RELEASE}, such as Debian's archive, to /etc/apt/sources.list.d"
        ))),
        (oldest, _) => oldest,
    }
}

/// The directory with the unpacked packages of a release.
fn unpacked(cache: &Path, release: &str, architecture: Architecture) -> Result<PathBuf, StepError> {
    let name = format!("sysroot-{release}-{}", architecture.name());
    let root = cache.join(&name);
    if root.exists() {
        return Ok(root);
    }
    let mut failures = Vec::new();
    for repository in apt_sources::repositories(release)? {
        let unfinished = cache.join(format!(".{name}.{}", std::process::id()));
        let finished = download(&unfinished, &repository, release, architecture)
            .and_then(|()| fs::rename(unfinished.join("root"), &root).map_err(failed(&root)));
        let _ = fs::remove_dir_all(&unfinished);
        match finished {
            Ok(()) => return Ok(root),
            Err(StepError(why)) => failures.push(format!("{repository}: {why}")),
        }
    }
    if failures.is_empty() {
        failures.push("apt has no source of a Debian release".to_owned());
    }
    Err(StepError(failures.join("; ")))
}

fn download(
    directory: &Path,
    repository: &str,
    release: &str,
    architecture: Architecture,
) -> Result<(), StepError> {
    let [lists, archives, packages, configuration] = [
        "state/lists/partial",
        "cache/archives/partial",
        "packages",
        "etc",
    ]
    .map(|name| directory.join(name));
    for path in [&lists, &archives, &packages, &configuration] {
        fs::create_dir_all(path).map_err(failed(path))?;
    }
    let sources = configuration.join("sources.list");
    let line = format!("deb [signed-by={KEYRING}] {repository} {release} main\n");
    fs::write(&sources, line).map_err(failed(&sources))?;
    let status = directory.join("state/status");
    fs::write(&status, "").map_err(failed(&status))?;
    let options = apt_options(directory, architecture);
    let mut update = Command::new("apt-get");
    // Otherwise a source that cannot be read is only a warning.
    update
        .args(&options)
        .args(["-o", "APT::Update::Error-Mode=any"]);
    step::run(update.arg("update"))
        .map_err(|_| StepError(format!("apt-get cannot read the index of {release}")))?;
    let mut download = Command::new("apt-get");
    download.args(&options).arg("download").args(PACKAGES);
    step::run(download.current_dir(&packages))
        .map_err(|_| StepError(format!("apt-get cannot download {}", PACKAGES.join(", "))))?;
    let root = directory.join("root");
    for package in fs::read_dir(&packages).map_err(failed(&packages))? {
        let package = package.map_err(failed(&packages))?.path();
        let mut unpack = Command::new("dpkg-deb");
        step::run(unpack.arg("-x").arg(package).arg(&root))?;
    }
    relocate_links(&root, &root).map_err(failed(&root))?;
    if release != RELEASE {
        return link_library_directories(&root);
    }
    let glibc = root.join(format!("lib/{}/libc.so.6", architecture.multiarch()));
    let library = fs::read(&glibc).map_err(failed(&glibc))?;
    let library = without_functions(library, &OPTIONAL_FUNCTIONS)
        .map_err(|name| StepError(format!("{}: no function {name}", glibc.display())))?;
    fs::write(&glibc, library).map_err(failed(&glibc))
}

/// Newer releases have all libraries below `usr`, and linker scripts that name them below `/`.
fn link_library_directories(root: &Path) -> Result<(), StepError> {
    for name in ["lib", "lib64"] {
        let link = root.join(name);
        if !link.exists() {
            symlink(format!("usr/{name}"), &link).map_err(failed(&link))?;
        }
    }
    Ok(())
}

/// Renames functions in the string table of a library that is linked, and never run. The linker
/// then leaves them to the library of the machine that runs the program, whatever its version.
fn without_functions<'a>(mut library: Vec<u8>, names: &[&'a str]) -> Result<Vec<u8>, &'a str> {
    for name in names {
        let entry = [b"\0", name.as_bytes(), b"\0"].concat();
        let mut places = library
            .windows(entry.len())
            .enumerate()
            .filter_map(|(at, bytes)| (bytes == entry).then_some(at + 1));
        let (Some(at), None) = (places.next(), places.next()) else {
            return Err(name);
        };
        library[at..at + name.len()].fill(b'_');
    }
    Ok(library)
}

/// apt with all of its state below `directory`.
fn apt_options(directory: &Path, architecture: Architecture) -> Vec<String> {
    let (directory, architecture) = (directory.display(), architecture.name());
    [
        format!("APT::Architecture={architecture}"),
        format!("APT::Architectures={architecture}"),
        format!("Dir::State={directory}/state"),
        format!("Dir::State::status={directory}/state/status"),
        format!("Dir::Cache={directory}/cache"),
        format!("Dir::Etc={directory}/etc"),
        format!("Dir::Etc::sourcelist={directory}/etc/sources.list"),
        "Dir::Etc::sourceparts=-".to_owned(),
        "Acquire::Languages=none".to_owned(),
        // The user `_apt` cannot write to the cache directory.
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect()
}

/// Makes absolute links relative to `root`, so that they stay inside of it.
fn relocate_links(root: &Path, directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let kind = fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            relocate_links(root, &path)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path)?;
            let Ok(inside) = target.strip_prefix("/") else {
                continue;
            };
            let depth = directory.strip_prefix(root).unwrap_or(directory);
            let up: PathBuf = depth.components().map(|_| "..").collect();
            fs::remove_file(&path)?;
            symlink(up.join(inside), &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_check_does_without_the_oldest_release() {
        let missing = || Err(StepError("archived".to_owned()));
        let chosen = |oldest, profile| oldest_or_own(oldest, || Ok("own"), profile);
        for profile in [Profile::Dev, Profile::Release] {
            assert_eq!(chosen(Ok("oldest"), profile).unwrap(), "oldest");
        }
        assert_eq!(chosen(missing(), Profile::Dev).unwrap(), "own");
        let StepError(why) = chosen(missing(), Profile::Release).unwrap_err();
        assert!(
            why.contains("bullseye") && why.contains("archived"),
            "{why}"
        );
    }

    #[test]
    fn only_whole_names_of_functions_are_renamed() {
        let library = b"\0gettid\0statx\0xgettid\0".to_vec();
        let renamed = |names: &[&'static str]| without_functions(library.clone(), names);
        let expected = b"\0______\0statx\0xgettid\0";
        assert_eq!(renamed(&["gettid"]), Ok(expected.to_vec()));
        let expected = b"\0______\0_____\0xgettid\0";
        assert_eq!(renamed(&["statx", "gettid"]), Ok(expected.to_vec()));
        assert_eq!(renamed(&["getpid"]), Err("getpid"));
    }

    #[test]
    fn absolute_links_stay_inside_of_the_sysroot() {
        let root = std::env::temp_dir().join(format!("xtask-sysroot-{}", std::process::id()));
        let directory = root.join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join("lib/libdl.so.2"), "stub").unwrap();
        symlink("/lib/libdl.so.2", directory.join("libdl.so")).unwrap();
        symlink("libdl.so", directory.join("same.so")).unwrap();
        relocate_links(&root, &root).unwrap();
        let link = |name: &str| fs::read_link(directory.join(name)).unwrap();
        assert_eq!(link("libdl.so"), Path::new("../../../lib/libdl.so.2"));
        assert_eq!(link("same.so"), Path::new("libdl.so"));
        assert_eq!(fs::read(directory.join("same.so")).unwrap(), b"stub");
        fs::remove_dir_all(&root).unwrap();
    }
}

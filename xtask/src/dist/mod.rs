//! `cargo xtask dist`: everything that is installed, in `target/dist`.

mod apt_sources;
mod build;
mod checks;
mod debian;
mod elf;
mod image;
mod installation;
mod krew;
mod packages;
mod platform;
mod reproduction;
mod sbom;
mod sbom_check;
mod source;
mod staging;
mod sysroot;

use std::path::{Path, PathBuf};

use build::Built;
use platform::{Architecture, Linkage, Profile, Program};
use source::Source;
use staging::{Mode, Staging};

use crate::debian_packages::{self, RequiredProgram};
use crate::step::{self, StepError};

/// Where the archives of the krew manifest are downloaded, unless `--download-url` is given.
const DOWNLOAD_URL: &str = "https://download.example.org/skewbridge";

/// What packaging runs besides compilers.
const TOOLS: [RequiredProgram; 5] = [
    RequiredProgram {
        program: "dpkg-deb",
        packages: &["dpkg"],
    },
    RequiredProgram {
        program: "readelf",
        packages: &["binutils"],
    },
    RequiredProgram {
        program: "xz",
        packages: &["xz-utils"],
    },
    RequiredProgram {
        program: "tar",
        packages: &["tar"],
    },
    RequiredProgram {
        program: "gzip",
        packages: &["gzip"],
    },
];

/// What `dist` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Release builds, packages and checks.
    Release,
    /// The same, twice, and a comparison of the checksums.
    Verified,
    /// Packages of programs that are not optimised, twice, and checks: a step of the test command.
    Check,
}

/// The command line of `dist`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    extent: Extent,
    /// Without any: those whose compiler is installed, and for a check that of this machine.
    architectures: Vec<Architecture>,
    download_url: String,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            extent: Extent::Release,
            architectures: Vec::new(),
            download_url: DOWNLOAD_URL.to_owned(),
        };
        for word in words {
            match (*word, word.split_once('=')) {
                ("--verify", _) => options.extent = Extent::Verified,
                ("--check", _) => options.extent = Extent::Check,
                (_, Some(("--architectures", names))) => {
                    let listed = names.split(',').map(|name| {
                        let mut all = Architecture::ALL.into_iter();
                        all.find(|it| it.name() == name).ok_or_else(|| {
                            format!("--architectures: {name:?} is neither amd64 nor arm64")
                        })
                    });
                    options.architectures = listed.collect::<Result<_, _>>()?;
                }
                (_, Some(("--download-url", url))) if url.starts_with("https://") => {
                    url.trim_end_matches('/')
                        .clone_into(&mut options.download_url);
                }
                (_, Some(("--download-url", url))) => {
                    return Err(format!("--download-url: {url:?} is not an https URL"));
                }
                _ => return Err(format!("dist has no argument {word}")),
            }
        }
        Ok(options)
    }
}

/// Builds programs and packages, and checks them.
pub(crate) fn run(options: &Options) -> Result<(), StepError> {
    if options.extent == Extent::Check && !debian_packages::can_install() {
        return skip();
    }
    debian_packages::ensure(&TOOLS)?;
    let source = Source::here()?;
    match options.extent {
        Extent::Check => check(&source, options),
        Extent::Release => release(&source, options).map(drop),
        Extent::Verified => {
            let out = release(&source, options)?;
            let copy = reproduction::Copy::of(&source)?;
            let architectures = architectures(options)?;
            let programs = build_all(
                copy.source(),
                &architectures,
                Profile::Release,
                &copy.target(),
            )?;
            packages::make(copy.source(), &programs, &options.download_url, &copy.out())?;
            reproduction::compare(&out, &copy.out())?;
            println!("A second build in another directory has the same checksums.");
            Ok(())
        }
    }
}

/// Makes the release, in the returned directory.
fn release(source: &Source, options: &Options) -> Result<PathBuf, StepError> {
    let target = source.root().join("target");
    let out = target.join("dist");
    let architectures = architectures(options)?;
    let programs = build_all(source, &architectures, Profile::Release, &target)?;
    packages::make(source, &programs, &options.download_url, &out)?;
    checks::run(source, &programs, &out)?;
    copy_for_this_machine(&programs, &out)?;
    println!("The packages are in target/dist, and the program is target/dist/skewbridge.");
    Ok(out)
}

/// Makes packages from programs that are not optimised.
fn check(source: &Source, options: &Options) -> Result<(), StepError> {
    let target = source.root().join("target/dist-check");
    let architectures = architectures(options)?;
    let programs = build_all(source, &architectures, Profile::Dev, &target.join("build"))?;
    let [first, second] = ["first", "second"].map(|name| target.join(name));
    for out in [&first, &second] {
        packages::make(source, &programs, &options.download_url, out)?;
    }
    reproduction::compare(&first, &second)?;
    checks::run(source, &programs, &first)
}

/// Passes, except in CI.
fn skip() -> Result<(), StepError> {
    let why = "the packages are checked on Debian, as root";
    if std::env::var("CI").is_ok_and(|ci| ci == "true") {
        return Err(StepError(why.to_owned()));
    }
    println!("Skipped: {why}.");
    Ok(())
}

fn host() -> Result<Architecture, StepError> {
    Architecture::host().ok_or_else(|| {
        StepError(format!(
            "dist runs on x86_64 and aarch64, and not on {}",
            std::env::consts::ARCH
        ))
    })
}

/// The architectures to build for. One of the programs has to run on this machine.
fn architectures(options: &Options) -> Result<Vec<Architecture>, StepError> {
    let host = host()?;
    if options.architectures.is_empty() {
        if options.extent == Extent::Check {
            return Ok(vec![host]);
        }
        let (built, left_out): (Vec<_>, Vec<_>) = Architecture::ALL
            .into_iter()
            .partition(|it| *it == host || step::exists(&it.compiler()));
        for architecture in left_out {
            println!(
                "No programs for {}: install {} to build them.",
                architecture.name(),
                architecture.compiler_package()
            );
        }
        return Ok(built);
    }
    if !options.architectures.contains(&host) {
        return Err(StepError(format!(
            "--architectures: add {}, whose program prints the manual pages",
            host.name()
        )));
    }
    Ok(options.architectures.clone())
}

/// Both programs of each architecture.
fn build_all(
    source: &Source,
    architectures: &[Architecture],
    profile: Profile,
    target_directory: &Path,
) -> Result<Vec<Built>, StepError> {
    let mut programs = Vec::new();
    for program in architectures.iter().copied().flat_map(Program::both) {
        programs.push(build::build(program, profile, source, target_directory)?);
    }
    Ok(programs)
}

/// Copies the dynamic program of this machine to a name without its architecture.
fn copy_for_this_machine(programs: &[Built], out: &Path) -> Result<(), StepError> {
    let host = host()?;
    let dynamic = Program {
        architecture: host,
        linkage: Linkage::Dynamic,
    };
    let Some(built) = programs.iter().find(|built| built.program == dynamic) else {
        return Ok(());
    };
    Staging::open(out.to_owned()).copy("skewbridge", Mode::Executable, &built.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_dist_are_checked() {
        let parse = |words: &[&str]| {
            Options::parse(words).map(|options| (options.extent, options.download_url))
        };
        let rows: [(&[&str], Extent, &str); 4] = [
            (&[], Extent::Release, DOWNLOAD_URL),
            (&["--check"], Extent::Check, DOWNLOAD_URL),
            (&["--verify"], Extent::Verified, DOWNLOAD_URL),
            (
                &["--download-url=https://example.org/releases/"],
                Extent::Release,
                "https://example.org/releases",
            ),
        ];
        for (words, extent, url) in rows {
            assert_eq!(parse(words), Ok((extent, url.to_owned())), "{words:?}");
        }
        let both = Options::parse(&["--architectures=arm64,amd64"]).unwrap();
        assert_eq!(
            both.architectures,
            [Architecture::Arm64, Architecture::Amd64]
        );
        for wrong in [
            "--architectures=armhf",
            "--download-url=http://example.org",
            "--verify=yes",
            "arm64",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}

//! Checks of the finished packages: what a program needs, what is in each file, and whether it works
//! where it is installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::build::{self, Built};
use super::elf::{GlibcVersion, Needs};
use super::packages::{self, CHECKSUMS, KREW_MANIFEST, VERSION};
use super::platform::{Architecture, Linkage};
use super::source::Source;
use super::staging::{Staging, failed};
use super::{image, installation, reproduction, sbom_check};
use crate::step::{self, StepError, cargo, output};

/// The libraries of glibc and the unwinder, by the start of their names.
const LIBRARIES: [&str; 6] = [
    "ld-linux-",
    "libc.",
    "libdl.",
    "libgcc_s.",
    "libm.",
    "libpthread.",
];

pub(super) fn run(source: &Source, programs: &[Built], out: &Path) -> Result<(), StepError> {
    let mut checksums = Command::new("sha256sum");
    checksums.args(["--check", "--quiet", CHECKSUMS]);
    step::run(checksums.current_dir(out))?;
    for built in programs {
        let name = built.program;
        let needs = Needs::of(&built.path)?;
        println!("{name}: {}", described(&needs));
        wrong_needs(built.program.linkage, &needs, built.newest_glibc)
            .map_or(Ok(()), |wrong| Err(StepError(format!("{name}: {wrong}"))))?;
        reproduction::check_directories(&built.path, &build::machine_directories(source.root())?)?;
        bill_of_materials(built, out)?;
        if Some(built.program.architecture) == Architecture::host() {
            version(source, built)?;
        }
    }
    krew(programs, out)?;
    for built in programs {
        if Some(built.program.architecture) != Architecture::host() {
            continue;
        }
        match built.program.linkage {
            Linkage::Static => {
                empty_root(&built.path)?;
                image::test(source, built.program.architecture, out)?;
            }
            Linkage::Dynamic => installation::test(built.program.architecture, out)?,
        }
    }
    Ok(())
}

fn described(needs: &Needs) -> String {
    match (&needs.interpreter, needs.glibc) {
        (Some(_), Some(glibc)) => {
            format!("glibc {glibc} or later, {}", needs.libraries.join(" "))
        }
        _ => "static".to_owned(),
    }
}

fn bill_of_materials(built: &Built, out: &Path) -> Result<(), StepError> {
    let name = packages::sbom_name(built.program);
    let path = out.join(&name);
    let text = fs::read(&path).map_err(failed(&path))?;
    let document =
        serde_json::from_slice(&text).map_err(|error| StepError(format!("{name}: {error}")))?;
    match sbom_check::problems(&document).as_slice() {
        [] => Ok(()),
        problems => Err(StepError(format!("{name}: {}", problems.join("; ")))),
    }
}

/// What a program needs and may not.
fn wrong_needs(linkage: Linkage, needs: &Needs, newest: Option<GlibcVersion>) -> Option<String> {
    match linkage {
        Linkage::Static => {
            let is_static =
                needs.interpreter.is_none() && needs.libraries.is_empty() && needs.glibc.is_none();
            (!is_static).then(|| format!("not static: it needs {needs:?}"))
        }
        Linkage::Dynamic => {
            let foreign = needs
                .libraries
                .iter()
                .find(|it| !LIBRARIES.iter().any(|known| it.starts_with(known)));
            if let Some(foreign) = foreign {
                return Some(format!("it needs {foreign}"));
            }
            match (needs.glibc, newest) {
                (Some(glibc), Some(newest)) if glibc > newest => Some(format!(
                    "it needs glibc {glibc}, and has to run with {newest}"
                )),
                (Some(_), _) => None,
                (None, _) => Some("it needs no glibc: it is not dynamic".to_owned()),
            }
        }
    }
}

/// Checks that `version -o json` reports what the program was built from.
fn version(source: &Source, built: &Built) -> Result<(), StepError> {
    let text = output(Command::new(&built.path).args(["version", "-o", "json"]))?;
    let printed: Value = serde_json::from_str(&text)
        .map_err(|error| StepError(format!("version -o json: {error}")))?;
    let (linkage, features) = match built.program.linkage {
        Linkage::Dynamic => ("dynamic", serde_json::json!(["pkcs11"])),
        Linkage::Static => ("static", serde_json::json!([])),
    };
    let expected = [
        ("version", Value::from(VERSION)),
        ("commit", source.commit().into()),
        ("target", built.program.target().into()),
        ("linkage", linkage.into()),
        ("features", features),
    ];
    for (field, value) in expected {
        if printed[field] != value {
            return Err(StepError(format!(
                "{}: version -o json has {field} {}, and not {value}",
                built.program, printed[field]
            )));
        }
    }
    Ok(())
}

/// Does what krew does: reads the manifest, compares the checksum, moves the files of the archive,
/// links the program under the name of the plugin; and calls it as kubectl would.
fn krew(programs: &[Built], out: &Path) -> Result<(), StepError> {
    let path = out.join(KREW_MANIFEST);
    let manifest = fs::read_to_string(&path).map_err(failed(&path))?;
    for built in programs {
        if built.program.linkage == Linkage::Static {
            continue;
        }
        let name = packages::archive_name(built.program);
        let archive = out.join(format!("{name}.tar.gz"));
        for line in [
            format!("        arch: {}", built.program.architecture.name()),
            format!("    sha256: {}", packages::sha256(&archive)?),
            format!("    - from: {name}/skewbridge"),
        ] {
            if !manifest.lines().any(|it| it == line) {
                return Err(StepError(format!("{}: no line {line:?}", path.display())));
            }
        }
        if Some(built.program.architecture) != Architecture::host() {
            continue;
        }
        let store = Staging::new(out.join(".krew"))?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--strip-components=1", "--file"]);
        unpack.arg(&archive).arg("--directory").arg(store.root());
        for file in ["skewbridge", "LICENSE"] {
            unpack.arg(format!("{name}/{file}"));
        }
        step::run(&mut unpack)?;
        store.link("bin/kubectl-skewbridge", "../skewbridge")?;
        let plugin = store.root().join("bin/kubectl-skewbridge");
        let help = output(Command::new(plugin).args(["skew", "--help"]))?;
        fs::remove_dir_all(store.root()).map_err(failed(store.root()))?;
        if !help.contains("Usage: kubectl skewbridge skew") {
            return Err(StepError(format!("not a kubectl plugin: {help}")));
        }
    }
    Ok(())
}

/// The static program in a directory that has nothing but it and certificates.
fn empty_root(program: &Path) -> Result<(), StepError> {
    let mut test = cargo("test --workspace --locked --test empty_root");
    step::run(test.env("SKEWBRIDGE_STATIC_PROGRAM", program))
}

#[cfg(test)]
mod tests {
    use super::super::sysroot::NEWEST_GLIBC;
    use super::*;

    fn needs(libraries: &[&str], glibc: Option<u32>) -> Needs {
        Needs {
            interpreter: glibc.map(|_| "/lib64/ld-linux-x86-64.so.2".to_owned()),
            libraries: libraries.iter().map(|it| (*it).to_owned()).collect(),
            glibc: glibc.map(|minor| GlibcVersion { major: 2, minor }),
        }
    }

    #[test]
    fn a_program_may_not_need_more_than_its_linkage_allows() {
        let rows = [
            (Linkage::Static, needs(&[], None), None),
            (
                Linkage::Static,
                needs(&["libc.so.6"], Some(17)),
                Some("not static"),
            ),
            (
                Linkage::Dynamic,
                needs(&["libc.so.6", "libgcc_s.so.1"], Some(17)),
                None,
            ),
            (
                Linkage::Dynamic,
                needs(&["libc.so.6"], Some(18)),
                Some("it needs glibc 2.18"),
            ),
            (
                Linkage::Dynamic,
                needs(&["libssl.so.3"], Some(17)),
                Some("it needs libssl.so.3"),
            ),
            (
                Linkage::Dynamic,
                needs(&[], None),
                Some("it needs no glibc"),
            ),
        ];
        for (linkage, needs, expected) in rows {
            let wrong = wrong_needs(linkage, &needs, Some(NEWEST_GLIBC));
            match expected {
                None => assert_eq!(wrong, None, "{needs:?}"),
                Some(start) => assert!(wrong.unwrap().starts_with(start), "{needs:?}"),
            }
        }
        // Built with the libraries of this machine.
        let needs = needs(&["libc.so.6"], Some(36));
        assert_eq!(wrong_needs(Linkage::Dynamic, &needs, None), None);
    }
}

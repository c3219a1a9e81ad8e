//! Makes every file of a release from the programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::build::Built;
use super::debian;
use super::elf::Needs;
use super::krew;
use super::platform::{Architecture, Linkage, Program};
use super::sbom;
use super::source::Source;
use super::staging::{Mode, Staging, failed};
use crate::production_build;
use crate::step::{self, StepError, cargo, output};

/// The version of everything in the workspace.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The list of checksums.
pub(super) const CHECKSUMS: &str = "SHA256SUMS";

pub(super) const KREW_MANIFEST: &str = "skewbridge.yaml";

/// The shells, and the names of the scripts that complete for them.
const COMPLETIONS: [(&str, &str); 4] = [
    ("bash", "skewbridge.bash"),
    ("zsh", "_skewbridge"),
    ("fish", "skewbridge.fish"),
    ("powershell", "skewbridge.ps1"),
];

/// The name of an archive, without its ending.
pub(super) fn archive_name(program: Program) -> String {
    format!("skewbridge-{VERSION}-{program}")
}

/// The name of the bill of materials of a program.
pub(super) fn sbom_name(program: Program) -> String {
    format!("{}.cdx.json", archive_name(program))
}

/// Writes all packages to `out`, which is empty then. One of the programs runs on this machine,
/// and prints the documents of all.
pub(super) fn make(
    source: &Source,
    programs: &[Built],
    download_url: &str,
    out: &Path,
) -> Result<(), StepError> {
    let out = Staging::new(out.to_owned())?;
    let work = Staging::new(out.root().join(".staging"))?;
    let runnable = programs
        .iter()
        .find(|built| Some(built.program.architecture) == Architecture::host())
        .ok_or_else(|| StepError("no program for this machine was built".to_owned()))?;
    let documents = documents(&runnable.path, &work)?;
    let unit = unit(&runnable.path, &work)?;
    let mut archives = Vec::new();
    for Built { program, path, .. } in programs {
        // The program alone, for the image and for downloads without documents.
        let name = format!("{program}/skewbridge");
        out.copy(&name, Mode::Executable, path)?;
        let sbom = bill_of_materials(source, *program)?;
        out.write(&sbom_name(*program), Mode::Data, sbom.as_bytes())?;
        let archive = archive(source, *program, path, &documents, &work, out.root())?;
        if program.linkage == Linkage::Dynamic {
            archives.push(krew::Archive {
                architecture: program.architecture,
                sha256: sha256(&out.root().join(&archive))?,
                name: archive,
            });
            debian_package(source, *program, path, &unit, &documents, &sbom, &out)?;
        }
    }
    let manifest = krew::manifest(VERSION, download_url, &archives);
    out.write(KREW_MANIFEST, Mode::Data, manifest.as_bytes())?;
    fs::remove_dir_all(work.root()).map_err(failed(work.root()))?;
    let checksums: Result<Vec<String>, StepError> = out
        .files()?
        .iter()
        .map(|name| Ok(format!("{}  {name}\n", sha256(&out.root().join(name))?)))
        .collect();
    out.write(CHECKSUMS, Mode::Data, checksums?.concat().as_bytes())
}

/// Manual pages and completions.
fn documents(program: &Path, work: &Staging) -> Result<Staging, StepError> {
    let documents = Staging::new(work.root().join("documents"))?;
    let man = Staging::new(documents.root().join("man"))?;
    let directory = man.root().display();
    step::run(
        Command::new(program)
            .arg("man")
            .arg(format!("--directory={directory}")),
    )?;
    let mut compress = Command::new("gzip");
    compress.args(["-9", "--no-name"]).args(man.files()?);
    step::run(compress.current_dir(man.root()))?;
    for (shell, name) in COMPLETIONS {
        let script = output(Command::new(program).args(["completion", shell]))? + "\n";
        let name = format!("completions/{name}");
        documents.write(&name, Mode::Data, script.as_bytes())?;
    }
    Ok(documents)
}

/// The unit, as the program generates it, with the path that it has in the package.
fn unit(program: &Path, work: &Staging) -> Result<String, StepError> {
    let directory = work.root().join("systemd");
    let mut manifest = Command::new(program);
    manifest
        .args(["manifest", "systemd", "--program=/usr/bin/skewbridge"])
        .arg("--output-dir")
        .arg(&directory);
    step::run(&mut manifest)?;
    let path = directory.join("skewbridge.service");
    fs::read_to_string(&path).map_err(failed(&path))
}

fn archive(
    source: &Source,
    program: Program,
    path: &Path,
    documents: &Staging,
    work: &Staging,
    out: &Path,
) -> Result<String, StepError> {
    let name = archive_name(program);
    let staging = Staging::new(work.root().join(&name))?;
    staging.copy("skewbridge", Mode::Executable, path)?;
    staging.copy("LICENSE", Mode::Data, &source.root().join("LICENSE"))?;
    for document in documents.files()? {
        staging.copy(&document, Mode::Data, &documents.root().join(&document))?;
    }
    let name = format!("{name}.tar.gz");
    staging.archive(&out.join(&name), source.epoch())?;
    Ok(name)
}

fn debian_package(
    source: &Source,
    program: Program,
    path: &Path,
    unit: &str,
    documents: &Staging,
    sbom: &str,
    out: &Staging,
) -> Result<(), StepError> {
    let glibc = Needs::of(path)?.glibc;
    let glibc = glibc.ok_or_else(|| StepError(format!("{program} needs no glibc")))?;
    let contents = debian::Contents {
        version: VERSION,
        architecture: program.architecture,
        program: path,
        glibc,
        unit,
        documents,
        sbom,
    };
    let staging = Staging::new(out.root().join(".staging/debian"))?;
    contents.build(&staging, out.root(), source.epoch())
}

fn bill_of_materials(source: &Source, program: Program) -> Result<String, StepError> {
    let mut metadata = cargo(&format!(
        "metadata --format-version=1 --locked {} --filter-platform={} --manifest-path",
        production_build::FLAGS,
        program.target(),
    ));
    metadata.arg(source.root().join("crates/cli/Cargo.toml"));
    let metadata = output(&mut metadata)?;
    let metadata = serde_json::from_str(&metadata)
        .map_err(|error| StepError(format!("cargo metadata: {error}")))?;
    let lock = source.root().join("Cargo.lock");
    let lock = fs::read_to_string(&lock).map_err(failed(&lock))?;
    let mut date = Command::new("date");
    date.args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]);
    let time = output(date.arg(format!("--date=@{}", source.epoch())))?;
    sbom::document(&metadata, &lock, &time)
        .ok_or_else(|| StepError("cargo metadata does not list the program".to_owned()))
}

/// In hexadecimal.
pub(super) fn sha256(path: &Path) -> Result<String, StepError> {
    let line = output(Command::new("sha256sum").arg("--binary").arg(path))?;
    let digest = line.trim_start_matches('\\').split(' ').next();
    Ok(digest.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_prints_no_unit_makes_no_package() {
        let name = format!("xtask-packages-{}", std::process::id());
        let work = Staging::new(std::env::temp_dir().join(name)).unwrap();
        // It fails, and it writes no file.
        for program in ["false", "true"] {
            assert!(unit(Path::new(program), &work).is_err(), "{program}");
        }
        fs::remove_dir_all(work.root()).unwrap();
    }
}

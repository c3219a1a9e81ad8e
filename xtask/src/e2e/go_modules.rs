//! The `go.mod` with which a release of Kubernetes is built as a library. For the versions of
//! the test command and of `--all` these files are in `e2e/kubernetes/versions`; for other
//! versions they are generated in the cache. To regenerate one of the repository:
//! `go mod tidy -modfile=versions/1.36.4.mod` in `e2e/kubernetes`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, process};

use super::go_command::go;
use super::version::Version;
use crate::step::{self, StepError, failed};

const KUBERNETES: &str = "k8s.io/kubernetes";

/// The `go.mod` of a version for these files of `sources` in `directory`, named by `key`; generated
/// if it does not exist.
pub(super) fn generated(
    version: Version,
    sources: &Path,
    files: &[PathBuf],
    directory: &Path,
    key: u64,
) -> Result<PathBuf, StepError> {
    let modules = directory.join(format!("kubernetes-{version}-{key:016x}.mod"));
    if modules.exists() {
        return Ok(modules);
    }
    let requirements = requirements(version, &own_requirements(version)?);
    // Written under a temporary name and renamed: another process may generate it too.
    let unfinished = directory.join(format!("unfinished-{}.mod", process::id()));
    fs::write(&unfinished, requirements).map_err(failed("the modules"))?;
    let copies = directory.join(format!("unfinished-{}", process::id()));
    let tidy = |words: &str| {
        step::run(
            go(words)
                .arg(format!("-modfile={}", unfinished.display()))
                .current_dir(&copies),
        )
    };
    // A registry may lack what only tests of dependencies import. Whether a program needs it is
    // shown by its build, which then fails at once.
    let tidied = copy(sources, files, &copies)
        .and_then(|()| tidy("mod tidy").or_else(|_| tidy("mod tidy -e")));
    let _ = fs::remove_dir_all(&copies);
    if let Err(StepError(why)) = tidied {
        let _ = fs::remove_file(&unfinished);
        let module = at(version);
        return Err(StepError(format!(
            "the registry lacks a dependency of {module}: {why}"
        )));
    }
    for extension in ["sum", "mod"] {
        let (from, to) = (&unfinished, &modules);
        fs::rename(from.with_extension(extension), to.with_extension(extension))
            .map_err(failed("the modules"))?;
    }
    Ok(modules)
}

/// Copies these files, and the `go.mod` that marks the root: `go mod tidy` reads all packages below
/// it.
fn copy(sources: &Path, files: &[PathBuf], copies: &Path) -> Result<(), StepError> {
    let root = sources.join("go.mod");
    for file in files.iter().chain([&root]) {
        let below = file.strip_prefix(sources).unwrap_or(file);
        let copy = copies.join(below);
        if let Some(directory) = copy.parent() {
            fs::create_dir_all(directory).map_err(failed("a copy of the sources"))?;
        }
        fs::copy(file, &copy).map_err(failed("a copy of the sources"))?;
    }
    Ok(())
}

/// The `go.mod` of Kubernetes itself.
fn own_requirements(version: Version) -> Result<String, StepError> {
    let module = at(version);
    let listed = outside_of_any_module(go("list -m -f {{.GoMod}}").arg(&module)).output();
    let listed = listed.map_err(failed("go list"))?;
    if !listed.status.success() {
        let known = shared_module_versions(version);
        return Err(StepError(format!(
            "Kubernetes {version} is not in the module registry; of 1.{} it lists {}\n{}",
            version.minor,
            if known.is_empty() { "none" } else { &known },
            String::from_utf8_lossy(&listed.stderr).trim()
        )));
    }
    let path = String::from_utf8_lossy(&listed.stdout);
    fs::read_to_string(path.trim()).map_err(failed(&module))
}

/// The other patch versions of a minor version that the registry lists. A mirror may have more
/// than it lists.
fn shared_module_versions(version: Version) -> String {
    let listed = outside_of_any_module(go("list -m -versions").arg(KUBERNETES)).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let known = listed.split_whitespace().filter_map(|word| {
        let known: Version = word.parse().ok()?;
        (known.minor == version.minor).then(|| known.to_string())
    });
    known.collect::<Vec<_>>().join(", ")
}

fn outside_of_any_module(command: &mut Command) -> &mut Command {
    command.current_dir("/")
}

fn at(version: Version) -> String {
    format!("{KUBERNETES}@v{version}")
}

/// A module that requires a version of Kubernetes. Kubernetes replaces its staging modules by
/// folders that are not part of the released module. Each staging module is also released by
/// itself, with major version 0 instead of 1.
fn requirements(version: Version, own: &str) -> String {
    let Version { minor, patch } = version;
    let language = own.lines().find(|line| line.starts_with("go "));
    let language = language.unwrap_or_default();
    let replaced: Vec<_> = staging(own)
        .map(|module| format!("\t{module} => {module} v0.{minor}.{patch}\n"))
        .collect();
    format!(
        "module skewbridge.dev/e2e/kubernetes\n\n{language}\n\n\
         require {KUBERNETES} v{version}\n\nreplace (\n{})\n",
        replaced.concat()
    )
}

/// The staging modules in the `go.mod` of Kubernetes.
fn staging(own: &str) -> impl Iterator<Item = &str> {
    own.lines().filter_map(|line| {
        let line = line.trim();
        let (module, folder) = line
            .strip_prefix("replace ")
            .unwrap_or(line)
            .split_once(" => ")?;
        folder.starts_with("./staging/src/").then(|| module.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "\
module k8s.io/kubernetes

go 1.24.0

godebug default=go1.24

require (
\tk8s.io/api v0.0.0
\tk8s.io/klog/v2 v2.130.1
\tgithub.com/some/thing v1.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
\tgithub.com/some/thing => github.com/other/thing v1.0.1
)

replace k8s.io/kubectl => ./staging/src/k8s.io/kubectl
";

    #[test]
    fn staging_modules_are_those_replaced_by_folders() {
        let found: Vec<_> = staging(OWN).collect();
        assert_eq!(found, ["k8s.io/api", "k8s.io/client-go", "k8s.io/kubectl"]);
    }

    #[test]
    fn a_version_is_required_with_its_staging_modules_as_released() {
        let version = "1.33.5".parse().expect("a version");
        assert_eq!(
            requirements(version, OWN),
            "\
module skewbridge.dev/e2e/kubernetes

go 1.24.0

require k8s.io/kubernetes v1.33.5

replace (
\tk8s.io/api => k8s.io/api v0.33.5
\tk8s.io/client-go => k8s.io/client-go v0.33.5
\tk8s.io/kubectl => k8s.io/kubectl v0.33.5
)
"
        );
    }
}

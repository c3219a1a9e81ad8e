//! The cache of built programs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs};

use super::go_command::go;
use super::go_modules;
use super::python;
use super::version::Version;
use crate::step::{self, StepError, failed};

/// Built programs. They are kept outside the checkout under a digest of their inputs, and
/// linked into it under their plain names.
pub(super) struct BuildCache {
    sources: PathBuf,
    cache: PathBuf,
    links: PathBuf,
    compiler: String,
}

impl BuildCache {
    pub(super) fn open() -> Result<Self, StepError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root.canonicalize().map_err(failed("the checkout"))?;
        let cache = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
            .unwrap_or_else(env::temp_dir)
            .join("skewbridge/e2e");
        let links = root.join("target/e2e");
        for directory in [&cache, &links] {
            fs::create_dir_all(directory).map_err(failed("a cache directory"))?;
        }
        let version = go("version").output().map_err(failed("go version"))?;
        Ok(Self {
            sources: root.join("e2e"),
            cache,
            links,
            compiler: String::from_utf8_lossy(&version.stdout).into_owned(),
        })
    }

    /// The directory `e2e`, with the tests and the source of the programs.
    pub(super) fn sources(&self) -> &Path {
        &self.sources
    }

    /// The directory with links to all programs under their plain names.
    pub(super) fn links(&self) -> &Path {
        &self.links
    }

    /// The bridge as cargo builds it.
    pub(super) fn bridge(&self) -> PathBuf {
        self.links.join("../debug/skewbridge")
    }

    /// Runs the tests of a Go program under `e2e/`, then builds it.
    pub(super) fn program(&self, name: &str) -> Result<(), StepError> {
        let directory = self.sources.join(name);
        let mut inputs = vec![directory.join("go.mod"), directory.join("go.sum")];
        inputs.extend(go_files(&directory)?);
        let has_tests = inputs.iter().any(|it| is_test(it));
        let arguments = ["-ldflags=-s -w", "."];
        let key = self.key(&arguments, &inputs)?;
        self.entry(name, key, |unfinished| {
            if has_tests {
                step::run(go("test .").current_dir(&directory))?;
            }
            build(unfinished, &directory, &arguments)
        })
    }

    /// Builds a third-party Go package, with the `go.mod` of a folder under `e2e/`.
    pub(super) fn tool(&self, name: &str, package: &str) -> Result<(), StepError> {
        let directory = self.sources.join(name);
        let inputs = ["go.mod", "go.sum"].map(|file| directory.join(file));
        self.build(name, &directory, &inputs, &["-ldflags=-s -w", package])
    }

    /// Makes a Python environment with the packages of `e2e/python`.
    pub(super) fn python(&self) -> Result<(), StepError> {
        let name = "python";
        let requirements = self.sources.join("python/requirements.txt");
        let key = self.key(
            &[python::version()?.as_str()],
            std::slice::from_ref(&requirements),
        )?;
        self.entry(name, key, |unfinished| {
            python::make(unfinished, &requirements)
        })
    }

    /// Installs the npm packages of a folder under `e2e/`, each verified by the hash in
    /// `package-lock.json`. No script of a package runs.
    pub(super) fn npm_packages(&self, name: &str) -> Result<(), StepError> {
        let files = ["package.json", "package-lock.json"];
        let sources = files.map(|file| self.sources.join(name).join(file));
        let key = self.key(&[], &sources)?;
        self.entry(name, key, |unfinished| {
            fs::create_dir_all(unfinished).map_err(failed(name))?;
            for (file, source) in files.iter().zip(&sources) {
                fs::copy(source, unfinished.join(file)).map_err(failed(file))?;
            }
            let mut install = Command::new("npm");
            install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
            step::run(install.current_dir(unfinished))
        })
    }

    /// Builds programs of a version of Kubernetes: folders under
    /// `e2e/kubernetes`.
    pub(super) fn kubernetes(&self, version: Version, programs: &[&str]) -> Result<(), StepError> {
        let directory = self.sources.join("kubernetes");
        let modules = self.modules(version, programs)?;
        for program in programs {
            let mut inputs = vec![
                directory.join(&modules),
                directory.join(modules.with_extension("sum")),
            ];
            inputs.extend(go_files(&directory.join(program))?);
            let flags = format!("-ldflags=-s -w {}", stamp(version));
            let arguments = [
                &format!("-modfile={}", modules.display()),
                &flags,
                &format!("./{program}"),
            ];
            self.build(
                &format!("{program}-{version}"),
                &directory,
                &inputs,
                &arguments.map(String::as_str),
            )?;
        }
        Ok(())
    }

    /// The `go.mod` of a version, relative to `e2e/kubernetes`. If it is not committed there, it is
    /// made for these programs: the registry may lack a dependency of another one.
    pub(super) fn modules(
        &self,
        version: Version,
        programs: &[&str],
    ) -> Result<PathBuf, StepError> {
        let sources = self.sources.join("kubernetes");
        let committed = PathBuf::from(format!("versions/{version}.mod"));
        if sources.join(&committed).exists() {
            return Ok(committed);
        }
        let directory = self.cache.join("modules");
        fs::create_dir_all(&directory).map_err(failed("a cache directory"))?;
        // The requirements depend on the imports of the programs.
        let mut files = Vec::new();
        for program in programs {
            files.extend(go_files(&sources.join(program))?);
        }
        let key = self.key(programs, &files)?;
        go_modules::generated(version, &sources, &files, &directory, key)
    }

    /// Builds a program unless the cache has one of the same inputs.
    fn build(
        &self,
        name: &str,
        directory: &Path,
        inputs: &[PathBuf],
        arguments: &[&str],
    ) -> Result<(), StepError> {
        let key = self.key(arguments, inputs)?;
        self.entry(name, key, |unfinished| {
            build(unfinished, directory, arguments)
        })
    }

    /// Makes an entry unless the cache has one with this key, and links it into the checkout.
    fn entry(
        &self,
        name: &str,
        key: u64,
        make: impl FnOnce(&Path) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let entry = self.cache.join(format!("{name}-{key:016x}"));
        if entry.exists() {
            println!("{name}: cached");
        } else {
            // Built under a temporary name and renamed: another process may build it too.
            let unfinished = format!("{name}.unfinished-{}", process::id());
            let unfinished = self.cache.join(unfinished);
            make(&unfinished)?;
            fs::rename(&unfinished, &entry).map_err(failed(name))?;
        }
        let link = self.links.join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&entry, &link).map_err(failed(name))
    }

    /// A digest of the compiler, the arguments and the contents of the input files.
    fn key(&self, arguments: &[&str], inputs: &[PathBuf]) -> Result<u64, StepError> {
        let mut key = DefaultHasher::new();
        (&self.compiler, arguments).hash(&mut key);
        for input in inputs {
            let bytes = fs::read(input).map_err(failed(&input.display().to_string()))?;
            bytes.hash(&mut key);
        }
        Ok(key.finish())
    }
}

fn build(program: &Path, directory: &Path, arguments: &[&str]) -> Result<(), StepError> {
    step::run(
        go("build -o")
            .arg(program)
            .args(arguments)
            .current_dir(directory),
    )
}

/// Whether a Go file holds tests.
fn is_test(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().ends_with("_test")
}

/// Linker flags for the version that a program reports. Without the minor version, servers
/// would serve APIs that this release has removed.
fn stamp(version: Version) -> String {
    let set =
        |name: &str, value: String| format!("-X k8s.io/component-base/version.{name}={value}");
    [
        set("gitVersion", format!("v{version}")),
        set("gitMajor", "1".to_owned()),
        set("gitMinor", version.minor.to_string()),
    ]
    .join(" ")
}

/// All Go source files below a directory, sorted.
fn go_files(directory: &Path) -> Result<Vec<PathBuf>, StepError> {
    let failed = failed(&directory.display().to_string());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        if path.is_dir() {
            files.extend(go_files(&path)?);
        } else if path.extension().is_some_and(|it| it == "go") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

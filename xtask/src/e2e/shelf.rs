//! Where built programs lie.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs, io};

use super::modules;
use super::python;
use super::version::Version;
use crate::step::{self, Failed};

/// Built programs: kept outside the checkout, named after what they were built
/// from, and linked into it under their plain names.
pub(super) struct Shelf {
    sources: PathBuf,
    cache: PathBuf,
    links: PathBuf,
    compiler: String,
}

impl Shelf {
    pub(super) fn open() -> Result<Self, Failed> {
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

    /// Where the tests are, with the source of the programs.
    pub(super) fn sources(&self) -> &Path {
        &self.sources
    }

    /// Where all programs are under their plain names.
    pub(super) fn links(&self) -> &Path {
        &self.links
    }

    /// Where cargo puts the bridge.
    pub(super) fn bridge(&self) -> PathBuf {
        self.links.join("../debug/skewbridge")
    }

    /// Builds the program of a folder under `e2e/` that has modules of its own, once its
    /// own tests have passed.
    pub(super) fn program(&self, name: &str) -> Result<(), Failed> {
        let directory = self.sources.join(name);
        let mut inputs = vec![directory.join("go.mod"), directory.join("go.sum")];
        inputs.extend(go_files(&directory)?);
        let has_tests = inputs.iter().any(|it| is_test(it));
        let arguments = ["-ldflags=-s -w", "."];
        let key = self.key(&arguments, &inputs)?;
        self.kept(name, key, |unfinished| {
            if has_tests {
                step::run(go("test .").current_dir(&directory))?;
            }
            build(unfinished, &directory, &arguments)
        })
    }

    /// Builds a package of others, with the modules of a folder under `e2e/`.
    pub(super) fn tool(&self, name: &str, package: &str) -> Result<(), Failed> {
        let directory = self.sources.join(name);
        let inputs = ["go.mod", "go.sum"].map(|file| directory.join(file));
        self.build(name, &directory, &inputs, &["-ldflags=-s -w", package])
    }

    /// Makes an environment of Python with what `e2e/python` wants.
    pub(super) fn python(&self) -> Result<(), Failed> {
        let name = "python";
        let wanted = self.sources.join("python/requirements.txt");
        let key = self.key(
            &[python::version()?.as_str()],
            std::slice::from_ref(&wanted),
        )?;
        self.kept(name, key, |unfinished| python::make(unfinished, &wanted))
    }

    /// Builds programs of a version of Kubernetes: folders under
    /// `e2e/kubernetes`.
    pub(super) fn kubernetes(&self, version: Version, programs: &[&str]) -> Result<(), Failed> {
        let directory = self.sources.join("kubernetes");
        let modules = self.modules(version)?;
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

    /// Where the modules of a version are, seen from `e2e/kubernetes`.
    pub(super) fn modules(&self, version: Version) -> Result<PathBuf, Failed> {
        let sources = self.sources.join("kubernetes");
        let committed = PathBuf::from(format!("versions/{version}.mod"));
        if sources.join(&committed).exists() {
            return Ok(committed);
        }
        let directory = self.cache.join("modules");
        fs::create_dir_all(&directory).map_err(failed("a cache directory"))?;
        // Which modules are needed depends on what all the programs import.
        let key = self.key(&[], &go_files(&sources)?)?;
        modules::generated(version, &sources, &directory, key)
    }

    /// Builds a program unless that has been done from the same inputs.
    fn build(
        &self,
        name: &str,
        directory: &Path,
        inputs: &[PathBuf],
        arguments: &[&str],
    ) -> Result<(), Failed> {
        let key = self.key(arguments, inputs)?;
        self.kept(name, key, |unfinished| {
            build(unfinished, directory, arguments)
        })
    }

    /// Makes something unless it is there under this key, and links it into the checkout.
    fn kept(
        &self,
        name: &str,
        key: u64,
        make: impl FnOnce(&Path) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let kept = self.cache.join(format!("{name}-{key:016x}"));
        if kept.exists() {
            println!("{name}: built before");
        } else {
            // Under another name until it is whole; others may be at it too.
            let unfinished = format!("{name}.unfinished-{}", process::id());
            let unfinished = self.cache.join(unfinished);
            make(&unfinished)?;
            fs::rename(&unfinished, &kept).map_err(failed(name))?;
        }
        let link = self.links.join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&kept, &link).map_err(failed(name))
    }

    /// Tells apart what is made by other compilers, in other ways, from other
    /// files.
    fn key(&self, arguments: &[&str], inputs: &[PathBuf]) -> Result<u64, Failed> {
        let mut key = DefaultHasher::new();
        (&self.compiler, arguments).hash(&mut key);
        for input in inputs {
            let bytes = fs::read(input).map_err(failed(&input.display().to_string()))?;
            bytes.hash(&mut key);
        }
        Ok(key.finish())
    }
}

fn build(program: &Path, directory: &Path, arguments: &[&str]) -> Result<(), Failed> {
    step::run(
        go("build -o")
            .arg(program)
            .args(arguments)
            .current_dir(directory),
    )
}

/// Whether a file of Go is one of tests.
fn is_test(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().ends_with("_test")
}

/// What a released program says of itself. With the minor version too, or
/// servers go on with APIs that this release no longer has.
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

/// The go command, the same whatever the user has set.
pub(super) fn go(words: &str) -> Command {
    let mut command = Command::new("go");
    command
        .args(words.split_whitespace())
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "");
    command
}

pub(super) fn failed(what: &str) -> impl Fn(io::Error) -> Failed + use<> {
    let what = what.to_owned();
    move |error| Failed(format!("{what}: {error}"))
}

/// All Go source in a folder and below, in an order that stays.
fn go_files(directory: &Path) -> Result<Vec<PathBuf>, Failed> {
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

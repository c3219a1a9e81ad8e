//! `cargo xtask e2e`: the tests against real Kubernetes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use crate::debian::{self, Need};
use crate::step::{self, Failed, Steps, cargo};

/// Those of the test command: neighbours that can share an etcd, and one from
/// before WebSocket streams.
const VERSIONS: [&str; 3] = ["1.36.4", "1.34.4", "1.28.15"];

/// What each version is built from: a folder under `e2e/kubernetes`.
const PROGRAMS: [&str; 2] = ["kube-apiserver", "kubectl"];

/// Each server gets a host name of its own, and ends with the test.
const NEEDS: [Need; 2] = [
    Need {
        program: "unshare",
        packages: &["util-linux"],
    },
    Need {
        program: "hostname",
        packages: &["hostname"],
    },
];

pub(crate) fn run(filter: &[&str]) -> Result<(), Failed> {
    let mut steps = Steps::default();
    self::steps(&mut steps, filter)?;
    steps.summarize();
    Ok(())
}

/// The same, as part of a longer run.
pub(crate) fn steps(steps: &mut Steps, filter: &[&str]) -> Result<(), Failed> {
    steps.run("programs for real Kubernetes", || debian::ensure(&NEEDS))?;
    if !step::exists("go") {
        return Err(Failed(
            "missing: go; the real servers are built with Go 1.26 or later".to_owned(),
        ));
    }
    let shelf = Shelf::open()?;
    steps.run("etcd", || shelf.etcd())?;
    for version in VERSIONS {
        let name = format!("Kubernetes {version}").leak();
        steps.run(name, || shelf.kubernetes(version))?;
    }
    steps.run("bridge", || {
        step::run(&mut cargo("build --locked --package skewbridge"))
    })?;
    steps.run("tests against real Kubernetes", || shelf.test(filter))
}

/// Where built programs lie: kept outside the checkout, named after what they
/// were built from, and linked into it under their plain names.
struct Shelf {
    sources: PathBuf,
    cache: PathBuf,
    links: PathBuf,
    compiler: String,
}

impl Shelf {
    fn open() -> Result<Self, Failed> {
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
        let version = Command::new("go").arg("version").output();
        let version = version.map_err(failed("go version"))?;
        Ok(Self {
            sources: root.join("e2e"),
            cache,
            links,
            compiler: String::from_utf8_lossy(&version.stdout).into_owned(),
        })
    }

    fn etcd(&self) -> Result<(), Failed> {
        let directory = self.sources.join("etcd");
        let inputs = ["go.mod", "go.sum", "main.go"].map(|name| directory.join(name));
        self.build("etcd", &directory, &inputs, &["-ldflags=-s -w", "."])
    }

    fn kubernetes(&self, version: &str) -> Result<(), Failed> {
        let directory = self.sources.join("kubernetes");
        let modules = format!("versions/{version}.mod");
        for program in PROGRAMS {
            let inputs = [
                directory.join(&modules),
                directory.join(format!("versions/{version}.sum")),
                directory.join(program).join("main.go"),
            ];
            let flags =
                format!("-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v{version}");
            let arguments = [
                &format!("-modfile={modules}"),
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

    /// Builds a program unless that has been done from the same inputs.
    fn build(
        &self,
        name: &str,
        directory: &Path,
        inputs: &[PathBuf],
        arguments: &[&str],
    ) -> Result<(), Failed> {
        let mut key = DefaultHasher::new();
        (&self.compiler, arguments).hash(&mut key);
        for input in inputs {
            let bytes = fs::read(input).map_err(failed(&input.display().to_string()))?;
            bytes.hash(&mut key);
        }
        let kept = self.cache.join(format!("{name}-{:016x}", key.finish()));
        if kept.exists() {
            println!("{name}: built before");
        } else {
            // Under another name until it is whole.
            let unfinished = self.cache.join(format!("{name}.unfinished"));
            step::run(
                Command::new("go")
                    .args(["build", "-o"])
                    .arg(&unfinished)
                    .args(arguments)
                    .current_dir(directory)
                    .env("CGO_ENABLED", "0")
                    .env("GOTOOLCHAIN", "local")
                    .env("GOFLAGS", ""),
            )?;
            fs::rename(&unfinished, &kept).map_err(failed(name))?;
        }
        let link = self.links.join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&kept, &link).map_err(failed(name))
    }

    fn test(&self, filter: &[&str]) -> Result<(), Failed> {
        let bridge = self.links.join("../debug/skewbridge");
        step::run(
            cargo("test --locked --package skewbridge-e2e --features kubernetes --")
                .arg("--test-threads=1")
                .args(filter)
                .env("SKEWBRIDGE_E2E_BINARIES", &self.links)
                .env("SKEWBRIDGE_E2E_BRIDGE", bridge),
        )
    }
}

fn failed(what: &str) -> impl Fn(io::Error) -> Failed {
    let what = what.to_owned();
    move |error| Failed(format!("{what}: {error}"))
}

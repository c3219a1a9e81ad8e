//! `cargo xtask e2e`: the tests against real Kubernetes.

mod build_cache;
mod control_planes;
mod go_command;
mod go_modules;
mod parallel;
mod python;
mod suites;
mod version;

use std::process::Command;

use crate::background_steps::{self, BackgroundStep};
use crate::debian_packages::{self, RequiredProgram};
use crate::step::{self, StepError, Steps};

use build_cache::BuildCache;
use control_planes::Planes;
pub(crate) use control_planes::SuiteSelection;
use parallel::SuiteRunner;
use suites::Program;

/// Programs that the tests start.
const NEEDS: [RequiredProgram; 15] = [
    // `unshare`: a host name for each kube-apiserver, which ends with the test.
    RequiredProgram {
        program: "unshare",
        packages: &["util-linux"],
    },
    RequiredProgram {
        program: "hostname",
        packages: &["hostname"],
    },
    // Programs and files in the namespaces of a node.
    RequiredProgram {
        program: "mount",
        packages: &["mount"],
    },
    // kubelet's probes, and commands of the documentation.
    RequiredProgram {
        program: "curl",
        packages: &["curl"],
    },
    // It verifies units.
    RequiredProgram {
        program: "systemd-analyze",
        packages: &["systemd"],
    },
    // Addresses of network namespaces.
    RequiredProgram {
        program: "ip",
        packages: &["iproute2"],
    },
    // Terminals for kubectl.
    RequiredProgram {
        program: "script",
        packages: &["bsdutils"],
    },
    // Terminals for the commands of skewbridge.
    RequiredProgram {
        program: "tmux",
        packages: &["tmux"],
    },
    // A reverse proxy that passes WebSocket and no other upgrade.
    RequiredProgram {
        program: "nginx",
        packages: &["nginx-light"],
    },
    // A load balancer that closes idle connections.
    RequiredProgram {
        program: "haproxy",
        packages: &["haproxy"],
    },
    // Scrapes bridges, and evaluates their alert rules.
    RequiredProgram {
        program: "prometheus",
        packages: &["prometheus"],
    },
    // The browser of the status page, and what drives it.
    RequiredProgram {
        program: "chromium",
        packages: &["chromium"],
    },
    RequiredProgram {
        program: "chromedriver",
        packages: &["chromium-driver"],
    },
    // For axe-core, which checks the accessibility of the status page.
    RequiredProgram {
        program: "npm",
        packages: &["npm"],
    },
    // For the official Python client.
    RequiredProgram {
        program: "python3",
        packages: &["python3", "python3-venv"],
    },
];

/// Programs with a folder and modules of their own under `e2e/`.
const PROGRAMS: [&str; 5] = ["etcd", "node", "client-go", "websocket", "spdystream"];

/// The program of a version that no test uses a client of.
const KUBE_APISERVER: [&str; 1] = ["kube-apiserver"];

/// Third-party Go programs, by the folder under `e2e/` with their `go.mod`.
const TOOLS: [(&str, &str); 1] = [("helm", "helm.sh/helm/v3/cmd/helm")];

/// Third-party programs for `--all` only: k9s takes minutes to build.
const TOOLS_OF_ALL: [(&str, &str); 1] = [("k9s", "github.com/derailed/k9s")];

/// Environment variables of the test program: the control planes, and the directory with the
/// programs that were built.
const PLANES: &str = "SKEWBRIDGE_E2E_PLANES";
const BINARIES: &str = "SKEWBRIDGE_E2E_BINARIES";

/// Environment variable of the test program: the versions of which only kube-apiserver was built.
const IN_BETWEEN: &str = "SKEWBRIDGE_E2E_IN_BETWEEN";

/// Environment variable of the suite `released_apis`: the directory that it writes its data to.
const API_DATA: &str = "SKEWBRIDGE_API_DATA";

pub(crate) fn run(extent: SuiteSelection, filter: &[&str]) -> Result<(), StepError> {
    let mut steps = Steps::default();
    self::steps(&mut steps, extent, filter, Vec::new())?;
    steps.summarize();
    Ok(())
}

/// The same as steps of a longer run, with background steps during the tests.
pub(crate) fn steps(
    steps: &mut Steps,
    extent: SuiteSelection,
    filter: &[&str],
    background_steps: Vec<BackgroundStep>,
) -> Result<(), StepError> {
    let planes = Planes::choose(extent)?;
    let in_between = Planes::in_between(extent)?;
    steps.run("programs for real Kubernetes", needs)?;
    let cache = BuildCache::open()?;
    for program in PROGRAMS {
        steps.run(program, || cache.program(program))?;
    }
    steps.run("python", || {
        python::ensure_environments()?;
        cache.python()
    })?;
    steps.run("axe", || cache.npm_packages("axe"))?;
    // First of all, so that a version that does not exist fails before minutes of building.
    steps.run("modules of Kubernetes", || {
        let mut versions = planes.versions();
        versions.try_for_each(|version| {
            let programs = planes.programs(version);
            cache.modules(version, &programs).map(drop)
        })
    })?;
    for version in planes.versions() {
        let name = format!("Kubernetes {version}").leak();
        let programs = planes.programs(version);
        steps.run(name, || cache.kubernetes(version, &programs))?;
    }
    for version in &in_between {
        let name = format!("Kubernetes {version}").leak();
        steps.run(name, || cache.kubernetes(*version, &KUBE_APISERVER))?;
    }
    // After kubectl: Go's build cache then has most of their packages.
    let further = match extent {
        SuiteSelection::Default => &[][..],
        SuiteSelection::All => &TOOLS_OF_ALL,
    };
    for (name, package) in TOOLS.iter().chain(further) {
        steps.run(name, || cache.tool(name, package))?;
    }
    let mut program = None;
    steps.run("bridge and test program", || {
        program = Some(Program::build(cache.sources())?);
        Ok(())
    })?;
    background_steps::run(steps, background_steps, |steps| {
        steps.run("tests against real Kubernetes", || match &program {
            Some(program) => test(program, &cache, (&planes, &in_between), extent, filter),
            None => Ok(()),
        })
    })
}

/// Writes what the kube-apiserver of each of these versions serves to `crates/released-apis/data`.
pub(crate) fn write_api_data(words: &[&str]) -> Result<(), StepError> {
    let planes = Planes::of_single_servers(words)?;
    let mut steps = Steps::default();
    steps.run("programs for real Kubernetes", needs)?;
    let cache = BuildCache::open()?;
    steps.run("etcd", || cache.program("etcd"))?;
    for version in planes.versions() {
        let name = format!("Kubernetes {version}").leak();
        steps.run(name, || cache.kubernetes(version, &KUBE_APISERVER))?;
    }
    let program = Program::build(cache.sources())?;
    let directory = cache.sources().join("../crates/released-apis/data");
    SuiteRunner {
        flags: &[],
        environment: &[
            (PLANES, planes.to_string().as_ref()),
            (BINARIES, cache.links().as_ref()),
            ("SKEWBRIDGE_E2E_BRIDGE", cache.bridge().as_ref()),
            (API_DATA, directory.as_ref()),
        ],
        directory: cache.sources(),
        logs: &cache.links().join("logs"),
    }
    .all(program.suites(&["released_apis"])?)
}

/// For a measurement: builds the newest kube-apiservers, etcd and the node, and sets the
/// environment variables of `command`.
pub(crate) fn provide(command: &mut Command, versions: usize) -> Result<(), StepError> {
    let planes = Planes::choose(SuiteSelection::Default)?;
    needs()?;
    let cache = BuildCache::open()?;
    for program in ["etcd", "node"] {
        cache.program(program)?;
    }
    let versions: Vec<_> = planes.versions().take(versions).collect();
    for version in &versions {
        cache.kubernetes(*version, &control_planes::PROGRAMS_OF_EACH_VERSION)?;
    }
    let versions: Vec<_> = versions.iter().map(ToString::to_string).collect();
    command.env(PLANES, versions.join("+"));
    command.env(BINARIES, cache.links());
    Ok(())
}

fn needs() -> Result<(), StepError> {
    debian_packages::ensure(&NEEDS)?;
    if step::exists("go") {
        return Ok(());
    }
    Err(StepError(
        "missing: go; the real servers are built with Go 1.26 or later".to_owned(),
    ))
}

fn test(
    program: &Program,
    cache: &BuildCache,
    (planes, in_between): (&Planes, &[version::Version]),
    extent: SuiteSelection,
    filter: &[&str],
) -> Result<(), StepError> {
    println!("control planes: {planes}");
    let in_between: Vec<_> = in_between.iter().map(ToString::to_string).collect();
    let flags: Vec<_> = extent.test_flag().into_iter().collect();
    let suites = program.suites(&[&flags, filter].concat())?;
    SuiteRunner {
        flags: &flags,
        environment: &[
            (PLANES, planes.to_string().as_ref()),
            (IN_BETWEEN, in_between.join(" ").as_ref()),
            (BINARIES, cache.links().as_ref()),
            ("SKEWBRIDGE_E2E_BRIDGE", cache.bridge().as_ref()),
        ],
        directory: cache.sources(),
        logs: &cache.links().join("logs"),
    }
    .all(suites)
}

//! `cargo xtask e2e`: the tests against real Kubernetes.

mod modules;
mod planes;
mod python;
mod shelf;
mod side_by_side;
mod suites;
mod version;

use std::process::Command;

use crate::beside::{self, Quiet};
use crate::debian::{self, Need};
use crate::step::{self, Failed, Steps};

pub(crate) use planes::Extent;
use planes::Planes;
use shelf::Shelf;
use side_by_side::Run;
use suites::Program;

/// Each server gets a host name of its own, and ends with the test.
const NEEDS: [Need; 7] = [
    Need {
        program: "unshare",
        packages: &["util-linux"],
    },
    Need {
        program: "hostname",
        packages: &["hostname"],
    },
    // Terminals for kubectl.
    Need {
        program: "script",
        packages: &["bsdutils"],
    },
    // Terminals for our own commands.
    Need {
        program: "tmux",
        packages: &["tmux"],
    },
    // Lets nothing but WebSocket through.
    Need {
        program: "nginx",
        packages: &["nginx-light"],
    },
    // Cuts what is silent.
    Need {
        program: "haproxy",
        packages: &["haproxy"],
    },
    // For the official Python client.
    Need {
        program: "python3",
        packages: &["python3", "python3-venv"],
    },
];

/// Programs with a folder and modules of their own under `e2e/`.
const PROGRAMS: [&str; 5] = ["etcd", "node", "client-go", "websocket", "spdystream"];

/// Programs of others that are packages of Go, by the folder under `e2e/` with their modules.
const TOOLS: [(&str, &str); 1] = [("helm", "helm.sh/helm/v3/cmd/helm")];

/// The same, for `--all`: k9s looks for vulnerabilities in images as well, and takes minutes
/// to build.
const FURTHER_TOOLS: [(&str, &str); 1] = [("k9s", "github.com/derailed/k9s")];

/// How the tests are told of the control planes, and of what was built.
const PLANES: &str = "SKEWBRIDGE_E2E_PLANES";
const BINARIES: &str = "SKEWBRIDGE_E2E_BINARIES";

pub(crate) fn run(extent: Extent, filter: &[&str]) -> Result<(), Failed> {
    let mut steps = Steps::default();
    self::steps(&mut steps, extent, filter, Vec::new())?;
    steps.summarize();
    Ok(())
}

/// The same, as part of a longer run: with what runs beside the tests themselves.
pub(crate) fn steps(
    steps: &mut Steps,
    extent: Extent,
    filter: &[&str],
    quiet: Vec<Quiet>,
) -> Result<(), Failed> {
    let planes = Planes::choose(extent)?;
    steps.run("programs for real Kubernetes", needs)?;
    let shelf = Shelf::open()?;
    for program in PROGRAMS {
        steps.run(program, || shelf.program(program))?;
    }
    steps.run("python", || {
        python::ensure_environments()?;
        shelf.python()
    })?;
    // Before minutes are spent on the others, a version that there is not is named.
    steps.run("modules of Kubernetes", || {
        let mut versions = planes.versions();
        versions.try_for_each(|version| shelf.modules(version).map(drop))
    })?;
    for version in planes.versions() {
        let name = format!("Kubernetes {version}").leak();
        let programs = planes.programs(version);
        steps.run(name, || shelf.kubernetes(version, &programs))?;
    }
    // After kubectl, with which they share most of what is compiled.
    let further = match extent {
        Extent::Default => &[][..],
        Extent::All => &FURTHER_TOOLS,
    };
    for (name, package) in TOOLS.iter().chain(further) {
        steps.run(name, || shelf.tool(name, package))?;
    }
    let mut program = None;
    steps.run("bridge and test program", || {
        program = Some(Program::build(shelf.sources())?);
        Ok(())
    })?;
    beside::run(steps, quiet, |steps| {
        steps.run("tests against real Kubernetes", || match &program {
            Some(program) => test(program, &shelf, &planes, extent, filter),
            None => Ok(()),
        })
    })
}

/// For a measurement: builds the newest server with all that a pod's streams need,
/// and tells a command where that is.
pub(crate) fn provide(command: &mut Command) -> Result<(), Failed> {
    let planes = Planes::choose(Extent::Default)?;
    needs()?;
    let shelf = Shelf::open()?;
    for program in ["etcd", "node"] {
        shelf.program(program)?;
    }
    if let Some(version) = planes.versions().next() {
        shelf.kubernetes(version, &planes::EACH)?;
        command.env(PLANES, version.to_string());
    }
    command.env(BINARIES, shelf.links());
    Ok(())
}

fn needs() -> Result<(), Failed> {
    debian::ensure(&NEEDS)?;
    if step::exists("go") {
        return Ok(());
    }
    Err(Failed(
        "missing: go; the real servers are built with Go 1.26 or later".to_owned(),
    ))
}

fn test(
    program: &Program,
    shelf: &Shelf,
    planes: &Planes,
    extent: Extent,
    filter: &[&str],
) -> Result<(), Failed> {
    println!("control planes: {planes}");
    let flags: Vec<_> = extent.test_flag().into_iter().collect();
    let suites = program.suites(&[&flags, filter].concat())?;
    Run {
        flags: &flags,
        environment: &[
            (PLANES, planes.to_string().as_ref()),
            (BINARIES, shelf.links().as_ref()),
            ("SKEWBRIDGE_E2E_BRIDGE", shelf.bridge().as_ref()),
        ],
        directory: shelf.sources(),
        said: &shelf.links().join("said"),
    }
    .all(suites)
}

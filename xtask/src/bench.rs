//! `cargo xtask bench`: measurements in release mode.

mod performance_page;

use std::process::Stdio;

use crate::debian_packages::{self, RequiredProgram};
use crate::e2e;
use crate::step::{self, StepError, cargo};

/// The proxies that the bridge is compared with, and the load generator.
const COMPARED_PROXIES: &[RequiredProgram] = &[
    RequiredProgram {
        program: "haproxy",
        packages: &["haproxy"],
    },
    RequiredProgram {
        program: "nginx",
        packages: &["nginx-light"],
    },
    RequiredProgram {
        program: "h2load",
        packages: &["nghttp2-client"],
    },
];

/// A static backend, and the load generator.
const BACKEND: &[RequiredProgram] = &[COMPARED_PROXIES[1], COMPARED_PROXIES[2]];

/// A measurement, and what it needs.
#[derive(Clone, Copy)]
struct Measurement {
    name: &'static str,
    programs: &'static [RequiredProgram],
    /// Versions of Kubernetes on one control plane, the newest ones.
    kubernetes_versions: usize,
}

impl Measurement {
    const fn of(name: &'static str, programs: &'static [RequiredProgram]) -> Self {
        Self {
            name,
            programs,
            kubernetes_versions: 0,
        }
    }

    const fn on_kubernetes(name: &'static str, programs: &'static [RequiredProgram]) -> Self {
        Self {
            kubernetes_versions: 1,
            ..Self::of(name, programs)
        }
    }
}

const MEASUREMENTS: [Measurement; 13] = [
    Measurement::of("pass-through", COMPARED_PROXIES),
    Measurement::of("reroute", BACKEND),
    Measurement::of("storm", COMPARED_PROXIES),
    Measurement::of("scale", BACKEND),
    Measurement::of("placement", &[]),
    Measurement::of("watches", &[]),
    Measurement {
        // Merged discovery of a server differs from its own.
        kubernetes_versions: 2,
        ..Measurement::of("discovery", BACKEND)
    },
    Measurement::on_kubernetes("local", BACKEND),
    Measurement::on_kubernetes("peer-proxy", BACKEND),
    Measurement::on_kubernetes("latency", &[]),
    Measurement::on_kubernetes("translate", &[]),
    Measurement::on_kubernetes("exec", &[]),
    Measurement::on_kubernetes("agent", &[]),
];

/// All measurements.
pub(crate) const NAMES: [&str; MEASUREMENTS.len()] = {
    let mut names = [""; MEASUREMENTS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = MEASUREMENTS[index].name;
        index += 1;
    }
    names
};

/// Writes the result to `docs/performance.md`.
const RECORD: &str = "--record";

pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<(), StepError> {
    let measurement = MEASUREMENTS.iter().find(|it| it.name == name);
    let measurement = measurement.ok_or_else(|| StepError(format!("no measurement {name}")))?;
    debian_packages::ensure(measurement.programs)?;
    let mut command = cargo("run --release --locked --package skewbridge-bench --");
    if measurement.kubernetes_versions > 0 {
        e2e::provide(&mut command, measurement.kubernetes_versions)?;
    }
    command.arg(name);
    let (record, arguments): (Vec<&str>, Vec<&str>) =
        arguments.iter().partition(|argument| **argument == RECORD);
    command.args(arguments);
    if record.is_empty() {
        return step::run(&mut command);
    }
    command.arg("--output=markdown").stderr(Stdio::inherit());
    println!("$ {}", step::describe(&command));
    let result = step::output(&mut command)?;
    println!("{result}");
    performance_page::record(name, &result)
}

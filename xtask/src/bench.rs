//! `cargo xtask bench`: measurements in release mode.

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

const PASS_THROUGH: &str = "pass-through";
const REROUTE: &str = "reroute";
/// Measurements that need real Kubernetes.
const ON_KUBERNETES: [&str; 6] = [
    "discovery",
    "local",
    "peer-proxy",
    "translate",
    "exec",
    "agent",
];
/// Those of them that use the load generator.
const KUBE_LOADS: &[&str] = &["discovery", "local", "peer-proxy"];

/// All measurements.
pub(crate) const NAMES: &[&str] = &[
    PASS_THROUGH,
    REROUTE,
    "placement",
    "watches",
    ON_KUBERNETES[0],
    ON_KUBERNETES[1],
    ON_KUBERNETES[2],
    ON_KUBERNETES[3],
    ON_KUBERNETES[4],
    ON_KUBERNETES[5],
];

pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<(), StepError> {
    match name {
        PASS_THROUGH => debian_packages::ensure(COMPARED_PROXIES)?,
        REROUTE => debian_packages::ensure(BACKEND)?,
        name if KUBE_LOADS.contains(&name) => debian_packages::ensure(BACKEND)?,
        _ => {}
    }
    let mut command = cargo("run --release --locked --package skewbridge-bench --");
    if ON_KUBERNETES.contains(&name) {
        e2e::provide(&mut command)?;
    }
    step::run(command.arg(name).args(arguments))
}

//! `cargo xtask bench`: measurements in release mode.

use crate::debian::{self, Need};
use crate::e2e;
use crate::step::{self, Failed, cargo};

/// The proxies to compare with, and the load generator.
const OTHERS: &[Need] = &[
    Need {
        program: "haproxy",
        packages: &["haproxy"],
    },
    Need {
        program: "nginx",
        packages: &["nginx-light"],
    },
    Need {
        program: "h2load",
        packages: &["nghttp2-client"],
    },
];

const PASS_THROUGH: &str = "pass-through";
/// Those that need real Kubernetes.
const REAL: [&str; 3] = ["translate", "exec", "agent"];

/// The measurements there are.
pub(crate) const NAMES: &[&str] = &[PASS_THROUGH, "watches", REAL[0], REAL[1], REAL[2]];

pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<(), Failed> {
    if name == PASS_THROUGH {
        debian::ensure(OTHERS)?;
    }
    let mut command = cargo("run --release --locked --package skewbridge-bench --");
    if REAL.contains(&name) {
        e2e::provide(&mut command)?;
    }
    step::run(command.arg(name).args(arguments))
}

//! What `skewbridge version -o json` says about its build. Everything comes from cargo and from
//! `Cargo.lock`: the same sources and compiler give the same program, also without git.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// The packages whose versions are reported, and the variables that carry them.
const REPORTED: [(&str, &str); 2] = [
    ("rustls", "SKEWBRIDGE_RUSTLS_VERSION"),
    ("aws-lc-rs", "SKEWBRIDGE_AWS_LC_RS_VERSION"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let lock = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../Cargo.lock");
    println!("cargo::rerun-if-changed={}", lock.display());
    println!("cargo::rerun-if-changed=build.rs");
    let lock = fs::read_to_string(lock)?;
    for (package, variable) in REPORTED {
        let version = locked_version(&lock, package)
            .ok_or_else(|| format!("Cargo.lock has no package {package}"))?;
        println!("cargo::rustc-env={variable}={version}");
    }
    let rustc = Command::new(env::var("RUSTC")?).arg("--version").output()?;
    let rustc = String::from_utf8(rustc.stdout)?;
    // "rustc 1.95.0 (59807616e 2026-04-14)"
    let rustc = rustc.split(' ').nth(1).ok_or("rustc prints no version")?;
    println!("cargo::rustc-env=SKEWBRIDGE_RUSTC_VERSION={}", rustc.trim());
    println!("cargo::rustc-env=SKEWBRIDGE_TARGET={}", env::var("TARGET")?);
    Ok(())
}

/// The version of a package; the first one if there are several.
fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let start = format!("[[package]]\nname = \"{package}\"\nversion = \"");
    let (_, rest) = lock.split_once(&start)?;
    rest.split('"').next()
}

//! The container image, built from the `Containerfile` without a registry and without a daemon.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::packages::VERSION;
use super::platform::Architecture;
use super::source::Source;
use super::staging::Staging;
use crate::debian_packages::{self, RequiredProgram};
use crate::step::{self, StepError, output};

const BUILDAH: RequiredProgram = RequiredProgram {
    program: "buildah",
    packages: &["buildah"],
};

/// Builds the image, and checks its configuration and labels.
pub(super) fn test(
    source: &Source,
    architecture: Architecture,
    out: &Path,
) -> Result<(), StepError> {
    debian_packages::ensure(&[BUILDAH])?;
    let storage = Staging::new(out.join(".image"))?;
    let tested = build(source, architecture, out, storage.root());
    let removed = std::fs::remove_dir_all(storage.root());
    tested?;
    removed.map_err(super::staging::failed(storage.root()))
}

fn build(
    source: &Source,
    architecture: Architecture,
    out: &Path,
    storage: &Path,
) -> Result<(), StepError> {
    let image = format!("skewbridge:{VERSION}");
    let buildah = |command: &str| {
        let mut buildah = Command::new("buildah");
        buildah
            .args(["--storage-driver=vfs", "--root"])
            .arg(storage.join("root"))
            .arg("--runroot")
            .arg(storage.join("run"))
            .arg(command);
        buildah
    };
    let mut build = buildah("build");
    build
        .args(["--isolation=chroot", "--format=docker", "--pull=never"])
        .arg(format!("--platform=linux/{}", architecture.name()))
        .arg(format!("--timestamp={}", source.epoch()))
        .arg(format!("--build-arg=VERSION={VERSION}"))
        .arg(format!("--build-arg=REVISION={}", source.commit()))
        .arg(format!("--tag={image}"))
        .arg(format!(
            "--file={}",
            source.root().join("Containerfile").display()
        ));
    step::run(build.arg(out))?;
    let inspected = output(buildah("inspect").args(["--type=image", &image]))?;
    let inspected: Value = serde_json::from_str(&inspected)
        .map_err(|error| StepError(format!("buildah inspect: {error}")))?;
    let config = &inspected["Docker"]["config"];
    let program = "/usr/local/bin/skewbridge";
    let expected = [
        ("User", json!("10270:10270")),
        ("Entrypoint", json!([program])),
        (
            "Cmd",
            json!(["serve", "--config=/etc/skewbridge/config.yaml"]),
        ),
    ];
    let labels = &config["Labels"];
    let wrong = expected
        .into_iter()
        .find(|(field, value)| &config[field] != value);
    if let Some((field, value)) = wrong {
        let found = &config[field];
        return Err(StepError(format!(
            "the image has {field} {found}, and not {value}"
        )));
    }
    for (label, value) in [
        ("title", "Skewbridge"),
        ("licenses", "Apache-2.0"),
        ("version", VERSION),
        ("revision", source.commit()),
    ] {
        let found = &labels[format!("org.opencontainers.image.{label}")];
        if found != value {
            return Err(StepError(format!(
                "the image has the label {label} {found}"
            )));
        }
    }
    if config["Healthcheck"]["Test"] != json!(["CMD", program, "health"]) {
        return Err(StepError("the image has no health check".to_owned()));
    }
    only_the_program(&buildah, &image, program)
}

/// The file system has one file, which runs.
fn only_the_program(
    buildah: &impl Fn(&str) -> Command,
    image: &str,
    program: &str,
) -> Result<(), StepError> {
    let container = output(buildah("from").args(["--pull=never", image]))?;
    let root = output(buildah("mount").arg(&container))?;
    let files = Staging::open(root.clone().into()).files()?;
    if files != [program.trim_start_matches('/')] {
        return Err(StepError(format!("the image has the files {files:?}")));
    }
    let mut run = Command::new("chroot");
    run.args(["--userspec=10270:10270", &root, program, "version"]);
    let version = output(&mut run)?;
    step::run(buildah("umount").arg(&container))?;
    step::run(buildah("rm").arg(&container))?;
    println!("The image has one file, and prints {version:?}.");
    Ok(())
}

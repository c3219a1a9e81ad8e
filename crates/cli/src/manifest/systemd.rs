//! `skewbridge manifest systemd`: the unit of a bridge.

use clap::Args;

use super::configuration;
use super::output::{GeneratedFile, Mode};
use super::sizing::{Limits, SizeFlags};

/// The name of the unit file.
const NAME: &str = "skewbridge.service";

const UNIT: &str = include_str!("skewbridge.service");

// The flags of a unit. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct UnitFlags {
    /// Path of the skewbridge program on the machine
    #[arg(long, value_name = "PATH", default_value = "/usr/local/bin/skewbridge")]
    pub(super) program: String,
}

// The flags of `manifest systemd`.
#[derive(Debug, Clone, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    unit: UnitFlags,
    #[command(flatten)]
    size: SizeFlags,
}

impl Flags {
    pub(super) fn unit(&self) -> GeneratedFile {
        self.unit.unit(self.size.limits())
    }
}

impl UnitFlags {
    pub(super) fn unit(&self, limits: Limits) -> GeneratedFile {
        GeneratedFile {
            name: NAME,
            mode: Mode::Readable,
            text: UNIT
                .replace("@PROGRAM@", &self.program)
                .replace("@OPEN_FILES@", &limits.open_files.to_string())
                .replace("@MEMORY@", limits.unit_memory())
                .replace("@CONFIG@", configuration::PATH),
        }
    }
}

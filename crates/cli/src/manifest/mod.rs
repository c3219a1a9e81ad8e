//! `skewbridge manifest`: prints or writes what an installation puts on a machine.
//!
//! A kind is a pure function from its flags and input to [`GeneratedFile`]s, in a file of its own.
//! Only [`output`] writes.

mod alerts;
mod balancer;
mod configuration;
mod grafana_dashboard;
mod kube_apiserver;
mod kubeadm;
mod kubeadm_patches;
mod output;
mod prometheus_rules;
mod rbac;
mod sizing;
mod static_pod;
mod systemd;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::client_command::{Failure, end, print_stderr};
use crate::local_addresses;
use output::GeneratedFile;
pub(crate) use rbac::MANIFEST as RBAC;

const HELP: &str = "\
Without --output-dir everything is printed, and nothing is changed. Each file says at its top
what it changes and how to undo that.

Exit code: 0 printed or written, 1 a file could not be written, 64 the command line or an input
file is wrong.

Examples:
  skewbridge manifest kubeadm --output-dir=.
  skewbridge manifest kubeadm --secure-port=7443 --run-with=static-pod
  skewbridge manifest kubeadm --admin-secure-address=0.0.0.0:10271 --cluster-nodes=5000
  skewbridge manifest kubeadm-patches --output-dir=/etc/kubernetes/patches
  skewbridge manifest balancer --upstream=https://10.0.0.11:6443 --upstream=https://10.0.0.12:6443
  skewbridge manifest rbac | kubectl apply -f -
  skewbridge manifest prometheus-rules > /etc/prometheus/rules/skewbridge.yaml";

// The flags of `manifest`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP, disable_help_subcommand = true)]
pub(crate) struct Flags {
    #[command(subcommand)]
    kind: Kind,
    /// Write the files to this directory instead of printing them
    #[arg(long, value_name = "DIRECTORY", global = true)]
    output_dir: Option<PathBuf>,
    /// Replace files in --output-dir whose content differs
    #[arg(long, global = true)]
    force: bool,
}

// What to generate. The comments are the help text.
#[derive(Debug, Clone, Subcommand)]
enum Kind {
    /// A bridge in front of several kube-apiservers, in the place of a load balancer
    Balancer(Box<balancer::Flags>),
    /// A bridge beside the kube-apiserver of a kubeadm node, from its manifest
    Kubeadm(Box<kubeadm::Flags>),
    /// Patches with which kubeadm writes the manifest of a kube-apiserver behind a bridge
    KubeadmPatches(kubeadm_patches::Flags),
    /// Rights of the user that bridges with --bridge-user=skewbridge run as
    Rbac,
    /// Alert rules of Prometheus for the metrics of bridges
    PrometheusRules(prometheus_rules::Flags),
    /// Dashboard of Grafana for the metrics of bridges
    GrafanaDashboard,
    /// Static pod that runs a bridge with /etc/skewbridge/config.yaml
    StaticPod(static_pod::Flags),
    /// Unit of systemd that runs a bridge with /etc/skewbridge/config.yaml
    Systemd(systemd::Flags),
}

/// Prints the files, or writes them to `--output-dir`.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    end(
        generate(&flags.kind).and_then(|files| match &flags.output_dir {
            Some(directory) => output::write(&files, directory, flags.force),
            None if flags.force => Err(Failure::plain(
                "error: --force: has no effect without --output-dir",
                crate::EXIT_USAGE,
            )),
            None => {
                output::print(&files);
                Ok(())
            }
        }),
    )
}

fn generate(kind: &Kind) -> Result<Vec<GeneratedFile>, Failure> {
    Ok(match kind {
        Kind::Balancer(flags) => flags.files(),
        Kind::Kubeadm(flags) => kubeadm_files(flags)?,
        Kind::KubeadmPatches(flags) => vec![flags.patches()],
        Kind::GrafanaDashboard => vec![grafana_dashboard::manifest()],
        Kind::PrometheusRules(flags) => vec![prometheus_rules::manifest(flags)],
        Kind::Rbac => vec![rbac::manifest()],
        Kind::StaticPod(flags) => vec![flags.pod()],
        Kind::Systemd(flags) => vec![flags.unit()],
    })
}

fn kubeadm_files(flags: &kubeadm::Flags) -> Result<Vec<GeneratedFile>, Failure> {
    let failed = |path: &Path, why: &dyn std::fmt::Display| {
        let path = path.display();
        Failure::plain(format!("error: --from {path}: {why}"), crate::EXIT_USAGE)
    };
    let text = fs::read_to_string(&flags.from).map_err(|why| failed(&flags.from, &why))?;
    let generated = flags.generate(&text, &local_addresses::by_interface());
    let (files, warnings) = generated.map_err(|why| failed(&flags.from, &why))?;
    for warning in warnings {
        print_stderr(format_args!("warning: {warning}"));
    }
    Ok(files)
}

/// Asserts that a file of `deploy/` is what its command prints, or writes it with
/// `SKEWBRIDGE_WRITE_DOCS=1`.
#[cfg(test)]
fn assert_committed(path: &str, expected: &str) {
    if std::env::var_os("SKEWBRIDGE_WRITE_DOCS").is_some() {
        std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(
        found, expected,
        "{path} is not what the command prints; see CONTRIBUTING.md"
    );
}

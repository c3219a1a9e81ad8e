//! The flags of `check`: its own, and those of `serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::cluster::{AdminAddress, ClusterOptions, Layout};
use super::upgrade;
use crate::{flag_values, serve};

const ADMIN_ADDRESS: &str = "admin-address";

/// Where kubeadm keeps the kubeconfigs of components.
const KUBERNETES_DIRECTORY: &str = "/etc/kubernetes";

const USAGE: &str = "skewbridge check --config=FILE | [FLAGS OF serve]
       skewbridge check [--server=URL] [--kubeconfig=FILE] [--context=NAME]
       skewbridge check upgrade --target=VERSION [--rollback=VERSION]";

const HELP: &str = "\
Before a bridge starts: with --config or other flags of serve, check files, certificates, CAs,
ports, kube-apiserver, registry, peers, clocks and limits, on the machine and as the user that
will run it. Nothing is started. In etcd a key is written and removed again.

After that: without flags of serve, or with --server, --kubeconfig or --context, check all bridges
of the cluster, requests through them, and whether components use them. On a control-plane node
the admin port and the kubeconfigs in /etc/kubernetes are checked, too. Nothing is changed: writes
are dry runs. Where the bridges have another port than kube-apiserver, or are balancers in front,
--layout says so: what uses kube-apiserver then is a !, not a ✗.

✓ is as it should be, ! works and should be known, ✗ does not work, and ? could not be checked
from here. Each ✗ has a remedy; with -o json its flag, value, file and command are fields.

Exit code: 0 no ✗, 1 some ✗, 64 the command line is wrong.

Examples:
  skewbridge check --config=/etc/skewbridge/config.yaml
  skewbridge check --kubeconfig=/etc/kubernetes/admin.conf --wait=2m
  skewbridge check --server=https://10.0.0.11:6443 --exec=web-0 -n shop
  skewbridge check -o json";

// The flags of `check`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(override_usage = USAGE, after_help = HELP, next_help_heading = "Cluster flags")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(super) subject: Option<Subject>,
    /// The bridge to check, instead of the server of the kubeconfig
    #[arg(short, long, value_name = "URL")]
    server: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config or that of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Name to expect in the certificate of --server, if not its host
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// The pod in which to run `true` through the bridge
    #[arg(long, value_name = "POD")]
    exec: Option<String>,
    /// The namespace of that pod, and of dry-run writes [default: that of the context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Directory with kubeconfigs of components on this node
    #[arg(long, value_name = "DIR", default_value = KUBERNETES_DIRECTORY)]
    kubernetes_dir: PathBuf,
    /// Where the bridges are: same-port (as kube-apiserver on each node), other-port, or balancer
    /// (in front of all nodes)
    #[arg(long, value_name = "LAYOUT", default_value = "same-port")]
    layout: String,
    /// Output format: text or json
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Output flags"
    )]
    output: String,
    /// Repeat the checks until there is no ✗, for at most this time
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0s",
        help_heading = "Output flags"
    )]
    wait: String,
    #[command(flatten)]
    serve: serve::CommandLine,
}

// Another subject than bridges. The comments are the help text.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Subject {
    /// Check what an upgrade or a rollback of the cluster has to wait for
    Upgrade(upgrade::Flags),
}

/// The parsed flags.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Check a configuration before a bridge starts with it.
    pub(crate) preflight: Option<serve::CommandLine>,
    /// Check a cluster with bridges.
    pub(crate) cluster: Option<ClusterOptions>,
    pub(crate) format: Format,
    /// How long to repeat the checks.
    pub(crate) wait: Duration,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

impl Flags {
    /// Parses the flags, or returns all errors.
    pub(crate) fn parse(&self) -> Result<Options, Vec<String>> {
        const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];
        const LAYOUTS: [(&str, Layout); 3] = [
            ("same-port", Layout::SamePort),
            ("other-port", Layout::OtherPort),
            ("balancer", Layout::Balancer),
        ];
        let mut problems = Vec::new();
        let layout = flag_values::keyword(&self.layout, &LAYOUTS);
        let layout = layout.unwrap_or_else(|wrong| {
            problems.push(format!("--layout: {wrong}"));
            Layout::SamePort
        });
        let format = flag_values::keyword(&self.output, &FORMATS)
            .map_err(|wrong| problems.push(format!("--output: {wrong}")));
        let wait = flag_values::duration(&self.wait)
            .map_err(|wrong| problems.push(format!("--wait: {wrong}")));
        let preflight = self.serve.has_flags_beside(ADMIN_ADDRESS);
        let of_cluster = self.server.is_some()
            || self.kubeconfig.is_some()
            || self.context.is_some()
            || self.exec.is_some();
        if self.tls_server_name.is_some() && self.server.is_none() {
            problems.push("--tls-server-name: requires --server".to_owned());
        }
        let admin = match self.serve.given(ADMIN_ADDRESS) {
            None => Some(AdminAddress::Default),
            Some(text) => flag_values::loopback_socket(text)
                .map(AdminAddress::At)
                .map_err(|wrong| problems.push(format!("--admin-address: {wrong}")))
                .ok(),
        };
        let cluster = (of_cluster || !preflight).then(|| ClusterOptions {
            server: self.server.clone(),
            tls_server_name: self.tls_server_name.clone(),
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            exec: self.exec.clone(),
            namespace: self.namespace.clone(),
            kubernetes_dir: self.kubernetes_dir.clone(),
            layout,
            admin: admin.unwrap_or(AdminAddress::Default),
        });
        match (format, wait) {
            (Ok(format), Ok(wait)) if problems.is_empty() => Ok(Options {
                preflight: preflight.then(|| self.serve.clone()),
                cluster,
                format,
                wait,
            }),
            _ => Err(problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn parse(words: &[&str]) -> Result<Options, Vec<String>> {
        let line = Line::try_parse_from(["check"].iter().chain(words)).unwrap();
        line.flags.parse()
    }

    #[test]
    fn flags_of_serve_check_before_the_start_and_others_check_the_cluster() {
        let rows: [(&[&str], bool, bool); 7] = [
            (&[], false, true),
            (&["--config=/c.yaml"], true, false),
            (&["--upstream=https://127.0.0.1"], true, false),
            (&["--server=https://a"], false, true),
            (&["--kubeconfig=/k", "--config=/c.yaml"], true, true),
            (&["--admin-address=127.0.0.1:1"], false, true),
            (&["--context=a", "--exec=b"], false, true),
        ];
        for (words, preflight, cluster) in rows {
            let options = parse(words).unwrap();
            let found = (options.preflight.is_some(), options.cluster.is_some());
            assert_eq!(found, (preflight, cluster), "{words:?}");
        }
        let options = parse(&["--admin-address=127.0.0.1:1"]).unwrap();
        let admin = options.cluster.map(|it| it.admin);
        assert_eq!(
            admin,
            Some(AdminAddress::At("127.0.0.1:1".parse().unwrap()))
        );
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let wrong = ["-o=xml", "--wait=soon", "--tls-server-name=a", "--layout=b"];
        let problems = parse(&wrong).unwrap_err();
        assert_eq!(problems.len(), 4, "{problems:?}");
    }
}

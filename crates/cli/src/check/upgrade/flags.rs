//! The flags of `check upgrade`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use skewbridge_released_apis::Minor;

use crate::flag_values;

const HELP: &str = "\
Compares a cluster with a released version of Kubernetes: APIs that go, their objects and callers,
stored versions, fields that a rollback erases, versions of components against the version skew
policy, readiness and certificates. Nothing is changed; the user needs to read the objects.

Without --server, the kube-apiservers are those that publish themselves in the Service
`kubernetes`. Give --server for each where these addresses cannot be reached from here.

Exit code: 0 go, 2 findings, 1 something could not be checked, or another failure, 64 the command
line is wrong.

Examples:
  skewbridge check upgrade --target=1.37
  skewbridge check upgrade --target=1.37 --rollback=1.35 -o markdown
  skewbridge check upgrade --target=1.37 --server=https://10.0.0.1:6443 --server=https://10.0.0.2:6443";

// The flags of `check upgrade`. The comments are the help text.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Output format: text, json, markdown or html
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}

// What is compared with what: also the flags of `upgrade plan`. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterFlags {
    /// The minor version to upgrade to
    #[arg(long, value_name = "VERSION")]
    target: Option<String>,
    /// The minor version to return to
    #[arg(long, value_name = "VERSION")]
    rollback: Option<String>,
    /// A kube-apiserver of the cluster; repeat it for each
    #[arg(short, long, value_name = "URL")]
    server: Vec<String>,
    /// Name to expect in the certificates of --server, if not their hosts
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config or that of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Time limit of a single request; 0 for no limit
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    request_timeout: String,
}

/// The parsed flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) cluster: ClusterOptions,
    pub(super) format: Format,
}

/// The parsed flags of the cluster and its targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterOptions {
    pub(crate) target: Option<Minor>,
    pub(crate) rollback: Option<Minor>,
    pub(super) servers: Vec<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
    /// `None` is no limit.
    pub(super) timeout: Option<Duration>,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    Markdown,
    Html,
}

impl Flags {
    /// Parses the flags, or returns all errors.
    pub(super) fn parse(&self) -> Result<Options, Vec<String>> {
        const FORMATS: [(&str, Format); 4] = [
            ("text", Format::Text),
            ("json", Format::Json),
            ("markdown", Format::Markdown),
            ("html", Format::Html),
        ];
        let (cluster, format) = self.cluster.parse_with(&self.output, &FORMATS)?;
        Ok(Options { cluster, format })
    }
}

impl ClusterFlags {
    /// Parses the flags and the one of the output format, or returns all errors.
    pub(crate) fn parse_with<T: Copy>(
        &self,
        output: &str,
        formats: &[(&str, T)],
    ) -> Result<(ClusterOptions, T), Vec<String>> {
        let mut problems = Vec::new();
        let mut minor = |flag: &str, text: &Option<String>| {
            let text = text.as_deref()?;
            flag_values::released_minor(text)
                .map_err(|wrong| problems.push(format!("{flag}: {wrong}")))
                .ok()
        };
        let target = minor("--target", &self.target);
        let rollback = minor("--rollback", &self.rollback);
        if self.target.is_none() && self.rollback.is_none() {
            problems.push("--target or --rollback is required, such as --target=1.37".to_owned());
        }
        if self.tls_server_name.is_some() && self.server.is_empty() {
            problems.push("--tls-server-name: requires --server".to_owned());
        }
        let format = flag_values::keyword(output, formats)
            .map_err(|wrong| problems.push(format!("--output: {wrong}")));
        let timeout = flag_values::duration(&self.request_timeout)
            .map_err(|wrong| problems.push(format!("--request-timeout: {wrong}")));
        match (format, timeout) {
            (Ok(format), Ok(timeout)) if problems.is_empty() => {
                let options = ClusterOptions {
                    target,
                    rollback,
                    servers: self.server.clone(),
                    tls_server_name: self.tls_server_name.clone(),
                    kubeconfig: self.kubeconfig.clone(),
                    context: self.context.clone(),
                    timeout: (!timeout.is_zero()).then_some(timeout),
                };
                Ok((options, format))
            }
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
        let line = Line::try_parse_from(["upgrade"].iter().chain(words)).unwrap();
        line.flags.parse()
    }

    #[test]
    fn versions_may_have_a_patch_version_and_must_be_known() {
        let options = parse(&["--target=v1.36.4", "--rollback=1.34"]).unwrap();
        assert_eq!(options.cluster.target.unwrap().to_string(), "1.36");
        assert_eq!(options.cluster.rollback.unwrap().to_string(), "1.34");
        let problems = parse(&["--target=1.5", "-o=xml", "--tls-server-name=a"]).unwrap_err();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems[0].starts_with(
                "--target: the APIs of 1.5 are not known to this version of skewbridge; known are 1.26,"
            ),
            "{problems:?}"
        );
        let problems = parse(&[]).unwrap_err();
        assert_eq!(
            problems,
            ["--target or --rollback is required, such as --target=1.37"]
        );
    }
}

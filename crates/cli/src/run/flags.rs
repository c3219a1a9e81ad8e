//! The flags of `run`: kubectl's names.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use crate::flag_values;

const HELP: &str = "\
$KUBECONFIG of the command is a private kubeconfig with one context. Its server is a
port of 127.0.0.1 that accepts only the client certificate in it. Requests are forwarded
to the credential plugin's proxy, or directly to the cluster with the credentials of the
context.

Exit code: that of the command, 128 + N if signal N ended it, 127 if it is not found, 126
if it cannot be run, 125 if the cluster cannot be reached, 64 if the command line is
invalid.

Examples:
  skewbridge run -- kubectl get pods
  skewbridge run --context=prod -- helm upgrade web ./web
  skewbridge run --shell";

// The flags of `run`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config or that of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The default namespace [default: that of the context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Open $SHELL instead of running a command
    #[arg(long)]
    shell: bool,
    /// Time limit of the credential plugin
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    plugin_timeout: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
    /// The command, after --
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The parsed flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) plugin_timeout: Duration,
    pub(crate) command: CommandKind,
}

/// The command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// A program with its arguments.
    Command(OsString, Vec<OsString>),
    /// The user's shell.
    Shell,
}

impl Flags {
    /// Parses the flags, or returns all errors.
    pub(crate) fn parse(&self) -> Result<Options, Vec<String>> {
        let mut problems = Vec::new();
        let command = match (self.command.split_first(), self.shell) {
            (Some(_), true) => {
                problems.push("--shell: cannot be combined with a command".to_owned());
                None
            }
            (Some((program, arguments)), false) => {
                Some(CommandKind::Command(program.clone(), arguments.to_vec()))
            }
            (None, true) => Some(CommandKind::Shell),
            (None, false) => {
                problems.push("a command after --, or --shell, is required".to_owned());
                None
            }
        };
        let plugin_timeout = match flag_values::duration(&self.plugin_timeout) {
            Ok(time) if time.is_zero() => Err("must be more than 0".to_owned()),
            other => other,
        };
        let plugin_timeout =
            plugin_timeout.map_err(|wrong| problems.push(format!("--plugin-timeout: {wrong}")));
        match (command, plugin_timeout) {
            (Some(command), Ok(plugin_timeout)) if problems.is_empty() => Ok(Options {
                kubeconfig: self.kubeconfig.clone(),
                context: self.context.clone(),
                namespace: self.namespace.clone(),
                plugin_timeout,
                command,
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
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn parse(words: &[&str]) -> Result<Options, Vec<String>> {
        let line = Line::try_parse_from(["run"].iter().chain(words)).unwrap();
        line.flags.parse()
    }

    #[test]
    fn a_command_after_the_dashes_has_its_own_flags() {
        let options = parse(&[
            "--context=c",
            "-n",
            "shop",
            "--",
            "kubectl",
            "get",
            "-n",
            "x",
        ]);
        let options = options.unwrap();
        let command = CommandKind::Command(
            "kubectl".into(),
            vec!["get".into(), "-n".into(), "x".into()],
        );
        assert_eq!(options.command, command);
        assert_eq!(options.context.as_deref(), Some("c"));
        assert_eq!(options.namespace.as_deref(), Some("shop"));
        assert_eq!(options.plugin_timeout, Duration::from_mins(5));
        assert_eq!(parse(&["--shell"]).unwrap().command, CommandKind::Shell);
    }

    #[test]
    fn all_flag_errors_are_reported_at_once() {
        let problems = parse(&["--plugin-timeout=x"]).unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("--shell"), "{problems:?}");
        assert!(
            problems[1].starts_with("--plugin-timeout: "),
            "{problems:?}"
        );
        assert!(parse(&["--shell", "--", "kubectl"]).is_err());
        assert!(parse(&["--plugin-timeout=0s", "--shell"]).is_err());
    }
}

//! The flags of `skew`: kubectl's names.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use crate::flag_values;

const HELP: &str = "\
With one context, the server must be a bridge (skewbridge serve), which reports all
servers of its cluster. With several --context, or several --server, each of them is
queried for what it serves itself; that needs no bridge.

With --fields, the fields of built-in kinds are compared instead of resources, as each
server's OpenAPI names them: a server erases the fields that it does not know when it
writes an object.

Exit code: 0 no skew, 2 skew, 1 a server could not be queried, or another failure.

Examples:
  skewbridge skew
  skewbridge skew --fields
  skewbridge skew --context=blue --context=green
  skewbridge skew --server=https://10.0.0.1:6443 --server=https://10.0.0.2:6443 -o json";

// The flags of `skew`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config or that of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context to use; several are compared with each other
    #[arg(long, value_name = "NAME")]
    context: Vec<String>,
    /// The server to query instead of the context's; several are compared
    #[arg(short, long, value_name = "URL")]
    server: Vec<String>,
    /// Name to expect in the certificates of --server, if not their hosts
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Compare the fields that servers know of built-in kinds
    #[arg(long)]
    fields: bool,
    /// Output format: table, wide or json
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: String,
    /// Time limit of a single request; 0 for no limit
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    request_timeout: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// The parsed flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) targets: Targets,
    pub(crate) compared: Compared,
    pub(crate) format: Format,
    /// `None` is no limit.
    pub(crate) timeout: Option<Duration>,
}

/// The servers to query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Targets {
    /// A bridge, for all servers of its cluster.
    Bridge {
        context: Option<String>,
        at: Option<ServerLocation>,
    },
    /// These contexts, each for its own APIs.
    Contexts(Vec<String>),
    /// These servers, each for its own APIs, as the user of this context.
    Servers {
        context: Option<String>,
        at: Vec<ServerLocation>,
    },
}

/// Another server than the context's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerLocation {
    pub(crate) server: String,
    pub(crate) tls_server_name: Option<String>,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    /// Resources, subresources and verbs.
    Resources,
    /// The fields of built-in kinds.
    Fields,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
}

impl Flags {
    /// Parses the flags, or returns all errors.
    pub(crate) fn parse(&self) -> Result<Options, Vec<String>> {
        const FORMATS: [(&str, Format); 3] = [
            ("table", Format::Table),
            ("wide", Format::Wide),
            ("json", Format::Json),
        ];
        let mut problems = Vec::new();
        let format = flag_values::keyword(&self.output, &FORMATS)
            .map_err(|wrong| problems.push(format!("--output: {wrong}")));
        let timeout = timeout(&self.request_timeout)
            .map_err(|wrong| problems.push(format!("--request-timeout: {wrong}")));
        for (flag, values) in [("--context", &self.context), ("--server", &self.server)] {
            for (index, value) in values.iter().enumerate() {
                if values[..index].contains(value) {
                    problems.push(format!("{flag}: {value:?} is given twice"));
                }
            }
        }
        if self.context.len() > 1 && !self.server.is_empty() {
            problems.push(
                "--server: can be combined with one --context, whose user is used; give several \
                 of one or of the other"
                    .to_owned(),
            );
        }
        if self.tls_server_name.is_some() && self.server.is_empty() {
            problems.push("--tls-server-name: requires --server".to_owned());
        }
        match (format, timeout) {
            (Ok(format), Ok(timeout)) if problems.is_empty() => Ok(Options {
                kubeconfig: self.kubeconfig.clone(),
                targets: self.targets(),
                compared: if self.fields {
                    Compared::Fields
                } else {
                    Compared::Resources
                },
                format,
                timeout,
            }),
            _ => Err(problems),
        }
    }

    fn targets(&self) -> Targets {
        let context = self.context.first().cloned();
        let mut at: Vec<_> = self
            .server
            .iter()
            .map(|server| ServerLocation {
                server: server.clone(),
                tls_server_name: self.tls_server_name.clone(),
            })
            .collect();
        if self.context.len() > 1 {
            Targets::Contexts(self.context.clone())
        } else if at.len() > 1 {
            Targets::Servers { context, at }
        } else {
            Targets::Bridge {
                context,
                at: at.pop(),
            }
        }
    }
}

/// In kubectl's syntax: `30s`, or a bare number of seconds.
fn timeout(text: &str) -> Result<Option<Duration>, String> {
    let timeout = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => flag_values::duration(text)?,
    };
    Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
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
        let line = Line::try_parse_from(["skew"].iter().chain(words)).unwrap();
        line.flags.parse()
    }

    #[test]
    fn one_context_is_a_bridge_and_several_are_servers() {
        let at = |server: &str| ServerLocation {
            server: server.to_owned(),
            tls_server_name: None,
        };
        let a = || Some("a".to_owned());
        let rows: [(&[&str], Targets); 5] = [
            (
                &[],
                Targets::Bridge {
                    context: None,
                    at: None,
                },
            ),
            (
                &["--context=a"],
                Targets::Bridge {
                    context: a(),
                    at: None,
                },
            ),
            (
                &["-s", "https://x"],
                Targets::Bridge {
                    context: None,
                    at: Some(at("https://x")),
                },
            ),
            (
                &["--context=a", "--context=b"],
                Targets::Contexts(vec!["a".to_owned(), "b".to_owned()]),
            ),
            (
                &["--context=a", "--server=x", "--server=y"],
                Targets::Servers {
                    context: a(),
                    at: vec![at("x"), at("y")],
                },
            ),
        ];
        for (words, expected) in rows {
            assert_eq!(parse(words).unwrap().targets, expected, "{words:?}");
        }
    }

    #[test]
    fn fields_are_compared_on_request() {
        assert_eq!(parse(&[]).unwrap().compared, Compared::Resources);
        assert_eq!(parse(&["--fields"]).unwrap().compared, Compared::Fields);
    }

    #[test]
    fn all_flag_errors_are_reported_at_once() {
        let problems = parse(&[
            "-o=xml",
            "--request-timeout=soon",
            "--context=a",
            "--context=a",
            "--server=x",
        ])
        .unwrap_err();
        let flags: Vec<_> = problems
            .iter()
            .map(|it| it.split(':').next().unwrap())
            .collect();
        assert_eq!(
            flags,
            ["--output", "--request-timeout", "--context", "--server"]
        );
        assert!(parse(&["--tls-server-name=x"]).is_err());
    }

    #[test]
    fn a_timeout_is_parsed_as_by_kubectl() {
        let rows = [
            ("0", None),
            ("0s", None),
            ("7", Some(7_000)),
            ("1m30s", Some(90_000)),
            ("200ms", Some(200)),
        ];
        for (text, expected) in rows {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(timeout(text), Ok(expected), "{text}");
        }
        assert!(timeout("-1s").is_err());
    }
}

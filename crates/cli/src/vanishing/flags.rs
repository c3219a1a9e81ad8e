//! The flags of `vanishing`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use http::Uri;

use crate::flag_values;

const HELP: &str = "\
Each bridge counts the calls of its clients to APIs that the next minor version (or that of its
--watch-target) does not serve, and to APIs that a kube-apiserver reports as deprecated. This command
adds up the counts of several bridges. They contain users and user agents, and no names of objects.

http:// is the --admin-address of a bridge on this machine. https:// is the --admin-secure-address
of any bridge; the user of the kubeconfig needs the right to get /debug/vanishing.

Exit code: 0 no call to an API that vanishes, 2 there are some, 1 a bridge did not answer or does not
know what vanishes, or another failure, 64 the command line is wrong.

Examples:
  skewbridge vanishing
  skewbridge vanishing --bridge=https://10.0.0.11:10271 --bridge=https://10.0.0.12:10271 -o json";

// The flags of `vanishing`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// The admin port of a bridge; repeat it for each
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:10270")]
    bridge: Vec<String>,
    /// Name to expect in the certificates of https:// bridges, if not their hosts
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// The kubeconfig, for https:// [default: $KUBECONFIG, ~/.kube/config or that of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Output format: table or json
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
pub(super) struct Options {
    pub(super) bridges: Vec<Bridge>,
    pub(super) tls_server_name: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
    pub(super) format: Format,
    /// `None` is no limit.
    pub(super) timeout: Option<Duration>,
}

/// The admin port of a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bridge {
    Loopback(SocketAddr),
    /// With its URL.
    Secure(String),
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
}

impl Flags {
    /// Parses the flags, or returns all errors.
    pub(super) fn parse(&self) -> Result<Options, Vec<String>> {
        const FORMATS: [(&str, Format); 2] = [("table", Format::Table), ("json", Format::Json)];
        let mut problems = Vec::new();
        let mut bridges = Vec::new();
        for url in &self.bridge {
            match bridge(url) {
                // Its calls would be counted twice.
                Ok(bridge) if bridges.contains(&bridge) => {
                    problems.push(format!("--bridge: {url:?} is given twice"));
                }
                Ok(bridge) => bridges.push(bridge),
                Err(wrong) => problems.push(format!("--bridge: {wrong}")),
            }
        }
        let format = flag_values::keyword(&self.output, &FORMATS)
            .map_err(|wrong| problems.push(format!("--output: {wrong}")));
        let timeout = flag_values::duration(&self.request_timeout)
            .map_err(|wrong| problems.push(format!("--request-timeout: {wrong}")));
        match (format, timeout) {
            (Ok(format), Ok(timeout)) if problems.is_empty() => Ok(Options {
                bridges,
                tls_server_name: self.tls_server_name.clone(),
                kubeconfig: self.kubeconfig.clone(),
                context: self.context.clone(),
                format,
                timeout: (!timeout.is_zero()).then_some(timeout),
            }),
            _ => Err(problems),
        }
    }
}

/// The scheme, host and port of an admin port. Without TLS it has to be on this machine, as
/// `--admin-address` is.
fn bridge(url: &str) -> Result<Bridge, String> {
    let wrong = || {
        format!("{url:?} is not a URL such as http://127.0.0.1:10270 or https://10.0.0.11:10271")
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    let has_path = uri.path_and_query().is_some_and(|it| it.as_str() != "/");
    if has_path || authority.as_str().contains('@') {
        return Err(wrong());
    }
    let port = authority.port_u16().ok_or_else(wrong)?;
    match uri.scheme_str() {
        Some("https") => Ok(Bridge::Secure(format!("https://{authority}"))),
        Some("http") => {
            let host = authority
                .host()
                .trim_start_matches('[')
                .trim_end_matches(']');
            let host = if host == "localhost" {
                "127.0.0.1"
            } else {
                host
            };
            let ip: Option<IpAddr> = host.parse().ok();
            match ip.filter(IpAddr::is_loopback) {
                Some(ip) => Ok(Bridge::Loopback(SocketAddr::new(ip, port))),
                None => Err(format!(
                    "{url:?} is not on this machine: use https:// and the --admin-secure-address of the bridge"
                )),
            }
        }
        _ => Err(wrong()),
    }
}

impl std::fmt::Display for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}"),
            Self::Secure(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_port_is_on_this_machine_or_has_tls() {
        for (url, expected) in [
            ("http://127.0.0.1:10270", Ok("http://127.0.0.1:10270")),
            ("http://localhost:10270/", Ok("http://127.0.0.1:10270")),
            ("http://[::1]:10270", Ok("http://[::1]:10270")),
            ("https://10.0.0.11:10271", Ok("https://10.0.0.11:10271")),
            ("https://cp-1:10271/", Ok("https://cp-1:10271")),
            ("http://10.0.0.11:10270", Err("not on this machine")),
            ("http://cp-1:10270", Err("not on this machine")),
            ("https://10.0.0.11", Err("not a URL")),
            ("https://10.0.0.11:10271/metrics", Err("not a URL")),
            ("https://a@10.0.0.11:10271", Err("not a URL")),
            ("10.0.0.11:10271", Err("not a URL")),
            ("ftp://127.0.0.1:10270", Err("not a URL")),
            ("", Err("not a URL")),
        ] {
            match (bridge(url), expected) {
                (Ok(bridge), Ok(expected)) => assert_eq!(bridge.to_string(), expected),
                (Err(problem), Err(expected)) => assert!(problem.contains(expected), "{problem}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}

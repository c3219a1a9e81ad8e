//! `skewbridge route`: which server gets a request, and why. The bridge answers at its admin port.

mod explanation;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::admin_port;
use explanation::ExplanationDocument;

/// Show which server gets a request, and why.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skewbridge route GET /api/v1/nodes \
                        --user-agent='kubelet/v1.36.4 (linux/amd64)'")]
pub(crate) struct Flags {
    /// The HTTP method
    #[arg(value_name = "METHOD")]
    method: String,
    /// The path, with its query
    #[arg(value_name = "PATH")]
    path: String,
    /// The User-Agent of the client: the name and version of a component
    #[arg(long, value_name = "TEXT")]
    user_agent: Option<String>,
    /// The --admin-address of the bridge
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10270")]
    admin_address: SocketAddr,
    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(crate) fn run(flags: &Flags) -> ExitCode {
    let answer = explain(flags);
    let text = answer.and_then(|answer| match flags.output {
        Format::Json => Ok(answer + "\n"),
        Format::Text => {
            let answer: ExplanationDocument = serde_json::from_str(&answer)
                .map_err(|error| format!("{}: {error}", flags.admin_address))?;
            Ok(answer.to_string())
        }
    });
    match text {
        Ok(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The explanation as JSON.
fn explain(flags: &Flags) -> Result<String, String> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut target = format!(
        "/debug/route?method={}&path={}",
        encoded(&flags.method),
        encoded(&flags.path)
    );
    if let Some(user_agent) = &flags.user_agent {
        target += "&user-agent=";
        target += &encoded(user_agent);
    }
    admin_port::get(flags.admin_address, &target)
}

//! `skewbridge status`: the status page of a bridge in a terminal. The bridge answers at its admin port.

mod text;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use skewbridge_gateway::status::StatusDocument;

use crate::admin_port;

/// Show the control plane as a bridge sees it: servers, differences, requests, changes.
#[derive(Debug, Args)]
#[command(
    after_help = "The same as a page: open http://127.0.0.1:10270/status.\n\n\
                        Example:\n  skewbridge status --watch"
)]
pub(crate) struct Flags {
    /// The --admin-address of the bridge
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10270")]
    admin_address: SocketAddr,
    /// Show it again each second, until it is interrupted
    #[arg(short, long)]
    watch: bool,
    /// The format of the output; with --watch, each JSON document is one line
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The pause between two requests of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Moves to the upper left corner; after the text, clears the rest of the screen.
const HOME: &str = "\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K\n";
const CLEAR_BELOW: &str = "\u{1b}[J";

pub(crate) fn run(flags: &Flags) -> ExitCode {
    if flags.watch {
        return watch(flags);
    }
    match status(flags) {
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

/// Until it is interrupted, or the output is closed.
fn watch(flags: &Flags) -> ExitCode {
    let is_screen = flags.output == Format::Text && std::io::stdout().is_terminal();
    loop {
        let text = match (status(flags), flags.output) {
            (Ok(text), _) => text,
            (Err(problem), Format::Text) => format!("error: {problem}\n"),
            (Err(problem), Format::Json) => {
                let _ = writeln!(std::io::stderr(), "error: {problem}");
                String::new()
            }
        };
        let text = if is_screen {
            format!("{HOME}{}{CLEAR_BELOW}", text.replace('\n', CLEAR_LINE))
        } else if flags.output == Format::Text {
            text + "\n"
        } else {
            text
        };
        let mut out = std::io::stdout();
        if out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_err()
        {
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

fn status(flags: &Flags) -> Result<String, String> {
    let json = admin_port::get(flags.admin_address, "/status.json")?;
    let invalid = |error: serde_json::Error| format!("{}: {error}", flags.admin_address);
    match (flags.output, flags.watch) {
        (Format::Json, false) => Ok(json + "\n"),
        (Format::Json, true) => {
            let document: serde_json::Value = serde_json::from_str(&json).map_err(invalid)?;
            Ok(format!("{document}\n"))
        }
        (Format::Text, _) => {
            let document: StatusDocument = serde_json::from_str(&json).map_err(invalid)?;
            Ok(text::text(&document))
        }
    }
}

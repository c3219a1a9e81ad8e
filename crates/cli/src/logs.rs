//! Log lines: levels and format.
//!
//! `--v` is the only switch. `RUST_LOG` is deliberately not read: it could enable logs of
//! libraries with headers in them, and so with tokens.

use std::io::IsTerminal as _;

use skewbridge_gateway::config::{LogFormat, Logs};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

/// The target of the one line per request.
const ACCESS: &str = "skewbridge::access";

/// Sends log lines to stderr from here on.
pub(crate) fn init(logs: Logs) {
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match logs.format {
        LogFormat::Text => lines
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // Fails only if logging is already initialised.
    let _ = registry()
        .with(lines.with_filter(targets(logs.verbosity)))
        .try_init();
}

/// The targets and levels of a verbosity.
fn targets(verbosity: u8) -> Targets {
    let (ours, access) = match verbosity {
        0..=1 => (LevelFilter::INFO, LevelFilter::OFF),
        2..=3 => (LevelFilter::INFO, LevelFilter::INFO),
        _ => (LevelFilter::DEBUG, LevelFilter::INFO),
    };
    // Targets match by prefix, so the first covers all crates of the project.
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("skewbridge", ours)
        .with_target(ACCESS, access)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn higher_verbosity_enables_more_log_lines() {
        let table = [
            (0, ACCESS, Level::ERROR, false),
            (1, ACCESS, Level::INFO, false),
            (2, ACCESS, Level::INFO, true),
            (10, ACCESS, Level::INFO, true),
            (0, "skewbridge_gateway::listener", Level::INFO, true),
            (3, "skewbridge_gateway::listener", Level::DEBUG, false),
            (4, "skewbridge_gateway::listener", Level::DEBUG, true),
            (10, "skewbridge_http_engine", Level::TRACE, false),
            (10, "h2::codec", Level::INFO, false),
            (0, "h2::codec", Level::WARN, true),
        ];
        for (verbosity, target, level, expected) in table {
            let enabled = targets(verbosity).would_enable(target, &level);
            assert_eq!(enabled, expected, "{target} {level} at --v={verbosity}");
        }
    }
}

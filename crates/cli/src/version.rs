//! `skewbridge version`: which build this is.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

const HELP: &str = "\
With -o json: version, commit, optional features, TLS library, target and compiler. The commit is
\"unknown\" in a build that was not made by `cargo xtask dist`.

Examples:
  skewbridge version
  skewbridge version -o json | jq -r .tls.fips";

// The flags of `version`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Flags {
    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What is known of this build.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Build {
    version: &'static str,
    /// Of the sources.
    commit: &'static str,
    features: Vec<&'static str>,
    tls: TlsLibrary,
    target: &'static str,
    /// How the C library is linked.
    linkage: &'static str,
    rustc: &'static str,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct TlsLibrary {
    library: &'static str,
    version: &'static str,
    crypto_provider: &'static str,
    crypto_provider_version: &'static str,
    /// Whether the cryptography is validated for FIPS 140-3 and limited to what that allows.
    fips: bool,
}

/// Prints the version.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    let text = match flags.output {
        Format::Text => format!("{} {}\n", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
        Format::Json => match serde_json::to_string_pretty(&build()) {
            Ok(text) => text + "\n",
            Err(_) => return ExitCode::FAILURE,
        },
    };
    // Write errors are ignored: the reader may have closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn build() -> Build {
    let is_static = cfg!(target_feature = "crt-static");
    let features = [
        ("pkcs11", skewbridge_pkcs11::LOADS_MODULES),
        ("playground", cfg!(feature = "playground")),
    ];
    Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("SKEWBRIDGE_COMMIT").unwrap_or("unknown"),
        features: features
            .into_iter()
            .filter_map(|(name, is_built_in)| is_built_in.then_some(name))
            .collect(),
        tls: TlsLibrary {
            library: "rustls",
            version: env!("SKEWBRIDGE_RUSTLS_VERSION"),
            crypto_provider: "aws-lc-rs",
            crypto_provider_version: env!("SKEWBRIDGE_AWS_LC_RS_VERSION"),
            fips: skewbridge_gateway::tls::is_fips(),
        },
        target: env!("SKEWBRIDGE_TARGET"),
        linkage: if is_static { "static" } else { "dynamic" },
        rustc: env!("SKEWBRIDGE_RUSTC_VERSION"),
    }
}

//! `skewbridge agent`: the reference plugin of the client executable proxy.

mod build;
mod flags;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Command, ExitCode};

pub(crate) use flags::Flags;
use skewbridge_gateway::config::{LogFormat, Logs};
use skewbridge_harness::{Asked, Ended, Error, LockFile, Seat, Vigil};
use skewbridge_k8s_api::exec_credential::{ExecCredential, Spec, Version};

/// What a shell changes by itself, and the question, whose cluster is looked at apart.
/// Everything else in the environment may say who the user is: plugins of plugins
/// (`credential_process`, askpass, libraries of tokens) read what we do not know of.
const VOLATILE: [&str; 8] = [
    "KUBERNETES_EXEC_INFO",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "TERM",
    "COLUMNS",
    "LINES",
];

/// Flags to signers, signers to a plugin, until its end.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    crate::logs::init(Logs {
        verbosity: flags.v,
        format: LogFormat::Text,
    });
    crate::private_memory::deny_dumps_and_core_files();
    // Before the shared instance is started with the same arguments.
    let wrong_uri = flags
        .pkcs11_uri
        .as_ref()
        .and_then(|uri| uri.0.as_ref().err());
    let ended = if let Some(wrong) = wrong_uri {
        Err(Problem::Usage(vec![format!("--pkcs11-uri: {wrong}")]))
    } else if flags.shared && !flags.shared_instance {
        ask_shared()
    } else {
        serve(flags)
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Problem::Usage(problems)) => {
            for problem in problems {
                complain(&problem);
            }
            let _ = writeln!(std::io::stderr(), "see skewbridge agent --help");
            ExitCode::from(crate::EXIT_USAGE)
        }
        Err(Problem::Failed(problem)) => {
            complain(&problem);
            ExitCode::FAILURE
        }
    }
}

enum Problem {
    Usage(Vec<String>),
    Failed(String),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Is the proxy, for one client or for all.
fn serve(flags: &Flags) -> Result<(), Problem> {
    let asked = Asked::from_environment()?;
    // For what ends it. Requests are served on a thread of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(live(flags, &asked));
    // What is asked just now nobody will answer any more.
    skewbridge_pkcs11::cancel_pin_prompt();
    // A handshake that waits for a token is not waited for.
    runtime.shutdown_background();
    let ended = ended?;
    tracing::debug!("ended: {ended}");
    Ok(())
}

/// From before the first question to the user: its client may be gone while it waits for
/// a PIN.
async fn live(flags: &Flags, asked: &Asked) -> Result<Ended, Problem> {
    let lock = if flags.without_lock_file || flags.shared_instance {
        LockFile::Optional
    } else {
        LockFile::Required
    };
    let mut vigil = Vigil::begin(asked, lock)?;
    let build = {
        let (flags, asked) = (flags.clone(), asked.clone());
        move || build::signers(&flags, &asked)
    };
    let signers = match vigil.prepare(build).await {
        Ok(signers) => signers?,
        Err(ended) => return Ok(ended),
    };
    tokio::select! {
        checked = signers.check_credentials() => checked?,
        ended = vigil.ended() => return Ok(ended),
    }
    let harness = match vigil.prepare(move || signers.open()).await {
        Ok(harness) => harness?,
        Err(ended) => return Ok(ended),
    };
    let ended = if flags.shared_instance {
        let seat = seat(asked)?;
        harness.run_shared_under(asked, &seat, vigil).await
    } else {
        harness.run_under(asked, vigil).await
    };
    Ok(ended?)
}

/// Asks the instance that is shared, and starts it if there is none. It notices itself
/// if its client goes while it asks its user for something.
fn ask_shared() -> Result<(), Problem> {
    let asked = Asked::from_environment()?;
    let seat = seat(&asked)?;
    let mut instance = Command::new(std::env::current_exe()?);
    instance
        .args(std::env::args_os().skip(1))
        .arg("--shared-instance");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        let mut vigil = Vigil::begin(&asked, LockFile::Optional)?;
        tokio::select! {
            answer = seat.ask(asked.version, instance) => answer.map(Some),
            _ = vigil.ended() => Ok(None),
        }
    });
    runtime.shutdown_background();
    match answer? {
        Some(answer) => Ok(Seat::print(&answer)?),
        None => Ok(()),
    }
}

/// Where the instance is found that does what these flags say, for this cluster, by
/// the same way.
fn seat(asked: &Asked) -> Result<Seat, Error> {
    let cluster = Spec {
        cluster: Some(asked.cluster.clone()),
        ..Spec::default()
    };
    let cluster = ExecCredential::request(Version::V1, cluster).to_json();
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--shared-instance")
        .collect();
    let here = std::env::current_dir().unwrap_or_default();
    let environment = lasting(std::env::vars_os());
    let version = env!("CARGO_PKG_VERSION");
    let mut parts = vec![
        version.as_bytes(),
        cluster.expose().as_bytes(),
        here.as_os_str().as_encoded_bytes(),
    ];
    for (name, value) in &environment {
        parts.extend([name.as_encoded_bytes(), value.as_encoded_bytes()]);
    }
    // So that a word is not taken for a variable.
    parts.push(b"");
    parts.extend(arguments.iter().map(|value| value.as_encoded_bytes()));
    Seat::of(parts)
}

/// What of the environment tells one instance from another, in one order.
fn lasting(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_volatile = |name: &OsString| VOLATILE.iter().any(|volatile| name == volatile);
    environment.filter(|(name, _)| !is_volatile(name)).collect()
}

fn complain(problem: &str) {
    let problem = crate::skew::plain(problem);
    let _ = writeln!(std::io::stderr(), "skewbridge agent: {problem}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_variable_tells_instances_apart_but_those_that_shells_change() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            lasting(pairs.map(|(name, value)| (OsString::from(name), OsString::from(value))))
        };
        let jane = of(&[("VAULT_TOKEN", "jane"), ("PWD", "/a"), ("HOME", "/root")]);
        assert_ne!(jane, of(&[("VAULT_TOKEN", "joe"), ("HOME", "/root")]));
        assert_ne!(jane, of(&[("HOME", "/root")]));
        let elsewhere = [("HOME", "/root"), ("SHLVL", "2"), ("VAULT_TOKEN", "jane")];
        assert_eq!(jane, of(&elsewhere));
    }
}

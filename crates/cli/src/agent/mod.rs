//! `skewbridge agent`: the reference plugin of the client executable proxy.

mod flags;
mod signers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Command, ExitCode};

pub(crate) use flags::Flags;
use skewbridge_exec_proxy::{
    Error, ExecInfo, InstancePath, LockFile, ShutdownReason, ShutdownWatcher,
};
use skewbridge_gateway::config::{LogFormat, Logs};
use skewbridge_k8s_api::exec_credential::{ExecCredential, Spec, Version};

/// Variables that a shell changes by itself, and the exec info, whose cluster is compared
/// separately. Any other variable may select the user: plugins of plugins (`credential_process`,
/// askpass, PKCS#11 libraries) read variables that are not known here.
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

/// From flags to signers to a running plugin, until its end.
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
        Err(AgentError::Usage(vec![format!("--pkcs11-uri: {wrong}")]))
    } else if flags.shared && !flags.shared_instance {
        request_from_shared()
    } else {
        serve(flags)
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(AgentError::Usage(problems)) => {
            for problem in problems {
                print_error(&problem);
            }
            let _ = writeln!(std::io::stderr(), "see skewbridge agent --help");
            ExitCode::from(crate::EXIT_USAGE)
        }
        Err(AgentError::Failed(problem)) => {
            print_error(&problem);
            ExitCode::FAILURE
        }
    }
}

enum AgentError {
    Usage(Vec<String>),
    Failed(String),
}

impl From<Error> for AgentError {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<std::io::Error> for AgentError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Serves as the proxy, for one client or as the shared instance.
fn serve(flags: &Flags) -> Result<(), AgentError> {
    let exec_info = ExecInfo::from_environment()?;
    // For the shutdown watcher. Requests are served on a thread of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(serve_until_end(flags, &exec_info));
    // A prompt that is still open is abandoned.
    skewbridge_pkcs11::cancel_pin_prompt();
    // Does not wait for a handshake that waits for a token.
    runtime.shutdown_background();
    let ended = ended?;
    tracing::debug!("ended: {ended}");
    Ok(())
}

/// Starts before the first prompt: the client may exit while a PIN is awaited.
async fn serve_until_end(
    flags: &Flags,
    exec_info: &ExecInfo,
) -> Result<ShutdownReason, AgentError> {
    let lock = if flags.without_lock_file || flags.shared_instance {
        LockFile::Optional
    } else {
        LockFile::Required
    };
    let mut shutdown = ShutdownWatcher::start(exec_info, lock)?;
    let build = {
        let (flags, exec_info) = (flags.clone(), exec_info.clone());
        move || signers::signers(&flags, &exec_info)
    };
    let signers = match shutdown.run_blocking(build).await {
        Ok(signers) => signers?,
        Err(ended) => return Ok(ended),
    };
    tokio::select! {
        checked = signers.check_credentials() => checked?,
        ended = shutdown.requested() => return Ok(ended),
    }
    let proxy = match shutdown.run_blocking(move || signers.open()).await {
        Ok(proxy) => proxy?,
        Err(ended) => return Ok(ended),
    };
    let ended = if flags.shared_instance {
        let path = instance_path(exec_info)?;
        proxy
            .run_shared_with_watcher(exec_info, &path, shutdown)
            .await
    } else {
        proxy.run_with_watcher(exec_info, shutdown).await
    };
    Ok(ended?)
}

/// Connects to the shared instance, and starts it if there is none. The instance itself detects
/// that its client exits during a prompt.
fn request_from_shared() -> Result<(), AgentError> {
    let exec_info = ExecInfo::from_environment()?;
    let path = instance_path(&exec_info)?;
    let mut instance = Command::new(std::env::current_exe()?);
    instance
        .args(std::env::args_os().skip(1))
        .arg("--shared-instance");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        let mut shutdown = ShutdownWatcher::start(&exec_info, LockFile::Optional)?;
        tokio::select! {
            answer = path.request_credential(exec_info.version, instance) => answer.map(Some),
            _ = shutdown.requested() => Ok(None),
        }
    });
    runtime.shutdown_background();
    match answer? {
        Some(answer) => Ok(InstancePath::print(&answer)?),
        None => Ok(()),
    }
}

/// The path of the shared instance for these flags, this cluster and this connection.
fn instance_path(exec_info: &ExecInfo) -> Result<InstancePath, Error> {
    let cluster = Spec {
        cluster: Some(exec_info.cluster.clone()),
        ..Spec::default()
    };
    let cluster = ExecCredential::request(Version::V1, cluster).to_json();
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--shared-instance")
        .collect();
    let here = std::env::current_dir().unwrap_or_default();
    let environment = stable_environment(std::env::vars_os());
    let version = env!("CARGO_PKG_VERSION");
    let mut parts = vec![
        version.as_bytes(),
        cluster.expose().as_bytes(),
        here.as_os_str().as_encoded_bytes(),
    ];
    for (name, value) in &environment {
        parts.extend([name.as_encoded_bytes(), value.as_encoded_bytes()]);
    }
    // A prefix keeps arguments and variables apart.
    parts.push(b"");
    parts.extend(arguments.iter().map(|value| value.as_encoded_bytes()));
    InstancePath::from_parts(parts)
}

/// The variables that distinguish instances, sorted.
fn stable_environment(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_volatile = |name: &OsString| VOLATILE.iter().any(|volatile| name == volatile);
    environment.filter(|(name, _)| !is_volatile(name)).collect()
}

fn print_error(problem: &str) {
    let problem = crate::skew::plain(problem);
    let _ = writeln!(std::io::stderr(), "skewbridge agent: {problem}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_instances_differ_by_all_variables_except_volatile_ones() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            stable_environment(
                pairs.map(|(name, value)| (OsString::from(name), OsString::from(value))),
            )
        };
        let jane = of(&[("VAULT_TOKEN", "jane"), ("PWD", "/a"), ("HOME", "/root")]);
        assert_ne!(jane, of(&[("VAULT_TOKEN", "joe"), ("HOME", "/root")]));
        assert_ne!(jane, of(&[("HOME", "/root")]));
        let elsewhere = [("HOME", "/root"), ("SHLVL", "2"), ("VAULT_TOKEN", "jane")];
        assert_eq!(jane, of(&elsewhere));
    }
}

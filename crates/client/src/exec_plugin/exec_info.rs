//! The `KUBERNETES_EXEC_INFO` input of a plugin.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use skewbridge_k8s_api::exec_credential::{self, ExecCredential, Spec};
use skewbridge_k8s_api::secret::SecretString;

use super::process::lossy_text;
use crate::error::Error;
use crate::kubeconfig::{Cluster, Exec, InteractiveMode};

/// The reader for which standard input is reserved, if there is one.
static STDIN_RESERVED_BY: OnceLock<&'static str> = OnceLock::new();

/// Reserves standard input: no plugin may read it from now on. `by` names the reader, for the
/// error of plugins with `interactiveMode: Always`.
pub fn reserve_stdin(by: &'static str) {
    // The first reservation stays.
    let _ = STDIN_RESERVED_BY.set(by);
}

/// The kind of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stdin {
    /// A terminal.
    Terminal,
    /// Not a terminal.
    NoTerminal,
    /// Reserved for another reader.
    Reserved(&'static str),
}

impl Stdin {
    /// The state of standard input now.
    pub(super) fn current() -> Self {
        match STDIN_RESERVED_BY.get() {
            Some(by) => Self::Reserved(by),
            None if std::io::stdin().is_terminal() => Self::Terminal,
            None => Self::NoTerminal,
        }
    }
}

/// Whether a plugin gets our standard input. The errors are kubectl's.
pub(super) fn is_interactive(mode: InteractiveMode, stdin: Stdin) -> Result<bool, String> {
    const NOT_INTERACTIVE: &str = "exec plugin cannot support interactive mode";
    match (mode, stdin) {
        (InteractiveMode::Never, _) => Ok(false),
        (InteractiveMode::IfAvailable, stdin) => Ok(stdin == Stdin::Terminal),
        (InteractiveMode::Always, Stdin::Terminal) => Ok(true),
        (InteractiveMode::Always, Stdin::NoTerminal) => Err(format!(
            "{NOT_INTERACTIVE}: standard input is not a terminal"
        )),
        (InteractiveMode::Always, Stdin::Reserved(by)) => Err(format!(
            "{NOT_INTERACTIVE}: standard input is unavailable: {by}"
        )),
    }
}

/// The value of `KUBERNETES_EXEC_INFO` for a plugin.
pub(super) fn exec_info(
    plugin: &Exec,
    cluster: &Cluster,
    interactive: bool,
    lock_file_path: Option<PathBuf>,
) -> Result<SecretString, Error> {
    let cluster = if plugin.provide_cluster_info {
        Some(cluster_info(cluster)?)
    } else {
        None
    };
    let spec = Spec {
        cluster,
        interactive,
        lock_file_path,
    };
    Ok(ExecCredential::request(plugin.api_version, spec).to_json())
}

fn cluster_info(cluster: &Cluster) -> Result<exec_credential::Cluster, Error> {
    let authority = match &cluster.certificate_authority {
        Some(material) => material.read()?.expose().to_vec(),
        None => Vec::new(),
    };
    let proxy = cluster.proxy_url.as_ref();
    Ok(exec_credential::Cluster {
        server: cluster.server.clone(),
        tls_server_name: cluster.tls_server_name.clone(),
        insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
        certificate_authority_data: authority,
        proxy_url: proxy.map(|url| SecretString::new(lossy_text(url))),
        disable_compression: false,
        config: cluster.exec_config.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_reads_the_terminal_only_if_its_mode_and_ours_allow_it() {
        use InteractiveMode::{Always, IfAvailable, Never};
        let reserved = Stdin::Reserved("kubectl reads it");
        let rows = [
            (Never, Stdin::Terminal, Ok(false)),
            (Never, Stdin::NoTerminal, Ok(false)),
            (IfAvailable, Stdin::Terminal, Ok(true)),
            (IfAvailable, Stdin::NoTerminal, Ok(false)),
            (IfAvailable, reserved, Ok(false)),
            (Always, Stdin::Terminal, Ok(true)),
            (
                Always,
                Stdin::NoTerminal,
                Err("standard input is not a terminal"),
            ),
            (
                Always,
                reserved,
                Err("standard input is unavailable: kubectl reads it"),
            ),
        ];
        for (mode, stdin, expected) in rows {
            let expected = expected
                .map_err(|cause| format!("exec plugin cannot support interactive mode: {cause}"));
            assert_eq!(is_interactive(mode, stdin), expected, "{mode:?} {stdin:?}");
        }
    }
}

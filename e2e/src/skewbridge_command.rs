//! The commands of skewbridge, as users run them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::endpoint::Via;
use crate::kubectl::{Output, User};

impl ControlPlane {
    /// Runs skewbridge with these kubeconfig files (separated by colons) and arguments.
    pub async fn skewbridge(&self, kubeconfig: &str, words: &[&str]) -> Output {
        let output = Command::new(binaries::bridge())
            .args(words)
            .env("HOME", self.pki.path())
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("skewbridge starts");
        Output::of(&output)
    }

    /// A skewbridge command for a server, without its arguments.
    pub fn skewbridge_command(&self, server: usize, via: Via, user: User) -> Command {
        self.skewbridge_at(&self.kubeconfig(self.servers[server].at(via), user))
    }

    /// The same with this kubeconfig.
    pub fn skewbridge_at(&self, kubeconfig: &Path) -> Command {
        let mut command = Command::new(binaries::bridge());
        command
            .env("HOME", self.pki.path())
            .env("KUBECONFIG", kubeconfig)
            .kill_on_drop(true);
        command
    }

    /// A skewbridge command as in a pod of this namespace: with a mounted service account,
    /// the server in the environment, and no kubeconfig.
    pub fn skewbridge_in_pod(&self, server: usize, namespace: &str, token: &str) -> Command {
        const SCRIPT: &str = r#"
            mount -t tmpfs account /run
            mkdir -p /run/secrets/kubernetes.io/serviceaccount
            cd /run/secrets/kubernetes.io/serviceaccount
            echo "$TOKEN" >token
            printf %s "$NAMESPACE" >namespace
            cp "$CA" ca.crt
            unset TOKEN NAMESPACE CA
            exec "$@"
        "#;
        let address = self.servers[server].at(Via::Server);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec", SCRIPT, "sh"])
            .arg(binaries::bridge())
            .env("TOKEN", token)
            .env("NAMESPACE", namespace)
            .env("CA", self.pki.file("ca.crt"))
            .env("HOME", "/none")
            .env("KUBERNETES_SERVICE_HOST", address.ip().to_string())
            .env("KUBERNETES_SERVICE_PORT", address.port().to_string())
            .env_remove("KUBECONFIG")
            .kill_on_drop(true);
        command
    }

    /// `kubectl skewbridge`, without its arguments.
    pub fn kubectl_skewbridge(&self, server: usize, via: Via, user: User) -> Command {
        let mut command = self.kubectl_with_plugin(server, via, user);
        command.arg("skewbridge");
        command
    }

    /// kubectl of the server's version, with skewbridge on its `PATH` as a plugin and as
    /// the plugin's completion.
    pub fn kubectl_with_plugin(&self, server: usize, via: Via, user: User) -> Command {
        let directory = self.pki.file("plugins");
        std::fs::create_dir_all(&directory).expect("a directory for plugins");
        for name in ["kubectl-skewbridge", "kubectl_complete-skewbridge"] {
            let link = directory.join(name);
            if !link.exists() {
                std::os::unix::fs::symlink(binaries::bridge(), &link).expect("a link");
            }
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = std::env::split_paths(&path);
        let path = std::env::join_paths(std::iter::once(directory).chain(others));
        let version = &self.servers[server].version;
        let mut command = Command::new(binaries::kubectl(version));
        command
            .env("PATH", path.expect("a path"))
            .env("HOME", self.pki.path())
            .env(
                "KUBECONFIG",
                self.kubeconfig(self.servers[server].at(via), user),
            )
            .kill_on_drop(true);
        command
    }

    /// Writes a kubeconfig of the admin with a context for each address, the first being
    /// the current one. Returns its path.
    pub fn kubeconfig_of(&self, contexts: &[(&str, SocketAddr)]) -> String {
        let mut text = format!("current-context: {}\n", contexts[0].0);
        let each = |entry: &dyn Fn(&str, SocketAddr) -> String| -> String {
            let lines = contexts.iter();
            let lines =
                lines.map(|(name, it)| format!("- {{name: {name}, {}}}\n", entry(name, *it)));
            lines.collect::<Vec<_>>().concat()
        };
        text += "clusters:\n";
        text += &each(&|_, address| {
            format!("cluster: {{server: 'https://{address}', certificate-authority: ca.crt}}")
        });
        text += "contexts:\n";
        text += &each(&|name, _| format!("context: {{cluster: {name}, user: {name}}}"));
        text += "users:\n";
        text += &each(&|_, _| {
            "user: {client-certificate: admin.crt, client-key: admin.key}".to_owned()
        });
        self.file("contexts.kubeconfig", &text)
    }
}

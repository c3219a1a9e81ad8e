//! Clients without a credential under `skewbridge run`, whose requests go through
//! `skewbridge agent`.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::json;
use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::node::Node;

impl ControlPlane {
    /// The flags of `skewbridge agent` with this user's key in a file.
    pub fn file_signer_flags(&self, user: &str) -> Vec<String> {
        let file = |ending: &str| self.pki.file(&format!("{user}.{ending}"));
        vec![
            "--signer=file".to_owned(),
            format!("--client-certificate={}", file("crt").display()),
            format!("--client-key={}", file("key").display()),
        ]
    }

    /// `skewbridge run` with kubectl of the server's own version, without kubectl's
    /// arguments. The user of its kubeconfig has a plugin: `skewbridge agent` with these
    /// flags.
    pub fn kubectl_under_run(&self, server: usize, agent: &[String]) -> Command {
        let running = &self.servers[server];
        let mut command = self.skewbridge_run(running.address, agent);
        command.arg(binaries::kubectl(&running.version));
        command
    }

    /// `skewbridge run` for this server, without the command that it runs.
    pub fn skewbridge_run(&self, server: SocketAddr, agent: &[String]) -> Command {
        let mut arguments = vec!["agent".to_owned()];
        arguments.extend_from_slice(agent);
        let config = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {
                "cluster": "k", "user": "u", "namespace": Node::NAMESPACE,
            }}],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority": self.pki.file("ca.crt"),
            }}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": binaries::bridge(),
                "args": arguments,
                "interactiveMode": "Never",
                "provideClusterInfo": true,
            }}}],
        });
        let config = config.to_string();
        let name = format!("run-{}.kubeconfig", server.port());
        // An existing file may be read by another process at this moment.
        let path = match std::fs::read_to_string(self.pki.file(&name)) {
            Ok(existing) if existing == config => self.pki.file(&name),
            _ => self.pki.dir.write(&name, config),
        };
        let mut command = Command::new(binaries::bridge());
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(path)
            .arg("--")
            .env("HOME", self.pki.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

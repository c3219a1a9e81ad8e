//! The real kubectl.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::endpoint::Via;

/// The user of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// By certificate, with all rights.
    Admin,
    /// By certificate, in the groups dev and ops.
    Alice,
    /// By token, in the groups qa and readers.
    Bob,
    /// The admin, impersonating another user.
    AdminAs(&'static str),
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; `None` for a signal.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// The output of a program that has exited.
    pub fn of(output: &std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl ControlPlane {
    /// Runs kubectl of the server's own version against a server.
    pub async fn kubectl(&self, server: usize, via: Via, user: User, words: &[&str]) -> Output {
        let mut command = self.kubectl_command(server, via, user);
        let output = command.args(words).output().await.expect("kubectl starts");
        Output::of(&output)
    }

    /// Runs a script of a shell, with kubectl of the server's version for its admin.
    pub async fn shell_with_kubectl(&self, server: usize, via: Via, script: &str) -> Output {
        let version = &self.servers[server].version;
        let directory = self.pki.file(&format!("kubectl-{version}"));
        std::fs::create_dir_all(&directory).expect("a directory for kubectl");
        let link = directory.join("kubectl");
        if !link.exists() {
            std::os::unix::fs::symlink(binaries::kubectl(version), &link).expect("a link");
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = std::env::split_paths(&path);
        let path = std::env::join_paths(std::iter::once(directory).chain(others));
        let address = self.servers[server].at(via);
        let output = Command::new("sh")
            .args(["-euc", script])
            .current_dir(self.pki.path())
            .env("PATH", path.expect("a path"))
            .env("HOME", self.pki.path())
            .env("KUBECONFIG", self.kubeconfig(address, User::Admin))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("sh starts");
        Output::of(&output)
    }

    /// The kubectl command, without its arguments.
    pub fn kubectl_command(&self, server: usize, via: Via, user: User) -> Command {
        let version = &self.servers[server].version;
        self.kubectl_of(version, server, via, user)
    }

    /// The same for any available version.
    pub fn kubectl_of(&self, version: &str, server: usize, via: Via, user: User) -> Command {
        self.kubectl_at(version, self.servers[server].at(via), user)
    }

    /// The same for any address.
    pub fn kubectl_at(&self, version: &str, address: SocketAddr, user: User) -> Command {
        let config = self.kubeconfig(address, user);
        let mut command = Command::new(binaries::kubectl(version));
        command
            .arg(format!("--kubeconfig={}", config.display()))
            .env("HOME", self.pki.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let User::AdminAs(name) = user {
            command.arg(format!("--as={name}"));
        }
        command
    }

    pub(crate) fn kubeconfig(&self, address: SocketAddr, user: User) -> std::path::PathBuf {
        let file = |name: &str| self.pki.file(name).display().to_string();
        let pair = |name: &str| {
            format!(
                "client-certificate: {}, client-key: {}",
                file(&format!("{name}.crt")),
                file(&format!("{name}.key"))
            )
        };
        let (name, credential) = match user {
            User::Admin | User::AdminAs(_) => ("admin", pair("admin")),
            User::Alice => ("alice", pair("alice")),
            User::Bob => ("bob", "token: bob-token".to_owned()),
        };
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'https://{address}', certificate-authority: {}}}}}]\n\
             users: [{{name: u, user: {{{credential}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            file("ca.crt")
        );
        let file = format!("{name}-{}.kubeconfig", address.port());
        // An existing file may be read by another process at this moment.
        match std::fs::read_to_string(self.pki.file(&file)) {
            Ok(existing) if existing == text => self.pki.file(&file),
            _ => self.pki.dir.write(&file, text),
        }
    }
}

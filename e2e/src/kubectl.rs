//! The real kubectl.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::endpoint::Via;

/// As whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// By certificate, may do everything.
    Admin,
    /// By certificate, in the groups dev and ops.
    Alice,
    /// By token, in the groups qa and readers.
    Bob,
    /// The admin in the role of somebody else.
    AdminAs(&'static str),
}

/// What a client said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; `None` for a signal.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

impl Output {
    /// Of a program that has ended.
    pub fn of(ended: &std::process::Output) -> Self {
        Self {
            code: ended.status.code(),
            stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
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

    /// kubectl, ready to be given its arguments.
    pub fn kubectl_command(&self, server: usize, via: Via, user: User) -> Command {
        let version = &self.servers[server].version;
        self.kubectl_of(version, server, via, user)
    }

    /// The same, of any version that the tests have.
    pub fn kubectl_of(&self, version: &str, server: usize, via: Via, user: User) -> Command {
        self.kubectl_at(version, self.servers[server].at(via), user)
    }

    /// The same, of any address.
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
        // One that is there may be read at this moment.
        match std::fs::read_to_string(self.pki.file(&file)) {
            Ok(there) if there == text => self.pki.file(&file),
            _ => self.pki.dir.write(&file, text),
        }
    }
}

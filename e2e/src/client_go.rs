//! The program in `e2e/client-go`, which uses the library as its users do.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::endpoint::Via;
use crate::kubectl::{Output, User};

impl ControlPlane {
    /// Runs a check of the client-go program in a namespace; `words` are its flags and its
    /// name.
    pub async fn client_go(
        &self,
        server: usize,
        via: Via,
        user: User,
        namespace: &str,
        words: &[&str],
    ) -> Output {
        let address = self.servers[server].at(via);
        let mut command = self.client_go_command(address, user, namespace);
        let output = command.args(words).output().await;
        Output::of(&output.expect("client-go starts"))
    }

    /// The command for any address, without its arguments.
    pub fn client_go_command(&self, address: SocketAddr, user: User, namespace: &str) -> Command {
        let config = self.kubeconfig(address, user);
        let mut command = Command::new(binaries::client_go());
        command
            .arg(format!("--kubeconfig={}", config.display()))
            .arg(format!("--namespace={namespace}"))
            .env("HOME", self.pki.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

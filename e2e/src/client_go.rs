//! The program of `e2e/client-go`: what users of that library do.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::Command;

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::endpoint::Via;
use crate::kubectl::{Output, User};

impl ControlPlane {
    /// Lets client-go do something in a namespace: the name of a check, after
    /// the flags that it needs.
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

    /// The same of any address, ready to be given its words.
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

//! The program of `e2e/client-go`: what users of that library do.

use std::process::Stdio;

use tokio::process::Command;

use crate::binaries;
use crate::kubectl::{Output, User, Via};
use crate::plane::Plane;

impl Plane {
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
        let config = self.kubeconfig(self.servers[server].at(via), user);
        let output = Command::new(binaries::client_go())
            .arg(format!("--kubeconfig={}", config.display()))
            .arg(format!("--namespace={namespace}"))
            .args(words)
            .env("HOME", self.pki.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("client-go starts");
        Output::of(&output)
    }
}

//! `skewbridge run` on a terminal, with a plugin that prompts for a PIN.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use skewbridge_testkit::{ApiServer, SoftToken};

use crate::agent_fixture::{AgentFixture, is_gone};

pub(crate) const PIN: &str = "246810";

pub(crate) fn parent_of(process: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A kubeconfig with an interactive plugin, and `skewbridge run` as its client.
pub(crate) struct PromptFixture {
    pub(crate) agent: AgentFixture,
    pub(crate) server: ApiServer,
}

impl PromptFixture {
    pub(crate) async fn new() -> Self {
        let agent = AgentFixture::new();
        let server = agent.server().await;
        Self { agent, server }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.agent.dir.path().join(name)
    }

    /// `skewbridge run` with a plugin of this script, whose pid is in `plugin`, and a command
    /// that waits for a line in `go`.
    pub(crate) fn client(
        &self,
        timeout: &str,
        script: &str,
        args: &[&str],
        environment: &[(&str, PathBuf)],
    ) -> Command {
        let script = format!("echo $$ > {}; {script}", self.path("plugin").display());
        let mut arguments = vec![json!("-c"), json!(script), json!("sh")];
        arguments.extend(args.iter().map(|word| json!(word)));
        let environment: Vec<Value> = environment
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let ca = self.agent.dir.write("ca.crt", self.agent.ca.pem());
        let config = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{}", self.server.addr()),
                "certificate-authority": ca,
            }}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "sh",
                "args": arguments,
                "env": environment,
                "interactiveMode": "Always",
                "provideClusterInfo": true,
            }}}],
        });
        let config = self.agent.dir.write("kubeconfig", config.to_string());
        if !self.path("go").exists() {
            let made = Command::new("mkfifo").arg(self.path("go")).status();
            assert!(made.unwrap().success());
        }
        let mut client = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        client
            .args(["run", "--plugin-timeout", timeout, "--kubeconfig"])
            .arg(config)
            .args(["--", "sh", "-c"])
            .arg("cp \"$KUBECONFIG\" copy.new; mv copy.new copy; read line < go")
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env_remove("KUBECONFIG")
            .current_dir(self.agent.dir.path());
        client
    }

    /// The same, with the key in a token.
    pub(crate) fn with_token(&self, token: &SoftToken) -> Command {
        let module = format!("--pkcs11-module={}", token.library().display());
        let args = [
            env!("CARGO_BIN_EXE_skewbridge"),
            "agent",
            "--signer=pkcs11",
            &module,
            "--pkcs11-uri=pkcs11:token=jane;object=kubernetes",
        ];
        let environment = [("SOFTHSM2_CONF", token.configuration())];
        self.client("1m", "exec \"$@\"", &args, &environment)
    }

    pub(crate) fn token(&self) -> Option<SoftToken> {
        let token = SoftToken::new("jane", PIN)?;
        let key = token.generate("EC:prime256v1", "kubernetes", "01");
        let certificate = self.agent.ca.client_with_key(&key, "token-jane", &[]);
        token.store(&certificate, "kubernetes", "01");
        Some(token)
    }

    pub(crate) fn plugin(&self) -> i32 {
        let pid = std::fs::read_to_string(self.path("plugin")).unwrap();
        pid.trim().parse().unwrap()
    }

    pub(crate) fn plugin_is_gone(&self) -> bool {
        is_gone(self.plugin())
    }
}

//! PIN prompts on a terminal, which is restored afterwards.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skewbridge_client::{Endpoint, Kubeconfig, Request};
use skewbridge_testkit::{ApiServer, SoftToken, Stopwatch, Terminal, eventually};

use crate::agent_fixture::{AgentFixture, TEST_TIMEOUT, is_gone};

const PIN: &str = "246810";

/// Time for a plugin to exit after its client has died.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

fn parent_of(process: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A kubeconfig with an interactive plugin, and `skewbridge run` as its client.
struct PromptFixture {
    agent: AgentFixture,
    server: ApiServer,
}

impl PromptFixture {
    async fn new() -> Self {
        let agent = AgentFixture::new();
        let server = agent.server().await;
        Self { agent, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.agent.dir.path().join(name)
    }

    /// `skewbridge run` with a plugin of this script, whose pid is in `plugin`, and a command
    /// that waits for a line in `go`.
    fn client(
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
    fn with_token(&self, token: &SoftToken) -> Command {
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

    fn token(&self) -> Option<SoftToken> {
        let token = SoftToken::new("jane", PIN)?;
        let key = token.generate("EC:prime256v1", "kubernetes", "01");
        let certificate = self.agent.ca.client_with_key(&key, "token-jane", &[]);
        token.store(&certificate, "kubernetes", "01");
        Some(token)
    }

    fn plugin(&self) -> i32 {
        let pid = std::fs::read_to_string(self.path("plugin")).unwrap();
        pid.trim().parse().unwrap()
    }

    fn plugin_is_gone(&self) -> bool {
        is_gone(self.plugin())
    }
}

#[tokio::test]
async fn a_pin_is_prompted_for_without_echo_and_can_be_retried() {
    let fixture = PromptFixture::new().await;
    let Some(token) = fixture.token() else { return };
    let terminal = Terminal::open(80, 24);
    let _shell = terminal.run_in_shell(&fixture.with_token(&token));
    terminal.shows("PIN of token \"jane\": ").await;
    terminal.becomes_raw().await;
    terminal.type_keys("111111\r");
    let again = "That PIN is wrong. PIN of token \"jane\": ";
    terminal.shows(again).await;
    terminal.becomes_raw().await;
    // With erased characters.
    terminal.type_keys("24x\x7f6810\r");
    eventually("the command", TEST_TIMEOUT, async || {
        fixture.path("copy").exists()
    })
    .await;
    assert!(!terminal.is_raw());
    let config = Kubeconfig::load(Some(&fixture.path("copy"))).unwrap();
    let target = config.target(None).unwrap();
    let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
        .await
        .unwrap();
    let answer = endpoint.send(&Request::get("/")).await.unwrap();
    assert_eq!(answer.body, "token-jane");
    std::fs::write(fixture.path("go"), "go\n").unwrap();
    terminal.shows("ended 0.").await;
    eventually("the end of the plugin", TEST_TIMEOUT, async || {
        fixture.plugin_is_gone() && fixture.agent.remaining_files().is_empty()
    })
    .await;
    let shown = terminal.shown();
    for typed in ["1111", "24", "68"] {
        assert!(!shown.contains(typed), "{shown}");
    }
}

#[tokio::test]
async fn a_replaced_token_causes_no_prompt_during_a_command() {
    let fixture = PromptFixture::new().await;
    let Some(token) = fixture.token() else { return };
    let terminal = Terminal::open(80, 24);
    let _shell = terminal.run_in_shell(&fixture.with_token(&token));
    terminal.shows("PIN of token \"jane\": ").await;
    terminal.becomes_raw().await;
    terminal.type_keys(&format!("{PIN}\r"));
    eventually("the command", TEST_TIMEOUT, async || {
        fixture.path("copy").exists()
    })
    .await;
    let config = Kubeconfig::load(Some(&fixture.path("copy"))).unwrap();
    let target = config.target(None).unwrap();
    let endpoint = Endpoint::prepare(&target, Some(TEST_TIMEOUT))
        .await
        .unwrap();
    let answers = async |expected: &str| {
        eventually(expected, TEST_TIMEOUT, async || {
            let answer = endpoint.send(&Request::get("/")).await;
            answer.is_ok_and(|answer| String::from_utf8_lossy(&answer.body).contains(expected))
        })
        .await;
    };
    answers("token-jane").await;
    // The same label, another serial number, and another PIN.
    token.replace("jane", "13579");
    fixture.server.kill_connections().await;
    answers("the plugin does not prompt while a command uses the terminal; insert the token").await;
    assert!(!terminal.is_raw());
    token.insert_again();
    answers("token-jane").await;
    std::fs::write(fixture.path("go"), "go\n").unwrap();
    terminal.shows("ended 0.").await;
    let shown = terminal.shown();
    assert_eq!(shown.matches("PIN").count(), 1, "{shown}");
}

#[tokio::test]
async fn a_cancelled_prompt_restores_the_terminal() {
    let fixture = PromptFixture::new().await;
    let Some(token) = fixture.token() else { return };
    let terminal = Terminal::open(80, 24);
    let _shell = terminal.run_in_shell(&fixture.with_token(&token));
    terminal.becomes_raw().await;
    terminal.type_keys("\x03");
    terminal.shows("ended 125.").await;
    assert!(
        terminal.shown().contains("failed with exit status: 1"),
        "{}",
        terminal.shown()
    );
    assert!(!terminal.is_raw());
    assert!(
        fixture.agent.remaining_files().is_empty(),
        "{:?}",
        fixture.agent.remaining_files()
    );
}

#[tokio::test]
async fn a_prompting_plugin_ends_with_a_killed_client() {
    let fixture = PromptFixture::new().await;
    let Some(token) = fixture.token() else { return };
    for signal in [Signal::KILL, Signal::TERM] {
        let terminal = Terminal::open(80, 24);
        let _shell = terminal.run_in_shell(&fixture.with_token(&token));
        terminal.shows("PIN of token \"jane\": ").await;
        terminal.becomes_raw().await;
        let client = parent_of(fixture.plugin());
        let watch = Stopwatch::start();
        kill_process(Pid::from_raw(client).unwrap(), signal).unwrap();
        let gone = async || fixture.plugin_is_gone() && fixture.agent.remaining_files().is_empty();
        watch
            .within(EXIT_TIMEOUT, "the end of the plugin", gone)
            .await;
        // The shell runs, and echoes.
        assert!(!terminal.is_raw(), "{signal:?}");
        terminal
            .shows(&format!("ended {}.", 128 + signal.as_raw()))
            .await;
    }
}

#[tokio::test]
async fn a_plugin_that_times_out_restores_the_terminal() {
    let fixture = PromptFixture::new().await;
    let terminal = Terminal::open(80, 24);
    let script = "stty -echo -icanon; exec sleep 300";
    let _shell = terminal.run_in_shell(&fixture.client("3s", script, &[], &[]));
    terminal.shows("ended 125.").await;
    assert!(
        terminal
            .shown()
            .contains("did not give a credential within 3 s"),
        "{}",
        terminal.shown()
    );
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn without_a_terminal_a_needed_prompt_is_reported() {
    let fixture = PromptFixture::new().await;
    let mut client = fixture.client("1m", "exit 1", &[], &[]);
    client.stdin(std::process::Stdio::null());
    let ran = tokio::task::spawn_blocking(move || client.output());
    let ran = ran.await.unwrap().unwrap();
    let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(125), "{printed}");
    let expected = "exec: sh (user \"u\"): exec plugin cannot support interactive mode: standard \
                    input is not a terminal";
    assert!(printed.contains(expected), "{printed}");
    assert!(!fixture.path("plugin").exists(), "it is not even started");
}

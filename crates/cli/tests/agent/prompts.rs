//! PIN prompts on a terminal, which is restored afterwards.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use skewbridge_client::{Endpoint, Kubeconfig, Request};
use skewbridge_testkit::{Stopwatch, Terminal, eventually};

use crate::agent_fixture::TEST_TIMEOUT;
use crate::prompt_fixture::{PIN, PromptFixture, parent_of};

/// Time for a plugin to exit after its client has exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

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

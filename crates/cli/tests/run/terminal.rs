//! `skewbridge run` on a terminal.

use std::process::Stdio;

use serde_json::json;
use skewbridge_testkit::{TEST_TIMEOUT, Terminal, eventually};

use crate::run_fixture::{RunFixture, is_gone};

#[tokio::test]
async fn a_shell_has_a_prompt_and_gets_the_keys_of_the_terminal() {
    let fixture = RunFixture::new().await;
    fixture.dir.write(".bashrc", "PS1='mine> '\n");
    let mut command = fixture.run(&fixture.plugin());
    command
        .arg("--shell")
        .env("SHELL", "/bin/bash")
        .env("HOME", fixture.dir.path())
        .env("TERM", "dumb");
    let terminal = Terminal::open(80, 24);
    let _shell = terminal.run_in_shell(&command);
    let mut seen = 0;
    terminal.shows_next(&mut seen, "(c) mine> ").await;
    // The output differs from the typed text, and is printed by the foreground process.
    terminal.type_keys("sh -c 'echo be\"\"gun; exec sleep 300'\r");
    terminal.shows_next(&mut seen, "begun").await;
    terminal.type_keys("\x03");
    terminal.shows_next(&mut seen, "(c) mine> ").await;
    // ^C was sent to the process in the shell, not to the plugin.
    let plugin = fixture.read("execs").trim().to_owned();
    assert!(!is_gone(&plugin));
    terminal.type_keys("test -r \"$KUBECONFIG\" && echo st''ill; exit 42\r");
    terminal.shows_next(&mut seen, "still").await;
    terminal.shows_next(&mut seen, "ended 42.").await;
    eventually("all files and processes gone", TEST_TIMEOUT, async || {
        fixture.remaining_files() == 0 && is_gone(&plugin)
    })
    .await;
}

#[tokio::test]
async fn plugin_messages_are_shown_while_it_prompts() {
    let fixture = RunFixture::new().await;
    let token = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
    let script = format!(
        "echo 'touch the key' >&2; while [ ! -e {} ]; do sleep 0.1; done; echo '{token}'",
        fixture.dir.path().join("touched").display()
    );
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", script],
    }});
    let printed = std::fs::File::create(fixture.dir.path().join("stderr")).unwrap();
    let mut command = fixture.script(&user, "exit 3");
    let run = command
        .stdout(Stdio::null())
        .stderr(printed)
        .spawn()
        .unwrap();
    eventually("the message", TEST_TIMEOUT, async || {
        fixture.read("stderr").contains("touch the key\n")
    })
    .await;
    fixture.dir.write("touched", "");
    let ended = tokio::task::spawn_blocking(move || run.wait_with_output());
    assert_eq!(ended.await.unwrap().unwrap().status.code(), Some(3));
    assert_eq!(fixture.read("stderr").matches("touch").count(), 1);
}

//! What somebody at a terminal notices of it.

use std::process::Stdio;

use serde_json::json;
use skewbridge_testkit::{PATIENCE, Terminal, eventually};

use crate::stage::{Stage, is_gone};

#[tokio::test]
async fn a_shell_has_its_own_prompt_the_terminals_keys_and_the_last_word() {
    let stage = Stage::new().await;
    stage.dir.write(".bashrc", "PS1='mine> '\n");
    let mut command = stage.run(&stage.plugin());
    command
        .arg("--shell")
        .env("SHELL", "/bin/bash")
        .env("HOME", stage.dir.path())
        .env("TERM", "dumb");
    let terminal = Terminal::open(80, 24);
    let _shell = terminal.run_in_shell(&command);
    let mut seen = 0;
    terminal.shows_next(&mut seen, "(c) mine> ").await;
    // Typed otherwise than it is shown, and shown by what is in the foreground then.
    terminal.type_keys("sh -c 'echo be\"\"gun; exec sleep 300'\r");
    terminal.shows_next(&mut seen, "begun").await;
    terminal.type_keys("\x03");
    terminal.shows_next(&mut seen, "(c) mine> ").await;
    // ^C was for what ran in the shell, and not for the plugin.
    let plugin = stage.read("execs").trim().to_owned();
    assert!(!is_gone(&plugin));
    terminal.type_keys("test -r \"$KUBECONFIG\" && echo st''ill; exit 42\r");
    terminal.shows_next(&mut seen, "still").await;
    terminal.shows_next(&mut seen, "ended 42.").await;
    eventually("the end of all that was made", PATIENCE, async || {
        stage.left() == 0 && is_gone(&plugin)
    })
    .await;
}

#[tokio::test]
async fn what_a_plugin_says_is_shown_while_it_waits_for_the_user() {
    let stage = Stage::new().await;
    let token = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
    let script = format!(
        "echo 'touch the key' >&2; while [ ! -e {} ]; do sleep 0.1; done; echo '{token}'",
        stage.dir.path().join("touched").display()
    );
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", script],
    }});
    let said = std::fs::File::create(stage.dir.path().join("said")).unwrap();
    let mut command = stage.script(&user, "exit 3");
    let run = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
    eventually("what it says", PATIENCE, async || {
        stage.read("said").contains("touch the key\n")
    })
    .await;
    stage.dir.write("touched", "");
    let ended = tokio::task::spawn_blocking(move || run.wait_with_output());
    assert_eq!(ended.await.unwrap().unwrap().status.code(), Some(3));
    assert_eq!(stage.read("said").matches("touch").count(), 1);
}

//! A shell in a container, at a terminal.

use skewbridge_e2e::{ControlPlane, Node, ServerSpec, Tmux, User, Via, is_since, newest, versions};

#[tokio::test]
async fn an_interactive_shell_works_and_leaves_a_sane_terminal() {
    let versions = versions();
    run_shell(newest(&versions), Via::Server).await;
    // A server without WebSockets, whose bridge supports them.
    let old = versions.iter().find(|version| !is_since(version, 30));
    if let Some(old) = old {
        run_shell(old, Via::Bridge).await;
    }
}

async fn run_shell(version: &str, via: Via) {
    println!("{version} {via:?}");
    let mut plane = ControlPlane::start(&[ServerSpec::of(version)]).await;
    let _node = plane.start_node().await;
    let mut command = plane.skewbridge_command(0, via, User::Admin);
    command.args([
        "exec",
        "-it",
        "-n",
        Node::NAMESPACE,
        Node::POD,
        "--",
        "bash",
        "--norc",
    ]);
    let tmux = Tmux::start(&format!("{via:?}"), &command).await;
    // The quotes distinguish the typed text from the output.
    tmux.types(&format!("{}\r", tmux.line)).await;
    tmux.types("PS1='remote''> '\r").await;
    tmux.wait_until_shown("remote> ").await;
    tmux.types("echo $((6*7))\r").await;
    tmux.wait_until_shown("42").await;
    // The previous line, by the arrow key.
    tmux.run(&["send-keys", "Up", "Home"]).await;
    tmux.types("echo ag''ain;").await;
    tmux.run(&["send-keys", "Enter"]).await;
    tmux.wait_until_shown("again").await;
    tmux.run(&["resize-window", "-x", "100", "-y", "30"]).await;
    let new_size = r#"until [ "$(stty size)" = "30 100" ]; do sleep 0.1; done; echo re''sized"#;
    tmux.types(&format!("{new_size}\r")).await;
    tmux.wait_until_shown("resized").await;
    // ctrl-c interrupts the program and not the shell. The program that prints this owns
    // the terminal already: bash hands the terminal over only after it has started a
    // program, and would keep the signal until then.
    tmux.types("sh -c 'echo sle\"\"eping; exec sleep 1000'\r")
        .await;
    tmux.wait_until_shown("sleeping").await;
    tmux.run(&["send-keys", "C-c"]).await;
    tmux.types("echo still $((1+1))\r").await;
    tmux.wait_until_shown("still 2").await;
    tmux.run(&["send-keys", "C-d"]).await;
    tmux.wait_until_shown("ended with 0").await;
    tmux.types("clear; echo sane $(stty -a | tr ' ' '\\n' | grep -cx -e icanon -e echo -e isig)\r")
        .await;
    tmux.wait_until_shown("sane 3").await;
    // A second session, during which the server is killed.
    let [before, after] = ["before", "after"].map(|name| plane.file(name, ""));
    tmux.types(&format!("clear; stty -a > {before}\r")).await;
    tmux.wait_until_hidden("sane 3").await;
    tmux.types(&format!("{}\r", tmux.line)).await;
    tmux.types("PS1='far''> '\r").await;
    tmux.wait_until_shown("far> ").await;
    let server = plane.servers[0].process.as_mut().expect("a server");
    server.signal("KILL");
    tmux.wait_until_shown("ended with 1").await;
    let compare = format!("stty -a > {after}; cmp {before} {after} && echo as be''fore");
    tmux.types(&format!("clear; {compare}\r")).await;
    tmux.wait_until_shown("as before").await;
    assert!(std::fs::read_to_string(before).unwrap().contains("icanon"));
}

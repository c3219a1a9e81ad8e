//! A shell in a container, at a terminal.

use skewbridge_e2e::{Node, Plane, Server, User, Via, is_since, newest, versions};
use skewbridge_testkit::{PATIENCE, eventually};
use tokio::process::Command;

use super::BOUND;

/// A shell at a terminal, as somebody in front of it sees it.
struct Tmux {
    socket: String,
    /// What starts the remote shell.
    line: String,
}

impl Tmux {
    /// Each has a name of its own: one that ends may be there when the next begins.
    async fn start(name: &str, command: &Command) -> Self {
        let socket = format!("skewbridge-{name}-{}", std::process::id());
        let command = command.as_std();
        let mut line = command.get_program().display().to_string();
        for word in command.get_args() {
            line = format!("{line} {}", word.display());
        }
        let line = format!("{line}; echo ended with $?");
        let tmux = Self { socket, line };
        let mut words = vec!["new-session", "-d", "-x", "80", "-y", "24"];
        let mut variables = Vec::new();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                variables.push(format!("{}={}", name.display(), value.display()));
            }
        }
        for variable in &variables {
            words.extend(["-e", variable]);
        }
        // The shell in front shows what is left of the terminal afterwards.
        words.extend(["sh"]);
        tmux.run(&words).await;
        tmux.types("PS1='local''> '\r").await;
        tmux.shows("local> ").await;
        tmux
    }

    async fn run(&self, words: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.socket, "-f", "/dev/null"])
            .args(words)
            .output()
            .await
            .expect("tmux starts");
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn types(&self, text: &str) {
        self.run(&["send-keys", "-l", text]).await;
    }

    async fn shows(&self, text: &str) {
        let last = std::sync::Mutex::new(String::new());
        let looking = eventually(text, BOUND.max(PATIENCE), async || {
            let screen = self.run(&["capture-pane", "-p", "-J"]).await;
            let found = screen.lines().any(|line| line.contains(text));
            *last.lock().unwrap() = screen;
            found
        });
        looking.await;
    }
}

impl Tmux {
    async fn hides(&self, text: &str) {
        eventually(&format!("no {text}"), BOUND, async || {
            !self.run(&["capture-pane", "-p", "-J"]).await.contains(text)
        })
        .await;
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = std::process::Command::new("tmux")
            .args(["-L", &self.socket, "kill-server"])
            .output();
    }
}

#[tokio::test]
async fn an_interactive_shell_works_and_leaves_a_sane_terminal() {
    let versions = versions();
    by_way_of(newest(&versions), Via::Server).await;
    // A server without WebSockets, whose bridge has them.
    let old = versions.iter().find(|version| !is_since(version, 30));
    if let Some(old) = old {
        by_way_of(old, Via::Bridge).await;
    }
}

async fn by_way_of(version: &str, via: Via) {
    println!("{version} {via:?}");
    let mut plane = Plane::start(&[Server::of(version)]).await;
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
    // Quotes tell what is typed from what is shown.
    tmux.types(&format!("{}\r", tmux.line)).await;
    tmux.types("PS1='remote''> '\r").await;
    tmux.shows("remote> ").await;
    tmux.types("echo $((6*7))\r").await;
    tmux.shows("42").await;
    // The line before, by the arrow key.
    tmux.run(&["send-keys", "Up", "Home"]).await;
    tmux.types("echo ag''ain;").await;
    tmux.run(&["send-keys", "Enter"]).await;
    tmux.shows("again").await;
    tmux.run(&["resize-window", "-x", "100", "-y", "30"]).await;
    let new_size = r#"until [ "$(stty size)" = "30 100" ]; do sleep 0.1; done; echo re''sized"#;
    tmux.types(&format!("{new_size}\r")).await;
    tmux.shows("resized").await;
    // ctrl-c ends what runs, and not the shell.
    tmux.types("echo sle''eping; sleep 1000\r").await;
    tmux.shows("sleeping").await;
    tmux.run(&["send-keys", "C-c"]).await;
    tmux.types("echo still $((1+1))\r").await;
    tmux.shows("still 2").await;
    tmux.run(&["send-keys", "C-d"]).await;
    tmux.shows("ended with 0").await;
    tmux.types("clear; echo sane $(stty -a | tr ' ' '\\n' | grep -cx -e icanon -e echo -e isig)\r")
        .await;
    tmux.shows("sane 3").await;
    // Once more, and the server is killed in the middle.
    let [before, after] = ["before", "after"].map(|name| plane.file(name, ""));
    tmux.types(&format!("clear; stty -a > {before}\r")).await;
    tmux.hides("sane 3").await;
    tmux.types(&format!("{}\r", tmux.line)).await;
    tmux.types("PS1='far''> '\r").await;
    tmux.shows("far> ").await;
    let server = plane.servers[0].process.as_mut().expect("a server");
    server.signal("KILL");
    tmux.shows("ended with 1").await;
    let compare = format!("stty -a > {after}; cmp {before} {after} && echo as be''fore");
    tmux.types(&format!("clear; {compare}\r")).await;
    tmux.shows("as before").await;
    assert!(std::fs::read_to_string(before).unwrap().contains("icanon"));
}

//! A terminal, as somebody in front of it sees it.

use std::time::Duration;

use skewbridge_testkit::eventually;
use tokio::process::Command;

/// For what takes a second or two on an idle machine.
const BOUND: Duration = Duration::from_mins(1);

/// A shell at a terminal.
pub struct Tmux {
    socket: String,
    /// What starts the command; how it has ended is told then.
    pub line: String,
}

impl Tmux {
    /// Begins a shell that has the environment of this command. Each has a name of its own:
    /// one that ends may be there when the next begins.
    pub async fn start(name: &str, command: &Command) -> Self {
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

    /// A command of tmux's own.
    pub async fn run(&self, words: &[&str]) -> String {
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

    /// Types.
    pub async fn types(&self, text: &str) {
        self.run(&["send-keys", "-l", text]).await;
    }

    /// Waits until this can be read.
    pub async fn shows(&self, text: &str) {
        eventually(text, BOUND, async || self.screen().await.contains(text)).await;
    }

    /// Waits until this can be read no more.
    pub async fn hides(&self, text: &str) {
        let what = format!("no {text}");
        eventually(&what, BOUND, async || !self.screen().await.contains(text)).await;
    }

    async fn screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-J"]).await
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let screen = std::process::Command::new("tmux")
                .args(["-L", &self.socket, "capture-pane", "-p", "-J"])
                .output();
            let screen = screen.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
            println!(
                "--- the screen of {} ---\n{}",
                self.socket,
                screen.unwrap_or_default()
            );
        }
        let _ = std::process::Command::new("tmux")
            .args(["-L", &self.socket, "kill-server"])
            .output();
    }
}

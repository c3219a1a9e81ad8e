//! A terminal with a screen whose text can be read.

use std::time::Duration;

use skewbridge_testkit::eventually;
use tokio::process::Command;

/// For an operation that takes a second or two on an idle machine.
const SCREEN_TIMEOUT: Duration = Duration::from_mins(1);

/// A shell in a terminal.
pub struct Tmux {
    socket: String,
    /// The command line that runs the command and prints its exit code.
    pub line: String,
}

impl Tmux {
    /// Starts a shell with the environment of this command. Each needs its own name: the
    /// previous one may still be exiting.
    pub async fn start(name: &str, command: &Command) -> Self {
        let socket = format!("skewbridge-{name}-{}", std::process::id());
        let command = command.as_std();
        let mut line = command.get_program().display().to_string();
        for word in command.get_args() {
            line = format!("{line} {}", word.display());
        }
        let line = format!("{line}; echo ended with $?");
        let tmux = Self { socket, line };
        let mut arguments = vec!["new-session", "-d", "-x", "80", "-y", "24"];
        let mut variables = Vec::new();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                variables.push(format!("{}={}", name.display(), value.display()));
            }
        }
        for variable in &variables {
            arguments.extend(["-e", variable]);
        }
        // The shell around the command shows the state of the terminal afterwards.
        arguments.extend(["sh"]);
        tmux.run(&arguments).await;
        tmux.types("PS1='local''> '\r").await;
        tmux.wait_until_shown("local> ").await;
        tmux
    }

    /// Runs a tmux command.
    pub async fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.socket, "-f", "/dev/null"])
            .args(arguments)
            .output()
            .await
            .expect("tmux starts");
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types text.
    pub async fn types(&self, text: &str) {
        self.run(&["send-keys", "-l", text]).await;
    }

    /// Waits until the screen contains a text.
    pub async fn wait_until_shown(&self, text: &str) {
        eventually(text, SCREEN_TIMEOUT, async || {
            self.screen().await.contains(text)
        })
        .await;
    }

    /// Waits until the screen no longer contains a text.
    pub async fn wait_until_hidden(&self, text: &str) {
        let what = format!("no {text}");
        eventually(&what, SCREEN_TIMEOUT, async || {
            !self.screen().await.contains(text)
        })
        .await;
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

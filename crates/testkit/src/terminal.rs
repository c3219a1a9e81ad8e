//! A pseudoterminal, driven as by a user.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tokio::process::{Child, Command};

use crate::{TEST_TIMEOUT, eventually};

/// A pseudoterminal, seen from the user's side.
#[derive(Debug)]
pub struct Terminal {
    pty: File,
    /// The program's side, kept open to inspect its modes.
    tty: OwnedFd,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    /// Opens a terminal of this size.
    pub fn open(width: u16, height: u16) -> Self {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap();
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let tty = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let pty = File::from(pty);
        let (mut reader, seen) = (pty.try_clone().unwrap(), shown.clone());
        // The thread ends with the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                seen.lock().unwrap().push_str(&text);
            }
        });
        let terminal = Self { pty, tty, shown };
        terminal.resize(width, height);
        terminal
    }

    /// Changes the size.
    pub fn resize(&self, width: u16, height: u16) {
        let size = Winsize {
            ws_col: width,
            ws_row: height,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(self.pty.as_fd(), size).unwrap();
    }

    /// Runs a command with it as standard input, output and error, but not as controlling
    /// terminal.
    pub fn run(&self, mut command: Command) -> Child {
        command
            .stdin(self.end())
            .stdout(self.end())
            .stderr(self.end())
            .kill_on_drop(true);
        command.spawn().unwrap()
    }

    /// Runs a command as a shell at this terminal would, in its own session. The shell
    /// prints `ended` and the exit code, and keeps running, because the terminal is closed
    /// with its shell.
    pub fn run_in_shell(&self, command: &std::process::Command) -> Child {
        let script = "\"$@\"; echo \"ended $?.\"; read line";
        // The test runner may ignore signals, as shells do for background jobs, and
        // children inherit that.
        let mut shell = Command::new("env");
        shell
            .args(["--default-signal=HUP,INT,QUIT,TERM", "setsid", "--ctty"])
            .args(["sh", "-c", script, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            shell.current_dir(directory);
        }
        self.run(shell)
    }

    /// The program's side, for standard input, output or error.
    pub fn end(&self) -> Stdio {
        Stdio::from(self.tty.try_clone().unwrap())
    }

    /// Types keys.
    pub fn type_keys(&self, keys: &str) {
        (&self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// All output so far.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// Waits until the output contains a text.
    pub async fn shows(&self, text: &str) {
        let what = format!("{text:?} on the terminal");
        let shown = self.shown.clone();
        eventually(&what, TEST_TIMEOUT, async || {
            shown.lock().unwrap().contains(text)
        })
        .await;
    }

    /// Waits until the output after `seen` contains a text, and advances `seen` past it.
    pub async fn shows_next(&self, seen: &mut usize, text: &str) {
        let what = format!("{text:?} next on the terminal");
        let mut found = None;
        eventually(&what, TEST_TIMEOUT, async || {
            found = self.shown()[*seen..].find(text);
            found.is_some()
        })
        .await;
        *seen += found.unwrap() + text.len();
    }

    /// Whether the terminal echoes and passes input on by line.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(self.tty.as_fd()).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Whether the terminal passes keys on immediately and without echo.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(self.tty.as_fd()).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    /// Waits until the terminal is in raw mode.
    pub async fn becomes_raw(&self) {
        eventually("raw mode", TEST_TIMEOUT, async || self.is_raw()).await;
    }
}

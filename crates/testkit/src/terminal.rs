//! A terminal with somebody in front of it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tokio::process::{Child, Command};

use crate::{PATIENCE, eventually};

/// A terminal, as seen from the person in front of it.
#[derive(Debug)]
pub struct Terminal {
    here: File,
    /// What the program has: kept, so that its modes can be looked at.
    there: OwnedFd,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    /// One of this size.
    pub fn open(width: u16, height: u16) -> Self {
        let here = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&here).unwrap();
        unlockpt(&here).unwrap();
        let name = ptsname(&here, Vec::new()).unwrap();
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let there = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let here = File::from(here);
        let (mut reader, seen) = (here.try_clone().unwrap(), shown.clone());
        // Ends with the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                seen.lock().unwrap().push_str(&text);
            }
        });
        let terminal = Self { here, there, shown };
        terminal.resize(width, height);
        terminal
    }

    /// Another size.
    pub fn resize(&self, width: u16, height: u16) {
        let size = Winsize {
            ws_col: width,
            ws_row: height,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(self.here.as_fd(), size).unwrap();
    }

    /// Runs a command with it as standard input, output and error, but not as the terminal
    /// of its session.
    pub fn run(&self, mut command: Command) -> Child {
        command
            .stdin(self.end())
            .stdout(self.end())
            .stderr(self.end())
            .kill_on_drop(true);
        command.spawn().unwrap()
    }

    /// Runs a command as a shell at this terminal would, in a session of its own. It shows
    /// `ended` and the exit code, and stays: with its shell a terminal is gone, too.
    pub fn run_in_shell(&self, command: &std::process::Command) -> Child {
        let script = "\"$@\"; echo \"ended $?.\"; read line";
        // Whoever runs the tests may ignore signals, as shells do for what they run in the
        // background, and that is passed on.
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

    /// Its other end, for a program's standard input, output or error.
    pub fn end(&self) -> Stdio {
        Stdio::from(self.there.try_clone().unwrap())
    }

    /// Types something.
    pub fn type_keys(&self, keys: &str) {
        (&self.here).write_all(keys.as_bytes()).unwrap();
    }

    /// All that it has shown so far.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// Waits until it shows something.
    pub async fn shows(&self, text: &str) {
        let what = format!("{text:?} on the terminal");
        let shown = self.shown.clone();
        eventually(&what, PATIENCE, async || {
            shown.lock().unwrap().contains(text)
        })
        .await;
    }

    /// Waits until it shows something behind what has been `seen`, which that belongs to then.
    pub async fn shows_next(&self, seen: &mut usize, text: &str) {
        let what = format!("{text:?} next on the terminal");
        let mut found = None;
        eventually(&what, PATIENCE, async || {
            found = self.shown()[*seen..].find(text);
            found.is_some()
        })
        .await;
        *seen += found.unwrap() + text.len();
    }

    /// Whether keys are shown, and passed on line by line.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(self.there.as_fd()).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Whether keys are passed on as they come, and not shown.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(self.there.as_fd()).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    /// Waits until they are.
    pub async fn becomes_raw(&self) {
        eventually("raw mode", PATIENCE, async || self.is_raw()).await;
    }
}

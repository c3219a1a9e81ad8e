//! The command: its environment, its signals and its exit code.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use skewbridge_exec_proxy::{IgnoredSignals, SignalStream};
use tokio::process::{Child, Command};
use tokio::signal::unix::SignalKind;

/// Exit codes of shells for a program that does not exist or cannot be executed.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// The result of the command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandExit {
    pub(super) code: u8,
    /// Why the command was not started.
    pub(super) problem: Option<String>,
}

impl CommandExit {
    /// A terminating signal arrived before the command was started.
    pub(super) fn by_signal(signal: Signal) -> Self {
        Self {
            code: code(ExitStatus::from_raw(signal.as_raw())),
            problem: None,
        }
    }
}

/// The environment of the command.
pub(super) fn environment(
    command: &mut Command,
    kubeconfig: &Path,
    context: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) {
    command
        .env("KUBECONFIG", kubeconfig)
        .env("SKEWBRIDGE_CONTEXT", context);
    let has_proxy = [
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ];
    if has_proxy.into_iter().any(|name| variable(name).is_some()) {
        // Go does not use a proxy for loopback; other clients need `NO_PROXY`.
        let list = variable("NO_PROXY").or_else(|| variable("no_proxy"));
        let list = with_loopback(list.as_deref());
        command.env("NO_PROXY", &list).env("no_proxy", list);
    }
}

fn with_loopback(list: Option<&OsStr>) -> OsString {
    match list.filter(|list| !list.is_empty()) {
        None => OsString::from("127.0.0.1"),
        Some(list) => {
            let mut list = list.to_owned();
            list.push(",127.0.0.1");
            list
        }
    }
}

/// Runs the command to its end, in the same process group and on the same terminal.
pub(super) async fn run(mut command: Command, mut signals: Signals) -> CommandExit {
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let (code, cause) = match error.kind() {
                ErrorKind::NotFound => (EXIT_NOT_FOUND, "command not found".to_owned()),
                _ => (EXIT_NOT_EXECUTABLE, error.to_string()),
            };
            return CommandExit {
                code,
                problem: Some(format!("{program}: {cause}")),
            };
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => return match status {
                Ok(status) => CommandExit { code: code(status), problem: None },
                Err(error) => CommandExit {
                    code: super::EXIT_FAILED,
                    problem: Some(format!("{program}: {error}")),
                },
            },
            signal = signals.next() => pass_on(&child, signal),
        }
    }
}

/// The exit code that shells report.
fn code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => i32::from(super::EXIT_FAILED),
    };
    u8::try_from(code).unwrap_or(super::EXIT_FAILED)
}

fn pass_on(child: &Child, signal: Signal) {
    // Keys of the terminal reach the command directly, so they are not forwarded: a second ^C
    // has a meaning of its own.
    let is_key = matches!(signal, Signal::INT | Signal::QUIT);
    if is_key && has_terminal() {
        return;
    }
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether this process, and so the command, is in the foreground of a terminal.
fn has_terminal() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| {
        rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp())
    })
}

/// Signals for the command. Those that were ignored at the start stay ignored in the command.
pub(super) struct Signals {
    interrupt: SignalStream,
    quit: SignalStream,
    terminate: SignalStream,
    hang_up: SignalStream,
    user1: SignalStream,
    user2: SignalStream,
}

impl Signals {
    /// From now on, signals are kept for the command and do not end this process.
    pub(super) fn listen() -> std::io::Result<Self> {
        let ignored = IgnoredSignals::current();
        let signal = |kind| ignored.listen(kind);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            () = self.interrupt.recv() => Signal::INT,
            () = self.quit.recv() => Signal::QUIT,
            () = self.terminate.recv() => Signal::TERM,
            () = self.hang_up.recv() => Signal::HUP,
            () = self.user1.recv() => Signal::USR1,
            () = self.user2.recv() => Signal::USR2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_command_or_of_its_signal() {
        let rows = [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (2, 130)];
        for (raw, expected) in rows {
            assert_eq!(code(ExitStatus::from_raw(raw)), expected);
        }
    }

    #[test]
    fn loopback_bypasses_proxies() {
        let environment = |pairs: &'static [(&str, &str)]| {
            let mut command = Command::new("true");
            super::environment(&mut command, Path::new("/x/config"), "c", |name| {
                let found = pairs.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            });
            let set = command.as_std().get_envs();
            let mut set: Vec<_> = set
                .map(|(name, value)| format!("{}={}", name.display(), value.unwrap().display()))
                .collect();
            set.sort();
            set.join(" ")
        };
        assert_eq!(
            environment(&[]),
            "KUBECONFIG=/x/config SKEWBRIDGE_CONTEXT=c"
        );
        let found = environment(&[("https_proxy", "http://p"), ("no_proxy", "a,b")]);
        assert!(found.contains("NO_PROXY=a,b,127.0.0.1"), "{found}");
        assert!(found.contains("no_proxy=a,b,127.0.0.1"), "{found}");
    }
}

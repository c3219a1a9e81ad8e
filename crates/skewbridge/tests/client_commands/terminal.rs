//! `exec` and `attach` at a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use skewbridge_testkit::{PATIENCE, eventually};
use tokio::process::Child;
use tokio::time::timeout;

use super::Cluster;

/// A terminal, as seen from the person in front of it.
pub(super) struct Terminal {
    here: File,
    /// What the program has: kept, so that its modes can be looked at.
    there: OwnedFd,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    pub(super) fn open(width: u16, height: u16) -> Self {
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

    fn resize(&self, width: u16, height: u16) {
        let size = Winsize {
            ws_col: width,
            ws_row: height,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(self.here.as_fd(), size).unwrap();
    }

    pub(super) fn run(&self, cluster: &Cluster, words: &[&str]) -> Child {
        let end = || self.there.try_clone().unwrap();
        let mut command = cluster.command(words);
        command.stdin(end()).stdout(end()).stderr(end());
        command.spawn().unwrap()
    }

    fn type_keys(&self, keys: &str) {
        (&self.here).write_all(keys.as_bytes()).unwrap();
    }

    pub(super) async fn shows(&self, text: &str) {
        let what = format!("{text:?} on the terminal");
        let shown = self.shown.clone();
        eventually(&what, PATIENCE, async || {
            shown.lock().unwrap().contains(text)
        })
        .await;
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(self.there.as_fd()).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    async fn becomes_raw(&self) {
        eventually("raw mode", PATIENCE, async || self.is_raw()).await;
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().unwrap().cast_signed()).unwrap()
}

async fn code(mut child: Child) -> Option<i32> {
    let status = timeout(PATIENCE, child.wait())
        .await
        .expect("an end in time");
    status.unwrap().code()
}

#[tokio::test]
async fn keys_go_through_and_the_terminal_is_as_before() {
    let cluster = Cluster::start().await;
    let terminal = Terminal::open(80, 24);
    assert!(!terminal.is_raw());
    let words = [
        "exec",
        "-it",
        "web",
        "--",
        "sh",
        "-c",
        "head -c 3 | od -An -tx1; exit 5",
    ];
    let child = terminal.run(&cluster, &words);
    terminal.becomes_raw().await;
    // ctrl-c, ctrl-z and the arrow key are for the command.
    terminal.type_keys("\x03\x1a\x1b");
    terminal.shows("03 1a 1b").await;
    assert_eq!(code(child).await, Some(5));
    terminal.shows("command terminated with exit code 5").await;
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn the_command_is_told_the_size_and_its_changes() {
    let cluster = Cluster::start().await;
    let terminal = Terminal::open(81, 25);
    let child = terminal.run(&cluster, &["exec", "-it", "web", "--", "@sizes"]);
    terminal.shows("81x25").await;
    terminal.resize(132, 50);
    // Without a session of its own, the kernel tells nobody.
    kill_process(pid(&child), Signal::WINCH).unwrap();
    terminal.shows("132x50").await;
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(code(child).await, Some(143));
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn every_end_restores_the_terminal() {
    let cluster = Cluster::start().await;
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT, Signal::INT] {
        let terminal = Terminal::open(80, 24);
        let child = terminal.run(&cluster, &["exec", "-it", "web", "--", "cat"]);
        terminal.becomes_raw().await;
        kill_process(pid(&child), signal).unwrap();
        assert_eq!(code(child).await, Some(128 + signal.as_raw()), "{signal:?}");
        assert!(!terminal.is_raw(), "{signal:?}");
    }
    let terminal = Terminal::open(80, 24);
    let child = terminal.run(&cluster, &["exec", "-it", "web", "--", "cat"]);
    terminal.becomes_raw().await;
    terminal.type_keys("x");
    terminal.shows("x").await;
    // As when the server is killed.
    cluster.pods.cut_all();
    assert_eq!(code(child).await, Some(1));
    terminal
        .shows("error: lost connection to the container")
        .await;
    assert!(!terminal.is_raw());
}

#[tokio::test]
async fn a_process_can_be_left_alone() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/web",
        r#"{"metadata":{"name":"web"},"spec":{"restartPolicy":"Always","containers":[{"name":"app","tty":true,"stdin":true}]},
        "status":{"phase":"Running","containerStatuses":[{"name":"app","state":{"running":{}}}]}}"#,
    );
    let terminal = Terminal::open(80, 24);
    let child = terminal.run(&cluster, &["attach", "-it", "web"]);
    terminal
        .shows("If you don't see a command prompt, try pressing enter.")
        .await;
    terminal.becomes_raw().await;
    terminal.type_keys("hello\n");
    terminal.shows("hello").await;
    terminal.type_keys("\x10\x11");
    assert_eq!(code(child).await, Some(0));
    terminal
        .shows("Detached; resume using 'skewbridge attach web -c app -i -t' command")
        .await;
    assert!(!terminal.is_raw());
}

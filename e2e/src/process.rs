//! A program that runs during a test and never outlives it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The length of the log excerpt that is printed when a test fails.
const MAX_TAIL_BYTES: usize = 8 * 1024;

/// A running program. It is killed when this is dropped, and by the kernel when the thread
/// that started it has exited.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with its output in `directory/NAME.log`, with its own host name:
    /// two kube-apiservers with one host name would share an identity.
    pub(crate) fn start(
        name: &str,
        host: &str,
        program: &Path,
        arguments: &[String],
        directory: &Path,
    ) -> Self {
        let log = directory.join(format!("{name}.log"));
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--uts", "sh", "-c"])
            .arg(r#"hostname "$0" && exec "$@""#)
            .arg(host)
            .arg(program)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log file"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self {
            name: name.to_owned(),
            child,
            log,
        }
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program has not exited.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends the program a signal by name.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name}");
    }

    /// Waits until the program has exited.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("the exit status of a child")
    }

    /// Its whole log.
    pub fn log(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let from = text.len().saturating_sub(MAX_TAIL_BYTES);
        String::from_utf8_lossy(&text[from..]).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- the end of {}'s log ---\n{}",
                self.name,
                self.log_tail()
            );
        }
    }
}

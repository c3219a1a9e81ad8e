//! A program that runs beside a test and ends with it, whatever happens.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How much of a log is shown when a test fails.
const TAIL: usize = 8 * 1024;

/// A running program. It is killed when this is dropped, and by the kernel when
/// the thread that started it is gone.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with its output in `directory/NAME.log`, under a host
    /// name of its own: two kube-apiservers with one host name would share an
    /// identity.
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended by itself.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name}");
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("the exit status of a child")
    }

    /// All it has said.
    pub fn log(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The end of what it has said.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let from = text.len().saturating_sub(TAIL);
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

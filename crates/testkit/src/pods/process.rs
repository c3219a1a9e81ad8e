//! What runs in a container.

use std::process::Stdio;

use skewbridge_remotecommand::{Channel, ExitCode, Failure, Options, Outcome, ResizeDecoder};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::process::{Child, Command};

/// As much as a pipe holds.
const PIPE: usize = 64 * 1024;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A process, or something like it.
pub(super) struct Process {
    pub(super) stdin: Option<Writer>,
    pub(super) stdout: Reader,
    pub(super) stderr: Reader,
    end: End,
    sizes: ResizeDecoder,
    shows_sizes: Option<DuplexStream>,
}

enum End {
    Child(Box<Child>),
    Outcome(Outcome),
}

impl Process {
    /// A process of this machine; `@sizes` writes the sizes of its terminal, and `@fail`
    /// cannot be run.
    pub(super) fn start(words: &[String], options: Options) -> Self {
        let nothing = || -> Reader { Box::new(tokio::io::empty()) };
        let mut process = Self {
            stdin: None,
            stdout: nothing(),
            stderr: nothing(),
            end: End::Outcome(Outcome::Success),
            sizes: ResizeDecoder::default(),
            shows_sizes: None,
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["@fail", message] => {
                process.end = End::Outcome(Outcome::Failed(Failure::internal(message)));
            }
            ["@sizes"] => {
                let (here, there) = duplex(PIPE);
                process.shows_sizes = Some(here);
                process.stdout = Box::new(there);
                process.stdin = Some(Box::new(tokio::io::sink()));
            }
            // What an attachment finds: at a terminal, it ends with this word.
            [] if options.tty() => process.run("sed", &["-u", "/^bye/q"], options),
            [] => process.run("cat", &[], options),
            [program, arguments @ ..] => process.run(program, arguments, options),
        }
        process
    }

    fn run(&mut self, program: &str, arguments: &[&str], options: Options) {
        let pipe = |channel| {
            if options.has(channel) {
                Stdio::piped()
            } else {
                Stdio::null()
            }
        };
        let child = Command::new(program)
            .args(arguments)
            .stdin(pipe(Channel::Stdin))
            .stdout(pipe(Channel::Stdout))
            .stderr(pipe(Channel::Stderr))
            .kill_on_drop(true)
            .spawn();
        match child {
            Ok(mut child) => {
                self.stdin = child.stdin.take().map(|it| Box::new(it) as Writer);
                if let Some(stdout) = child.stdout.take() {
                    self.stdout = Box::new(stdout);
                }
                if let Some(stderr) = child.stderr.take() {
                    self.stderr = Box::new(stderr);
                }
                self.end = End::Child(Box::new(child));
            }
            Err(error) => {
                let message = format!("exec: {program:?}: {error}");
                self.end = End::Outcome(Outcome::Failed(Failure::internal(message)));
            }
        }
    }

    /// Its terminal has been resized.
    pub(super) async fn resize(&mut self, bytes: &[u8]) {
        let size = self.sizes.push(bytes).unwrap();
        if let (Some(size), Some(shown)) = (size, &mut self.shows_sizes) {
            let line = format!("{}x{}\n", size.width, size.height);
            shown.write_all(line.as_bytes()).await.unwrap();
        }
    }

    /// Nothing follows on stdin.
    pub(super) fn end_of_input(&mut self) {
        self.stdin = None;
        self.shows_sizes = None;
    }

    /// Waits for its end.
    pub(super) async fn wait(&mut self) -> Outcome {
        match &mut self.end {
            End::Outcome(outcome) => outcome.clone(),
            End::Child(child) => {
                let code = child.wait().await.unwrap().code().unwrap_or(137);
                let code = u8::try_from(code).unwrap_or(255);
                ExitCode::new(code).map_or(Outcome::Success, Outcome::Exited)
            }
        }
    }
}

//! The process in a container.

use std::process::Stdio;

use skewbridge_remotecommand::{Channel, ExitCode, Failure, Options, Outcome, ResizeDecoder};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::process::{Child, Command};

/// The capacity of a pipe.
const PIPE_BYTES: usize = 64 * 1024;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A local process, or a built-in replacement.
pub(super) struct Process {
    pub(super) stdin: Option<Writer>,
    pub(super) stdout: Reader,
    pub(super) stderr: Reader,
    exit: Exit,
    sizes: ResizeDecoder,
    size_output: Option<DuplexStream>,
}

enum Exit {
    Child(Box<Child>),
    Outcome(Outcome),
}

impl Process {
    /// Starts a local process; `@sizes` prints the sizes of its terminal, and `@fail`
    /// cannot be started.
    pub(super) fn start(command: &[String], options: Options) -> Self {
        let empty = || -> Reader { Box::new(tokio::io::empty()) };
        let mut process = Self {
            stdin: None,
            stdout: empty(),
            stderr: empty(),
            exit: Exit::Outcome(Outcome::Success),
            sizes: ResizeDecoder::default(),
            size_output: None,
        };
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        match command.as_slice() {
            ["@fail", message] => {
                process.exit = Exit::Outcome(Outcome::Failed(Failure::internal(message)));
            }
            ["@sizes"] => {
                let (writer, reader) = duplex(PIPE_BYTES);
                process.size_output = Some(writer);
                process.stdout = Box::new(reader);
                process.stdin = Some(Box::new(tokio::io::sink()));
            }
            // The process that `attach` connects to; at a terminal it ends on this input.
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
                self.exit = Exit::Child(Box::new(child));
            }
            Err(error) => {
                let message = format!("exec: {program:?}: {error}");
                self.exit = Exit::Outcome(Outcome::Failed(Failure::internal(message)));
            }
        }
    }

    /// Applies a terminal resize.
    pub(super) async fn resize(&mut self, bytes: &[u8]) {
        let size = self.sizes.push(bytes).unwrap();
        if let (Some(size), Some(output)) = (size, &mut self.size_output) {
            let line = format!("{}x{}\n", size.width, size.height);
            output.write_all(line.as_bytes()).await.unwrap();
        }
    }

    /// Closes stdin.
    pub(super) fn end_of_input(&mut self) {
        self.stdin = None;
        self.size_output = None;
    }

    /// Waits for the process to exit.
    pub(super) async fn wait(&mut self) -> Outcome {
        match &mut self.exit {
            Exit::Outcome(outcome) => outcome.clone(),
            Exit::Child(child) => {
                let code = child.wait().await.unwrap().code().unwrap_or(137);
                let code = u8::try_from(code).unwrap_or(255);
                ExitCode::new(code).map_or(Outcome::Success, Outcome::Exited)
            }
        }
    }
}

//! kube-apiserver, the node or the client is killed at some point of a command: the others
//! detect it soon, and none of them reports success.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skewbridge_e2e::{ControlPlane, Node, ServerSpec, is_since, oldest, versions};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::port_forward::{PortForward, echo_server, echoes};
use crate::streaming::{StreamProtocol, StreamTarget, kubectl_version};

/// How long it may take to detect that the other end is lost.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// The size of a command's full output.
const OUTPUT_BYTES: u64 = 1 << 30;

/// How much of the output, or of an input, is transferred before the kill.
const TRANSFERRED_BEFORE_KILL_BYTES: u64 = 32 << 20;

#[tokio::test]
async fn a_kill_of_either_end_is_detected_by_the_other() {
    let Some(newest) = kubectl_version() else {
        return;
    };
    let versions = versions();
    let oldest = oldest(&versions);
    let translated = async {
        let server = ServerSpec::of(oldest).bridge_flag("--translate-streams=always");
        let mut plane = ControlPlane::start(&[server]).await;
        check_protocol(&mut plane, StreamProtocol::WebSocket).await;
    };
    let inverse = async {
        assert!(is_since(&newest, 31));
        let server = ServerSpec::of(&newest).bridge_flag("--upstream-streams=websocket");
        let mut plane = ControlPlane::start(&[server]).await;
        check_protocol(&mut plane, StreamProtocol::Spdy).await;
    };
    translated.await;
    inverse.await;
}

#[tokio::test]
async fn a_kill_is_detected_by_copy_attach_and_forward() {
    if kubectl_version().is_none() {
        return;
    }
    let versions = versions();
    let server = ServerSpec::of(oldest(&versions)).bridge_flag("--translate-streams=always");
    let mut plane = ControlPlane::start(&[server]).await;
    let mut node = plane.start_node().await;
    for killed in ["node", "server"] {
        let target = StreamTarget::bridged(&plane, 0, StreamProtocol::WebSocket);
        let others = OtherStreams::start(&target, &node).await;
        if killed == "node" {
            node.process.signal("KILL");
            node.process.wait();
            others.assert_failure(killed).await;
            plane.restart_node(&mut node).await;
        } else {
            plane.stop_server(0, "KILL");
            others.assert_failure(killed).await;
        }
    }
}

/// Other kinds of streams, in the middle of a transfer.
struct OtherStreams {
    copy: Child,
    attach: Child,
    forward: PortForward,
    connection: TcpStream,
    /// Kept until the end of the test: the directory of the copies, and the echo server of the
    /// forward.
    _targets: (ScratchDir, JoinSet<()>),
}

impl OtherStreams {
    async fn start(target: &StreamTarget<'_>, node: &Node) -> Self {
        let directory = ScratchDir::new();

        let from = directory.path().join("endless");
        let remote_file = node.directory.join("endless");
        let spawn = |words: &[&str]| {
            let mut command = target.command(words);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.kill_on_drop(true).spawn().unwrap()
        };
        let endless = fs::File::create(&from).unwrap();
        // More than is copied before the kill, and nothing on the disk here.
        endless.set_len(1 << 33).unwrap();
        let remote = format!("{}:{}", Node::POD, remote_file.display());
        let copy = spawn(&["cp", &from.display().to_string(), &remote]);
        let mut attach = spawn(&["attach", "-i", Node::POD]);
        let stdin = attach.stdin.as_mut().unwrap();
        stdin.write_all(b"a line\n").await.unwrap();
        let mut line = [0; 7];
        let stdout = attach.stdout.as_mut().unwrap();
        timeout(TEST_TIMEOUT, stdout.read_exact(&mut line))
            .await
            .expect("an answer in time")
            .unwrap();
        let (echo_address, echo_server) = echo_server().await;
        let mut forward = PortForward::start(target, &[echo_address.port()]).await;
        let mut connection = forward.connect(0).await;
        echoes(&mut connection, b"there and back").await;
        eventually("a part of the file is copied", TEST_TIMEOUT, async || {
            fs::metadata(&remote_file).is_ok_and(|it| it.len() > 0)
        })
        .await;
        Self {
            copy,
            attach,
            forward,
            connection,
            _targets: (directory, echo_server),
        }
    }

    async fn assert_failure(mut self, killed: &str) {
        for (what, child) in [("cp", &mut self.copy), ("attach", &mut self.attach)] {
            let status = timeout(DETECTION_TIMEOUT, child.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("{killed} killed, {what}: not detected"));
            let code = status.unwrap().code();
            assert!(code.is_some_and(|it| it != 0), "{killed} killed, {what}");
        }
        let mut rest = Vec::new();
        let end = timeout(DETECTION_TIMEOUT, self.connection.read_to_end(&mut rest)).await;
        let _ended_or_reset = end.unwrap_or_else(|_| panic!("{killed} killed, port: not detected"));
        assert!(rest.is_empty(), "{killed} killed: {rest:?}");
        drop(self.forward);
    }
}

async fn check_protocol(plane: &mut ControlPlane, protocol: StreamProtocol) {
    let mut node = plane.start_node().await;
    let target = StreamTarget::bridged(plane, 0, protocol);

    let commands = Commands::start(&target, &node, "client").await;
    for command in commands.all {
        command.kill_client().await;
    }

    let mut commands = Commands::start(&target, &node, "node").await;
    let direct = StreamTarget::direct(plane, 0, StreamProtocol::WebSocket);
    let direct = match protocol {
        StreamProtocol::WebSocket => None,
        StreamProtocol::Spdy => Some(Commands::start(&direct, &node, "node-straight").await),
    };
    commands.start_blocked(&target, &node, "node").await;
    node.process.signal("KILL");
    node.process.wait();
    let what = format!("{protocol:?}, node killed");
    match direct {
        None => commands.assert_failure(&what).await,
        // kube-apiserver's own translator reports the loss of a node as a success: a
        // component in front of it cannot detect that.
        Some(direct) => {
            let (bridged, expected) = (commands.end(&what).await, direct.end(&what).await);
            let requested = bridged.last().expect("a command was started");
            assert!(
                requested.0 == CommandState::Requested && requested.1 != 0,
                "{what}: {requested:?}"
            );
            for ((state, bridged), (_, expected)) in bridged.into_iter().zip(expected) {
                assert!(
                    bridged != 0 || expected == 0,
                    "{what}, {state:?}: direct {expected}"
                );
            }
        }
    }
    plane.restart_node(&mut node).await;

    let mut commands = Commands::start(&target, &node, "server").await;
    commands.start_blocked(&target, &node, "server").await;
    plane.stop_server(0, "KILL");
    commands
        .assert_failure(&format!("{protocol:?}, server killed"))
        .await;

    let target = StreamTarget::bridged(plane, 0, protocol);
    eventually("no stream is left", TEST_TIMEOUT, async || {
        target.metrics().await.sum("skewbridge_streams_open", &[]) == 0
    })
    .await;
    let metrics = target.metrics().await;
    let ended = |result: &str| {
        let result = format!("result=\"{result}\"");
        metrics.sum("skewbridge_streams_total", &[&result])
    };
    let points = CommandState::RUNNING.len() as u64;
    assert_eq!(ended("client_left"), points, "{metrics:?}");
    assert!(ended("disconnected") >= points, "{metrics:?}");
    if protocol == StreamProtocol::WebSocket {
        assert_eq!(ended("disconnected"), 2 * points, "{metrics:?}");
    }
}

/// The state of a command at the time of the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandState {
    /// The request was sent to the node, which has not responded.
    Requested,
    /// It has started, and written nothing.
    Started,
    /// It has written something, and is idle.
    Idle,
    /// It writes much output.
    Output,
    /// It reads much input.
    Input,
}

impl CommandState {
    /// Those of a running command.
    const RUNNING: [Self; 4] = [Self::Started, Self::Idle, Self::Output, Self::Input];

    fn program(self) -> String {
        match self {
            Self::Requested | Self::Started | Self::Input => "cat >/dev/null".to_owned(),
            Self::Idle => "cat".to_owned(),
            Self::Output => format!("head -c {OUTPUT_BYTES} /dev/zero"),
        }
    }
}

/// A kubectl in its state.
struct Command {
    state: CommandState,
    child: Child,
    /// The file with the process ID of the process in the pod.
    pid: PathBuf,
    received: Arc<AtomicU64>,
    /// The tasks that write and read.
    tasks: JoinSet<()>,
    /// Its standard error.
    stderr: PathBuf,
}

/// One command in each state.
struct Commands {
    all: Vec<Command>,
    /// Resumes those that have stopped reading.
    resume: Arc<Semaphore>,
}

impl Commands {
    /// Starts the commands, and waits until all are in their state.
    async fn start(target: &StreamTarget<'_>, node: &Node, round: &str) -> Self {
        let resume = Arc::new(Semaphore::new(0));
        let commands = CommandState::RUNNING.map(|state| {
            let name = format!("{round}-{state:?}");
            Command::start(target, &node.directory, &name, state, &resume)
        });
        let mut all = Vec::from(commands);
        for command in &mut all {
            command.wait_until_in_state().await;
        }
        Self { all, resume }
    }

    /// Starts one more command at a node that does not respond.
    async fn start_blocked(&mut self, target: &StreamTarget<'_>, node: &Node, round: &str) {
        node.process.signal("STOP");
        let before = connections(node);
        let (name, state) = (format!("{round}-requested"), CommandState::Requested);
        let command = Command::start(target, &node.directory, &name, state, &self.resume);
        eventually(
            "the node has received the request",
            TEST_TIMEOUT,
            async || connections(node) > before,
        )
        .await;
        self.all.push(command);
    }

    /// Asserts that all fail.
    async fn assert_failure(self, what: &str) {
        for (state, code) in self.end(what).await {
            assert_ne!(code, 0, "{what}, {state:?}");
        }
    }

    /// Asserts that all exit in time, and that those without an error message exit with
    /// success; returns their exit codes.
    async fn end(self, what: &str) -> Vec<(CommandState, i32)> {
        let start = Instant::now();
        self.resume.close();
        let mut codes = Vec::new();
        for mut command in self.all {
            let what = format!("{what}, {:?}", command.state);
            let left = DETECTION_TIMEOUT.saturating_sub(start.elapsed());
            let status = timeout(left, command.child.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("{what}: not detected"));
            let code = status.unwrap().code().expect("an exit code");
            let stderr = fs::read_to_string(&command.stderr).unwrap();
            let seconds = start.elapsed().as_secs_f32();
            let last = stderr.trim().lines().last().unwrap_or_default();
            println!("{what}: exit code {code} within {seconds:.1} s: {last}");
            assert!(code == 0 || !last.is_empty(), "{what}: no error message");
            assert!(
                command.received.load(Ordering::Relaxed) < OUTPUT_BYTES,
                "{what}"
            );
            codes.push((command.state, code));
        }
        codes
    }
}

impl Command {
    fn start(
        target: &StreamTarget<'_>,
        directory: &Path,
        name: &str,
        state: CommandState,
        resume: &Arc<Semaphore>,
    ) -> Self {
        let line = format!(
            "echo $$ >{name}.new; mv {name}.new {name}; exec {}",
            state.program()
        );
        let input = match state {
            CommandState::Output => "--stdin=false",
            _ => "--stdin=true",
        };
        let words = ["exec", input, Node::POD, "--", "sh", "-c", &line];
        let stderr = directory.join(format!("{name}.stderr"));
        let mut child = target
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let received = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        tasks.spawn(read_output(
            stdout,
            Arc::clone(&received),
            Arc::clone(resume),
        ));
        tasks.spawn(write_input(stdin, state, Arc::clone(&received)));
        Self {
            state,
            child,
            pid: directory.join(name),
            received,
            tasks,
            stderr,
        }
    }

    /// Waits until the command is in its state.
    async fn wait_until_in_state(&mut self) {
        let enough = match self.state {
            CommandState::Requested | CommandState::Started => 0,
            CommandState::Idle => 1,
            CommandState::Output | CommandState::Input => TRANSFERRED_BEFORE_KILL_BYTES,
        };
        let what = format!("a command is at {:?}", self.state);
        eventually(&what, Duration::from_mins(1), async || {
            self.pid.exists() && self.received.load(Ordering::Relaxed) >= enough
        })
        .await;
        assert!(matches!(self.child.try_wait(), Ok(None)), "{what}");
    }

    /// Kills the client: soon the process in the pod exits.
    async fn kill_client(mut self) {
        let pid = fs::read_to_string(&self.pid).unwrap();
        let process = Path::new("/proc").join(pid.trim());
        assert!(process.exists());
        let start = Instant::now();
        self.child.kill().await.unwrap();
        self.tasks.shutdown().await;
        let what = format!("no process without its client, {:?}", self.state);
        eventually(&what, DETECTION_TIMEOUT, async || !process.exists()).await;
        println!("{what}: {:.1} s", start.elapsed().as_secs_f32());
    }
}

/// The number of connections to a node, including those that it has not accepted yet.
fn connections(node: &Node) -> usize {
    const ESTABLISHED: &str = "01";
    let port = format!(":{:04X}", node.address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|row| row.split_whitespace());
    let rows = rows.filter(|row| {
        let mut columns = row.clone().skip(1);
        let (local, _, state) = (columns.next(), columns.next(), columns.next());
        local.is_some_and(|it| it.ends_with(&port)) && state == Some(ESTABLISHED)
    });
    rows.count()
}

/// Reads the output of a command, up to some point; the rest after the kill.
async fn read_output(mut stdout: ChildStdout, received: Arc<AtomicU64>, resume: Arc<Semaphore>) {
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    while let Ok(length @ 1..) = stdout.read(&mut buffer).await {
        total += length as u64;
        received.fetch_add(length as u64, Ordering::Relaxed);
        if total >= TRANSFERRED_BEFORE_KILL_BYTES {
            // The semaphore has no permits: it is closed when the rest may be read.
            let _ = resume.acquire().await;
        }
    }
}

/// Writes the input of its state, and never closes it.
async fn write_input(mut stdin: ChildStdin, state: CommandState, received: Arc<AtomicU64>) {
    match state {
        CommandState::Requested | CommandState::Started | CommandState::Output => {}
        CommandState::Idle => stdin.write_all(b"a line\n").await.unwrap(),
        CommandState::Input => {
            let zeros = vec![0; 64 << 10];
            while stdin.write_all(&zeros).await.is_ok() {
                received.fetch_add(zeros.len() as u64, Ordering::Relaxed);
                if received.load(Ordering::Relaxed) > OUTPUT_BYTES / 2 {
                    break;
                }
            }
        }
    }
    std::future::pending::<()>().await;
}

//! Our exec, attach and port-forward beside kubectl's, against real servers: straight,
//! through a bridge, and through a proxy that knows no upgrade but that to WebSocket.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{Node, Output, Plane, Server, Staying, User, Via, is_since, planes};
use skewbridge_testkit::{PATIENCE, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

/// For a command that takes a second or two on an idle machine.
const BOUND: Duration = Duration::from_mins(1);

/// For a server that starts again; no measure of anything.
const RESTART: Duration = Duration::from_mins(5);

/// Much more than all the buffers on its way.
const STDIN: usize = 2 << 20;

#[tokio::test]
async fn our_commands_do_what_kubectl_does() {
    for versions in planes() {
        println!("plane {versions:?}");
        let servers: Vec<_> = versions.iter().map(|version| Server::of(version)).collect();
        let plane = Plane::start(&servers).await;
        let _node = plane.start_node().await;
        for server in 0..servers.len() {
            for via in [Via::Server, Via::Bridge] {
                let pair = Pair {
                    plane: &plane,
                    server,
                    via,
                };
                commands_end_the_same(&pair).await;
                input_arrives_whole(&pair).await;
                an_attached_process_answers(&pair).await;
                what_is_refused_is_told_the_same(&pair).await;
                it_is_carried_as_the_server_can(&pair).await;
                let (target, _echo) = echo().await;
                let ports = format!(":{}", target.port());
                let words = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
                ports_are_forwarded(pair.ours(&words), target).await;
                kubectl_finds_its_plugin(&pair).await;
            }
        }
    }
}

/// kubectl of the server's version and our program, by the same way.
struct Pair<'a> {
    plane: &'a Plane,
    server: usize,
    via: Via,
}

impl Pair<'_> {
    fn ours(&self, words: &[&str]) -> Command {
        let mut command = self
            .plane
            .skewbridge_command(self.server, self.via, User::Admin);
        command.args(words).args(["-n", Node::NAMESPACE]);
        command
    }

    fn ours_with(&self, words: &[&str], command: &[&str]) -> Command {
        let mut it = self.ours(words);
        it.arg("--").args(command);
        it
    }

    fn theirs(&self, words: &[&str], command: &[&str]) -> Command {
        let mut it = self
            .plane
            .kubectl_command(self.server, self.via, User::Admin);
        it.args(["-n", Node::NAMESPACE]).args(words);
        if !command.is_empty() {
            it.arg("--").args(command);
        }
        it
    }

    /// What both say, which is the same.
    async fn same(&self, words: &[&str], command: &[&str], stdin: &str) -> Output {
        let theirs = run(self.theirs(words, command), stdin).await;
        let ours = match command {
            [] => self.ours(words),
            command => self.ours_with(words, command),
        };
        let ours = run(ours, stdin).await;
        let what = format!("{words:?} {command:?} by {:?}", self.via);
        assert_eq!(ours.code, theirs.code, "{what}: {}", ours.stderr);
        assert_eq!(ours.stderr, theirs.stderr, "{what}");
        let (length, expected) = (ours.stdout.len(), theirs.stdout.len());
        assert!(
            ours.stdout == theirs.stdout,
            "{what}: {length} bytes instead of {expected}"
        );
        ours
    }
}

async fn run(mut command: Command, stdin: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().unwrap();
    let feeding = async move {
        // A command may end before its input does.
        let _ = input.write_all(stdin.as_bytes()).await;
    };
    let both = async { tokio::join!(feeding, child.wait_with_output()).1 };
    let output = tokio::time::timeout(BOUND, both).await;
    let output = output.expect("it hangs").unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn commands_end_the_same(pair: &Pair<'_>) {
    let script = "echo out; echo err >&2; exit 7";
    let output = pair
        .same(&["exec", Node::POD], &["sh", "-c", script], "")
        .await;
    assert_eq!(output.code, Some(7), "{}", output.stderr);
    assert_eq!(output.stdout, "out\n");
    let output = pair
        .same(&["exec", Node::POD], &["sh", "-c", "kill -9 $$"], "")
        .await;
    assert_eq!(output.code, Some(137), "{}", output.stderr);
    let output = pair
        .same(&["exec", Node::POD], &["seq", "100000"], "")
        .await;
    assert_eq!(output.stdout.lines().count(), 100_000);
}

async fn input_arrives_whole(pair: &Pair<'_>) {
    let lines = (0..STDIN / 8).map(|number| format!("{number:07}"));
    let stdin = lines.collect::<Vec<_>>().join("\n");
    let counted = pair
        .same(&["exec", "-i", Node::POD], &["wc", "-c"], &stdin)
        .await;
    assert_eq!(counted.stdout.trim(), stdin.len().to_string());
    let returned = pair
        .same(&["exec", "-i", Node::POD], &["cat"], &stdin)
        .await;
    assert!(returned.stdout == stdin, "{}", returned.stdout.len());
}

async fn an_attached_process_answers(pair: &Pair<'_>) {
    let words = ["attach", "-i", Node::POD];
    let ours = run(pair.ours(&words), "to the container\n").await;
    let theirs = run(pair.theirs(&words, &[]), "to the container\n").await;
    assert_eq!(ours.code, Some(0), "{}", ours.stderr);
    assert_eq!(ours.stdout, "to the container\n");
    assert_eq!((ours.code, ours.stdout), (theirs.code, theirs.stdout));
    // Older ones warn of less.
    assert!(ours.stderr.ends_with(&theirs.stderr), "{}", theirs.stderr);
}

async fn what_is_refused_is_told_the_same(pair: &Pair<'_>) {
    let ours = run(pair.ours_with(&["exec", "pud"], &["true"]), "").await;
    let theirs = run(pair.theirs(&["exec", "pud"], &["true"]), "").await;
    assert_eq!(ours.code, theirs.code);
    // Ours says more.
    assert!(
        ours.stderr.starts_with(&theirs.stderr),
        "{} {}",
        ours.stderr,
        theirs.stderr
    );
    assert!(ours.stderr.contains("did you mean pod?"), "{}", ours.stderr);
    let ours = run(
        pair.ours_with(&["exec", Node::POD], &["no-such-program"]),
        "",
    )
    .await;
    assert_eq!(ours.code, Some(1));
    assert!(
        ours.stderr.contains("executable file not found"),
        "{}",
        ours.stderr
    );
}

async fn it_is_carried_as_the_server_can(pair: &Pair<'_>) {
    let output = run(pair.ours_with(&["exec", "-v=1", Node::POD], &["true"]), "").await;
    let version = &pair.plane.servers[pair.server].version;
    // A bridge has what its server has not.
    let by = if is_since(version, 30) || pair.via == Via::Bridge {
        "skewbridge: by WebSocket\n"
    } else {
        "skewbridge: by SPDY, because a WebSocket was refused: "
    };
    assert!(
        output.stderr.starts_with(by),
        "{version} {:?}: {}",
        pair.via,
        output.stderr
    );
}

/// As `kubectl skewbridge exec`, by the kubectl of the server's version.
async fn kubectl_finds_its_plugin(pair: &Pair<'_>) {
    let Pair { plane, server, via } = *pair;
    let mut plugin = plane.kubectl_skewbridge(server, via, User::Admin);
    plugin.args(["exec", "-i", "-n", Node::NAMESPACE, Node::POD]);
    let output = run_script(plugin, "cat; echo err >&2; exit 7", "by kubectl\n").await;
    assert_eq!(output.code, Some(7), "{via:?}: {}", output.stderr);
    assert_eq!(output.stdout, "by kubectl\n");
    assert_eq!(output.stderr, "err\ncommand terminated with exit code 7\n");
}

/// By a command that forwards to an echo.
async fn ports_are_forwarded(mut command: Command, target: SocketAddr) {
    let mut forward = Staying::start(&mut command);
    let line = forward.line().await;
    let address = line.strip_prefix("Forwarding from ").expect(&line);
    let (address, remote) = address.split_once(" -> ").expect(&line);
    assert_eq!(remote, target.port().to_string());
    let address: SocketAddr = address.parse().unwrap();
    let mut talks = JoinSet::new();
    for number in 0..8u8 {
        talks.spawn(async move {
            let mut connection = TcpStream::connect(address).await.unwrap();
            let sent = vec![b'a' + number; 100_000];
            let mut heard = Vec::new();
            let (mut reader, mut writer) = connection.split();
            let writing = async {
                writer.write_all(&sent).await?;
                writer.shutdown().await
            };
            let both = async { tokio::try_join!(writing, reader.read_to_end(&mut heard)) };
            let talked = tokio::time::timeout(BOUND, both).await;
            talked.expect("an echo in time").unwrap();
            assert!(heard == sent, "{} bytes", heard.len());
        });
    }
    talks.join_all().await;
    for _ in 0..8 {
        let line = forward.line().await;
        assert!(line.starts_with("Handling connection for "), "{line}");
    }
    forward.end().await;
}

/// A server that gives back what it gets, while the second half is kept.
async fn echo() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut reader, mut writer) = connection.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn a_proxy_that_knows_only_websocket_is_no_obstacle() {
    for versions in planes() {
        let servers: Vec<_> = versions.iter().map(|version| Server::of(version)).collect();
        let plane = Plane::start(&servers).await;
        let _node = plane.start_node().await;
        for (number, version) in versions.iter().enumerate() {
            for via in [Via::Server, Via::Bridge] {
                let nginx = plane.nginx_before(plane.servers[number].at(via)).await;
                let ours = |words: &[&str]| {
                    let mut command = plane.skewbridge_at(&nginx.kubeconfig);
                    command.args(words).args(["-n", Node::NAMESPACE, "-v=1"]);
                    command
                };
                let (target, _echo) = echo().await;
                let ports = format!(":{}", target.port());
                let forward = ["port-forward", "--address=127.0.0.1", Node::POD, &ports];
                let exec = ours(&["exec", "-i", Node::POD]);
                let script = "cat; echo err >&2; exit 7";
                let output = run_script(exec, script, "through\n").await;
                let attached = run(ours(&["attach", "-i", Node::POD]), "attached\n").await;
                if via == Via::Server && !is_since(version, 31) {
                    // It has nothing but SPDY, and that does not pass.
                    let refused = run(ours(&forward), "").await;
                    for output in [output, attached, refused] {
                        assert_eq!(output.code, Some(1), "{}", output.stderr);
                        // Both ways are told.
                        assert!(
                            output
                                .stderr
                                .contains("a WebSocket had been refused before"),
                            "{}",
                            output.stderr
                        );
                    }
                    continue;
                }
                assert_eq!(output.code, Some(7), "{version} {via:?}: {}", output.stderr);
                assert_eq!(output.stdout, "through\n");
                let expected =
                    "skewbridge: by WebSocket\nerr\ncommand terminated with exit code 7\n";
                assert_eq!(output.stderr, expected);
                assert_eq!(attached.code, Some(0), "{via:?}: {}", attached.stderr);
                assert_eq!(attached.stdout, "attached\n");
                let by = "skewbridge: by WebSocket\n";
                assert!(attached.stderr.ends_with(by), "{}", attached.stderr);
                ports_are_forwarded(ours(&forward), target).await;
            }
        }
    }
}

async fn run_script(mut command: Command, script: &str, stdin: &str) -> Output {
    command.args(["--", "sh", "-c", script]);
    run(command, stdin).await
}

#[tokio::test]
async fn a_forwarded_port_survives_a_restart_of_the_server() {
    let version = skewbridge_e2e::newest(&skewbridge_e2e::versions()).to_owned();
    let mut plane = Plane::start(&[Server::of(&version)]).await;
    let _node = plane.start_node().await;
    let (target, _echo) = echo().await;
    let ports = format!(":{}", target.port());
    let mut command = plane.skewbridge_command(0, Via::Server, User::Admin);
    command.args([
        "port-forward",
        "--address=127.0.0.1",
        // However long a server takes to start on a machine that has much to do.
        "--pod-running-timeout=1h",
        "-n",
        Node::NAMESPACE,
        Node::POD,
        &ports,
    ]);
    let mut forward = Staying::start(&mut command);
    let line = forward.line().await;
    let address = line.strip_prefix("Forwarding from ").expect(&line);
    let address: SocketAddr = address.split_once(" -> ").expect(&line).0.parse().unwrap();
    let talk = async |word: &[u8]| {
        let mut connection = TcpStream::connect(address).await.unwrap();
        // What is cut off early fails.
        let _ = connection.write_all(word).await;
        let _ = connection.shutdown().await;
        let mut heard = Vec::new();
        let _ = connection.read_to_end(&mut heard).await;
        heard
    };
    assert_eq!(talk(b"before").await, b"before");
    plane.end_server(0, "KILL");
    plane.run_server(0);
    // Who connects too early may be cut off, and no more.
    eventually("an echo again", RESTART, async || {
        talk(b"after").await == b"after"
    })
    .await;
}

/// A shell at a terminal, as somebody in front of it sees it.
struct Tmux {
    socket: String,
    /// What starts the remote shell.
    line: String,
}

impl Tmux {
    async fn start(command: &Command) -> Self {
        let socket = format!("skewbridge-{}", std::process::id());
        let command = command.as_std();
        let mut line = command.get_program().display().to_string();
        for word in command.get_args() {
            line = format!("{line} {}", word.display());
        }
        let line = format!("{line}; echo ended with $?");
        let tmux = Self { socket, line };
        let mut words = vec!["new-session", "-d", "-x", "80", "-y", "24"];
        let mut variables = Vec::new();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                variables.push(format!("{}={}", name.display(), value.display()));
            }
        }
        for variable in &variables {
            words.extend(["-e", variable]);
        }
        // The shell in front shows what is left of the terminal afterwards.
        words.extend(["sh"]);
        tmux.run(&words).await;
        tmux.types("PS1='local''> '\r").await;
        tmux.shows("local> ").await;
        tmux
    }

    async fn run(&self, words: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.socket, "-f", "/dev/null"])
            .args(words)
            .output()
            .await
            .expect("tmux starts");
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn types(&self, text: &str) {
        self.run(&["send-keys", "-l", text]).await;
    }

    async fn shows(&self, text: &str) {
        let last = std::sync::Mutex::new(String::new());
        let looking = eventually(text, BOUND.max(PATIENCE), async || {
            let screen = self.run(&["capture-pane", "-p", "-J"]).await;
            let found = screen.lines().any(|line| line.contains(text));
            *last.lock().unwrap() = screen;
            found
        });
        looking.await;
    }
}

impl Tmux {
    async fn hides(&self, text: &str) {
        eventually(&format!("no {text}"), BOUND, async || {
            !self.run(&["capture-pane", "-p", "-J"]).await.contains(text)
        })
        .await;
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = std::process::Command::new("tmux")
            .args(["-L", &self.socket, "kill-server"])
            .output();
    }
}

#[tokio::test]
async fn an_interactive_shell_works_and_leaves_a_sane_terminal() {
    let version = skewbridge_e2e::newest(&skewbridge_e2e::versions()).to_owned();
    let mut plane = Plane::start(&[Server::of(&version)]).await;
    let _node = plane.start_node().await;
    let mut command = plane.skewbridge_command(0, Via::Server, User::Admin);
    command.args([
        "exec",
        "-it",
        "-n",
        Node::NAMESPACE,
        Node::POD,
        "--",
        "bash",
        "--norc",
    ]);
    let tmux = Tmux::start(&command).await;
    // Quotes tell what is typed from what is shown.
    tmux.types(&format!("{}\r", tmux.line)).await;
    tmux.types("PS1='remote''> '\r").await;
    tmux.shows("remote> ").await;
    tmux.types("echo $((6*7))\r").await;
    tmux.shows("42").await;
    // The line before, by the arrow key.
    tmux.run(&["send-keys", "Up", "Home"]).await;
    tmux.types("echo ag''ain;").await;
    tmux.run(&["send-keys", "Enter"]).await;
    tmux.shows("again").await;
    tmux.run(&["resize-window", "-x", "100", "-y", "30"]).await;
    let new_size = r#"until [ "$(stty size)" = "30 100" ]; do sleep 0.1; done; echo re''sized"#;
    tmux.types(&format!("{new_size}\r")).await;
    tmux.shows("resized").await;
    // ctrl-c ends what runs, and not the shell.
    tmux.types("echo sle''eping; sleep 1000\r").await;
    tmux.shows("sleeping").await;
    tmux.run(&["send-keys", "C-c"]).await;
    tmux.types("echo still $((1+1))\r").await;
    tmux.shows("still 2").await;
    tmux.run(&["send-keys", "C-d"]).await;
    tmux.shows("ended with 0").await;
    tmux.types("clear; echo sane $(stty -a | tr ' ' '\\n' | grep -cx -e icanon -e echo -e isig)\r")
        .await;
    tmux.shows("sane 3").await;
    // Once more, and the server is killed in the middle.
    tmux.types("clear\r").await;
    tmux.hides("sane 3").await;
    tmux.types(&format!("{}\r", tmux.line)).await;
    tmux.types("PS1='far''> '\r").await;
    tmux.shows("far> ").await;
    let server = plane.servers[0].process.as_mut().expect("a server");
    server.signal("KILL");
    tmux.shows("ended with 1").await;
    tmux.types("clear; echo here $((2+3))\r").await;
    tmux.shows("here 5").await;
}

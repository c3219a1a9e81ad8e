//! kube-apiserver, the node or the client is killed at some point of a command: whoever
//! is left learns it soon, and nobody takes it for a success.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skewbridge_e2e::{ControlPlane, Node, ServerSpec, is_since, oldest, versions};
use skewbridge_testkit::{PATIENCE, ScratchDir, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::port_forward::{PortForward, echo_server, echoes};
use crate::streaming::{Speaks, Way, kubectl_version};

/// How long anybody may take to learn that the other end is lost.
const LEARNT: Duration = Duration::from_secs(15);

/// What one command would write.
const OUTPUT: u64 = 1 << 30;

/// How much of that, and of an input, has come when it is cut.
const MIDST: u64 = 32 << 20;

#[tokio::test]
async fn whoever_is_killed_the_others_learn_it() {
    let Some(newest) = kubectl_version() else {
        return;
    };
    let versions = versions();
    let oldest = oldest(&versions);
    let translated = async {
        let server = ServerSpec::of(oldest).bridge_flag("--translate-streams=always");
        let mut plane = ControlPlane::start(&[server]).await;
        judge(&mut plane, Speaks::WebSocket).await;
    };
    let inverse = async {
        assert!(is_since(&newest, 31));
        let server = ServerSpec::of(&newest).bridge_flag("--upstream-streams=websocket");
        let mut plane = ControlPlane::start(&[server]).await;
        judge(&mut plane, Speaks::Spdy).await;
    };
    translated.await;
    inverse.await;
}

#[tokio::test]
async fn whoever_copies_attaches_or_forwards_learns_it_too() {
    if kubectl_version().is_none() {
        return;
    }
    let versions = versions();
    let server = ServerSpec::of(oldest(&versions)).bridge_flag("--translate-streams=always");
    let mut plane = ControlPlane::start(&[server]).await;
    let mut node = plane.start_node().await;
    for killed in ["node", "server"] {
        let way = Way::bridged(&plane, 0, Speaks::WebSocket);
        let others = Others::begin(&way, &node).await;
        if killed == "node" {
            node.process.signal("KILL");
            node.process.wait();
            others.fail(killed).await;
            plane.restart_node(&mut node).await;
        } else {
            plane.stop_server(0, "KILL");
            others.fail(killed).await;
        }
    }
}

/// What else has streams, in the midst of them.
struct Others {
    copy: Child,
    attach: Child,
    forward: PortForward,
    connection: TcpStream,
    /// Where the copies are, and what the far end of the forward is.
    _there: (ScratchDir, JoinSet<()>),
}

impl Others {
    async fn begin(way: &Way<'_>, node: &Node) -> Self {
        let directory = ScratchDir::new();

        let from = directory.path().join("endless");
        let there = node.directory.join("endless");
        let spawn = |words: &[&str]| {
            let mut command = way.command(words);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.kill_on_drop(true).spawn().unwrap()
        };
        let endless = fs::File::create(&from).unwrap();
        // More than is copied before somebody is killed, and nothing on the disk here.
        endless.set_len(1 << 33).unwrap();
        let remote = format!("{}:{}", Node::POD, there.display());
        let copy = spawn(&["cp", &from.display().to_string(), &remote]);
        let mut attach = spawn(&["attach", "-i", Node::POD]);
        let stdin = attach.stdin.as_mut().unwrap();
        stdin.write_all(b"a line\n").await.unwrap();
        let mut line = [0; 7];
        let stdout = attach.stdout.as_mut().unwrap();
        timeout(PATIENCE, stdout.read_exact(&mut line))
            .await
            .expect("an answer in time")
            .unwrap();
        let (target, echo_server) = echo_server().await;
        let mut forward = PortForward::start(way, &[target.port()]).await;
        let mut connection = forward.connect(0).await;
        echoes(&mut connection, b"there and back").await;
        eventually("something is copied", PATIENCE, async || {
            fs::metadata(&there).is_ok_and(|it| it.len() > 0)
        })
        .await;
        Self {
            copy,
            attach,
            forward,
            connection,
            _there: (directory, echo_server),
        }
    }

    async fn fail(mut self, killed: &str) {
        for (what, child) in [("cp", &mut self.copy), ("attach", &mut self.attach)] {
            let status = timeout(LEARNT, child.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("{killed} killed, {what}: not learnt"));
            let code = status.unwrap().code();
            assert!(code.is_some_and(|it| it != 0), "{killed} killed, {what}");
        }
        let mut rest = Vec::new();
        let end = timeout(LEARNT, self.connection.read_to_end(&mut rest)).await;
        let _ended_or_reset = end.unwrap_or_else(|_| panic!("{killed} killed, port: not learnt"));
        assert!(rest.is_empty(), "{killed} killed: {rest:?}");
        drop(self.forward);
    }
}

async fn judge(plane: &mut ControlPlane, speaks: Speaks) {
    let mut node = plane.start_node().await;
    let way = Way::bridged(plane, 0, speaks);

    let commands = Commands::begin(&way, &node, "client").await;
    for command in commands.all {
        command.leave().await;
    }

    let mut commands = Commands::begin(&way, &node, "node").await;
    let straight = Way::straight(plane, 0, Speaks::WebSocket);
    let straight = match speaks {
        Speaks::WebSocket => None,
        Speaks::Spdy => Some(Commands::begin(&straight, &node, "node-straight").await),
    };
    commands.ask(&way, &node, "node").await;
    node.process.signal("KILL");
    node.process.wait();
    let what = format!("{speaks:?}, node killed");
    match straight {
        None => commands.fail(&what).await,
        // kube-apiserver's own translator takes the loss of a node for a success, and
        // says so: whoever stands before it cannot know better.
        Some(straight) => {
            let (told, known) = (commands.end(&what).await, straight.end(&what).await);
            let asked = told.last().expect("one was asked for");
            assert!(asked.0 == Point::Asked && asked.1 != 0, "{what}: {asked:?}");
            for ((point, told), (_, known)) in told.into_iter().zip(known) {
                assert!(
                    told != 0 || known == 0,
                    "{what}, {point:?}: straight {known}"
                );
            }
        }
    }
    plane.restart_node(&mut node).await;

    let mut commands = Commands::begin(&way, &node, "server").await;
    commands.ask(&way, &node, "server").await;
    plane.stop_server(0, "KILL");
    commands.fail(&format!("{speaks:?}, server killed")).await;

    let way = Way::bridged(plane, 0, speaks);
    eventually("no stream is left", PATIENCE, async || {
        way.metrics().await.sum("skewbridge_streams_open", &[]) == 0
    })
    .await;
    let metrics = way.metrics().await;
    let ended = |outcome: &str| {
        let outcome = format!("outcome=\"{outcome}\"");
        metrics.sum("skewbridge_streams_total", &[&outcome])
    };
    let points = Point::BEGUN.len() as u64;
    assert_eq!(ended("client_left"), points, "{metrics:?}");
    assert!(ended("cut_off") >= points, "{metrics:?}");
    if speaks == Speaks::WebSocket {
        assert_eq!(ended("cut_off"), 2 * points, "{metrics:?}");
    }
}

/// Where a command is when something is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// The node has been asked for it, and has not answered.
    Asked,
    /// It has begun, and said nothing.
    Begun,
    /// It has said something, and is silent.
    Idle,
    /// It says a lot.
    Output,
    /// It is told a lot.
    Input,
}

impl Point {
    /// Those of a command that runs.
    const BEGUN: [Self; 4] = [Self::Begun, Self::Idle, Self::Output, Self::Input];

    fn program(self) -> String {
        match self {
            Self::Asked | Self::Begun | Self::Input => "cat >/dev/null".to_owned(),
            Self::Idle => "cat".to_owned(),
            Self::Output => format!("head -c {OUTPUT} /dev/zero"),
        }
    }
}

/// A kubectl at its point.
struct Command {
    point: Point,
    child: Child,
    /// Where the process in the pod has left its number.
    pid: PathBuf,
    heard: Arc<AtomicU64>,
    /// They talk and listen.
    tasks: JoinSet<()>,
    /// Where it complains.
    stderr: PathBuf,
}

/// One at each point.
struct Commands {
    all: Vec<Command>,
    /// Lets those go on that have stopped to listen.
    cut: Arc<Semaphore>,
}

impl Commands {
    /// Starts them, and waits until all are where they should be.
    async fn begin(way: &Way<'_>, node: &Node, round: &str) -> Self {
        let cut = Arc::new(Semaphore::new(0));
        let commands = Point::BEGUN.map(|point| {
            let name = format!("{round}-{point:?}");
            Command::begin(way, &node.directory, &name, point, &cut)
        });
        let mut all = Vec::from(commands);
        for command in &mut all {
            command.is_there().await;
        }
        Self { all, cut }
    }

    /// And one more, which a node that does not move is asked for.
    async fn ask(&mut self, way: &Way<'_>, node: &Node, round: &str) {
        node.process.signal("STOP");
        let before = connections(node);
        let (name, point) = (format!("{round}-asked"), Point::Asked);
        let command = Command::begin(way, &node.directory, &name, point, &self.cut);
        eventually("the node is asked", PATIENCE, async || {
            connections(node) > before
        })
        .await;
        self.all.push(command);
    }

    /// All must fail.
    async fn fail(self, what: &str) {
        for (point, code) in self.end(what).await {
            assert_ne!(code, 0, "{what}, {point:?}");
        }
    }

    /// All must end within the time, with these codes, and none without a word unless
    /// it takes that for a success.
    async fn end(self, what: &str) -> Vec<(Point, i32)> {
        let start = Instant::now();
        self.cut.close();
        let mut codes = Vec::new();
        for mut command in self.all {
            let what = format!("{what}, {:?}", command.point);
            let left = LEARNT.saturating_sub(start.elapsed());
            let status = timeout(left, command.child.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("{what}: not learnt"));
            let code = status.unwrap().code().expect("an exit code");
            let stderr = fs::read_to_string(&command.stderr).unwrap();
            let seconds = start.elapsed().as_secs_f32();
            let last = stderr.trim().lines().last().unwrap_or_default();
            println!("{what}: exit code {code} within {seconds:.1} s: {last}");
            assert!(code == 0 || !last.is_empty(), "{what}: not a word");
            assert!(command.heard.load(Ordering::Relaxed) < OUTPUT, "{what}");
            codes.push((command.point, code));
        }
        codes
    }
}

impl Command {
    fn begin(
        way: &Way<'_>,
        directory: &Path,
        name: &str,
        point: Point,
        cut: &Arc<Semaphore>,
    ) -> Self {
        let line = format!(
            "echo $$ >{name}.new; mv {name}.new {name}; exec {}",
            point.program()
        );
        let input = match point {
            Point::Output => "--stdin=false",
            _ => "--stdin=true",
        };
        let words = ["exec", input, Node::POD, "--", "sh", "-c", &line];
        let stderr = directory.join(format!("{name}.stderr"));
        let mut child = way
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let heard = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        tasks.spawn(listen(stdout, Arc::clone(&heard), Arc::clone(cut)));
        tasks.spawn(talk(stdin, point, Arc::clone(&heard)));
        Self {
            point,
            child,
            pid: directory.join(name),
            heard,
            tasks,
            stderr,
        }
    }

    /// Waits until it has come to its point.
    async fn is_there(&mut self) {
        let enough = match self.point {
            Point::Asked | Point::Begun => 0,
            Point::Idle => 1,
            Point::Output | Point::Input => MIDST,
        };
        let what = format!("a command is at {:?}", self.point);
        eventually(&what, Duration::from_mins(1), async || {
            self.pid.exists() && self.heard.load(Ordering::Relaxed) >= enough
        })
        .await;
        assert!(matches!(self.child.try_wait(), Ok(None)), "{what}");
    }

    /// Kills the client: soon the process in the pod is gone.
    async fn leave(mut self) {
        let pid = fs::read_to_string(&self.pid).unwrap();
        let process = Path::new("/proc").join(pid.trim());
        assert!(process.exists());
        let start = Instant::now();
        self.child.kill().await.unwrap();
        self.tasks.shutdown().await;
        let what = format!("no process without its client, {:?}", self.point);
        eventually(&what, LEARNT, async || !process.exists()).await;
        println!("{what}: {:.1} s", start.elapsed().as_secs_f32());
    }
}

/// How many connections to a node there are, taken by it or not yet.
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

/// Hears what a command says, up to some point; the rest after the cut.
async fn listen(mut stdout: ChildStdout, heard: Arc<AtomicU64>, cut: Arc<Semaphore>) {
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    while let Ok(length @ 1..) = stdout.read(&mut buffer).await {
        total += length as u64;
        heard.fetch_add(length as u64, Ordering::Relaxed);
        if total >= MIDST {
            // There is nothing to acquire: it is closed when the time has come.
            let _ = cut.acquire().await;
        }
    }
}

/// Tells it what belongs to its point, and never that this was all.
async fn talk(mut stdin: ChildStdin, point: Point, heard: Arc<AtomicU64>) {
    match point {
        Point::Asked | Point::Begun | Point::Output => {}
        Point::Idle => stdin.write_all(b"a line\n").await.unwrap(),
        Point::Input => {
            let zeros = vec![0; 64 << 10];
            while stdin.write_all(&zeros).await.is_ok() {
                heard.fetch_add(zeros.len() as u64, Ordering::Relaxed);
                if heard.load(Ordering::Relaxed) > OUTPUT / 2 {
                    break;
                }
            }
        }
    }
    std::future::pending::<()>().await;
}

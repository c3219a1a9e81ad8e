//! `port-forward`.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use skewbridge_testkit::{Pods, ReservedPort, TEST_TIMEOUT, UpgradeResponse};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Cluster;

/// Answers every connection with a word, after it has received one.
async fn answering(word: &'static str) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 1];
                let _ = tcp.read_exact(&mut request).await;
                let _ = tcp.write_all(word.as_bytes()).await;
            });
        }
    });
    (port, task)
}

struct Forwarding {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Forwarding {
    fn start(cluster: &Cluster, words: &[&str]) -> Self {
        let command = cluster.command(&["port-forward", "--address=127.0.0.1"]);
        Self::of(command, words)
    }

    fn of(mut command: Command, words: &[&str]) -> Self {
        command.args(words).stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Self {
            child,
            stdout,
            stderr,
        }
    }

    async fn line(&mut self) -> String {
        let line = timeout(TEST_TIMEOUT, self.stdout.next_line()).await;
        line.expect("a line in time").unwrap().expect("a line")
    }

    async fn stderr_line(&mut self) -> String {
        let line = timeout(TEST_TIMEOUT, self.stderr.next_line()).await;
        line.expect("a line on stderr in time")
            .unwrap()
            .expect("a line on stderr")
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().unwrap().cast_signed();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    async fn code(mut self) -> Option<i32> {
        let ended = timeout(TEST_TIMEOUT, self.child.wait()).await;
        ended.expect("an end in time").unwrap().code()
    }

    /// The local port of the next line for 127.0.0.1.
    async fn port(&mut self, remote: u16) -> u16 {
        loop {
            let line = self.line().await;
            assert!(line.ends_with(&format!(" -> {remote}")), "{line}");
            if let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:") {
                return rest.split(' ').next().unwrap().parse().unwrap();
            }
        }
    }
}

async fn send_and_read(port: u16) -> String {
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tcp.write_all(b"?").await.unwrap();
    let mut answer = String::new();
    let read = timeout(TEST_TIMEOUT, tcp.read_to_string(&mut answer)).await;
    let _ = read.expect("an answer in time");
    answer
}

#[tokio::test]
async fn ports_and_sockets_are_forwarded_to_the_pod() {
    let cluster = Cluster::start().await;
    let (one, first) = answering("one").await;
    let (two, second) = answering("two").await;
    let socket = cluster.dir.path().join("two.sock");
    let words = [
        "web".to_owned(),
        format!(":{one}"),
        format!("unix:{}:{two}", socket.display()),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut forwarding = Forwarding::start(&cluster, &words);
    let port = forwarding.port(one).await;
    let line = forwarding.line().await;
    assert_eq!(
        line,
        format!("Forwarding from unix:{} -> {two}", socket.display())
    );
    assert_eq!(send_and_read(port).await, "one");
    assert_eq!(
        forwarding.line().await,
        format!("Handling connection for {port}")
    );
    let mut unix = UnixStream::connect(&socket).await.unwrap();
    unix.write_all(b"?").await.unwrap();
    let mut answer = String::new();
    unix.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "two");
    // As after ctrl-c.
    forwarding.signal(Signal::INT);
    assert_eq!(forwarding.code().await, Some(0));
    assert!(!socket.exists());
    first.abort();
    second.abort();
}

#[tokio::test]
async fn no_exit_leaves_a_socket_behind() {
    let cluster = Cluster::start().await;
    for (signal, code) in [(Signal::HUP, 129), (Signal::TERM, 143), (Signal::QUIT, 131)] {
        let socket = cluster.dir.path().join("s");
        let spec = format!("unix:{}:80", socket.display());
        let mut forwarding = Forwarding::start(&cluster, &["web", &spec]);
        assert!(forwarding.line().await.starts_with("Forwarding from unix:"));
        assert!(socket.exists());
        forwarding.signal(signal);
        assert_eq!(forwarding.code().await, Some(code));
        assert!(!socket.exists(), "{signal:?}");
    }
}

#[tokio::test]
async fn an_ignored_hangup_stays_ignored() {
    let cluster = Cluster::start().await;
    let (port, task) = answering("here").await;
    // As by nohup.
    let words = ["port-forward", "--address=127.0.0.1"];
    let command = cluster.command_with("--ignore-signal=HUP", &words);
    let mut forwarding = Forwarding::of(command, &["web", &format!(":{port}")]);
    let local = forwarding.port(port).await;
    forwarding.signal(Signal::HUP);
    assert_eq!(send_and_read(local).await, "here");
    assert_eq!(forwarding.child.try_wait().unwrap(), None);
    task.abort();
}

#[tokio::test]
async fn an_interrupt_ends_a_background_job() {
    let cluster = Cluster::start().await;
    // A shell without job control has its background jobs ignore SIGINT and SIGQUIT.
    let script = "\"$@\" & echo $!; wait $!";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_skewbridge")])
        .args(["port-forward", "--address=127.0.0.1"])
        .env("KUBECONFIG", cluster.dir.path().join("config"))
        .kill_on_drop(true);
    let mut forwarding = Forwarding::of(command, &["web", ":80"]);
    let process = forwarding.line().await.parse().unwrap();
    forwarding.port(80).await;
    let process = Pid::from_raw(process).unwrap();
    kill_process(process, Signal::INT).unwrap();
    let ended = timeout(TEST_TIMEOUT, forwarding.child.wait()).await;
    if ended.is_err() {
        let _ = kill_process(process, Signal::KILL);
    }
    assert_eq!(ended.expect("an end in time").unwrap().code(), Some(0));
}

#[tokio::test]
async fn only_complete_data_ends_with_eof() {
    let cluster = Cluster::start().await;
    let (port, task) = answering("here").await;
    let mut forwarding = Forwarding::start(&cluster, &["web", &format!(":{port}")]);
    let local = forwarding.port(port).await;
    let address = ("127.0.0.1", local);
    // The pod ends the connection.
    let mut tcp = TcpStream::connect(address).await.unwrap();
    tcp.write_all(b"?").await.unwrap();
    let mut answer = String::new();
    let read = timeout(TEST_TIMEOUT, tcp.read_to_string(&mut answer)).await;
    read.unwrap().unwrap();
    assert_eq!(answer, "here");
    // The connection to the cluster is lost; the program is killed.
    for kill in [false, true] {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        // A later connection has been served, so this one has been accepted.
        assert_eq!(send_and_read(local).await, "here");
        if kill {
            forwarding.signal(Signal::KILL);
        } else {
            cluster.pods.cut_all();
        }
        let read = timeout(TEST_TIMEOUT, tcp.read(&mut [0; 1])).await.unwrap();
        assert_eq!(
            read.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionReset
        );
    }
    task.abort();
}

#[tokio::test]
async fn a_failed_connection_does_not_end_others() {
    let cluster = Cluster::start().await;
    let (good, task) = answering("fine").await;
    let closed = ReservedPort::new();
    let bad = closed.addr().port();
    let words = ["web".to_owned(), format!(":{bad}"), format!(":{good}")];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut forwarding = Forwarding::start(&cluster, &words);
    let to_bad = forwarding.port(bad).await;
    let to_good = forwarding.port(good).await;
    assert_eq!(send_and_read(to_bad).await, "");
    let line = forwarding.stderr_line().await;
    let expected = format!("error: an error occurred forwarding {to_bad} -> {bad}: ");
    assert!(line.starts_with(&expected), "{line}");
    assert_eq!(send_and_read(to_good).await, "fine");
    assert_eq!(forwarding.child.try_wait().unwrap(), None);
    task.abort();
}

#[tokio::test]
async fn a_lost_connection_is_reopened_while_listening() {
    let cluster = Cluster::start().await;
    let (port, task) = answering("here").await;
    let remote = format!(":{port}");
    let mut forwarding = Forwarding::start(&cluster, &["web", &remote]);
    let local = forwarding.port(port).await;
    assert_eq!(send_and_read(local).await, "here");
    cluster.pods.cut_all();
    let mut line = forwarding.stderr_line().await;
    if line.contains("an error occurred forwarding") {
        // The data was not known to be complete yet.
        line = forwarding.stderr_line().await;
    }
    assert!(line.starts_with("lost connection to pod web: "), "{line}");
    // The local connection is accepted at once, and served when the pod is connected again.
    assert_eq!(send_and_read(local).await, "here");
    task.abort();
}

#[tokio::test]
async fn a_server_that_restarts_is_waited_for() {
    let Cluster { pods, dir } = Cluster::start().await;
    let cluster = Cluster { pods, dir };
    let (port, task) = answering("here").await;
    let remote = format!(":{port}");
    let mut forwarding = Forwarding::start(&cluster, &["web", &remote]);
    let local = forwarding.port(port).await;
    let Cluster { pods, dir: _dir } = cluster;
    let kept = pods.end().await;
    assert!(
        forwarding
            .stderr_line()
            .await
            .starts_with("lost connection to pod web: ")
    );
    let request = tokio::spawn(send_and_read(local));
    let pods = Pods::start_at(kept).await;
    pods.pod("default", "web", &["app"]);
    assert_eq!(
        timeout(TEST_TIMEOUT, request).await.unwrap().unwrap(),
        "here"
    );
    task.abort();
}

#[tokio::test]
async fn a_server_that_accepts_and_closes_is_retried_with_backoff_and_a_limit() {
    let cluster = Cluster::start().await;
    let words = ["--pod-running-timeout=2s", "web", ":80"];
    let mut forwarding = Forwarding::start(&cluster, &words);
    forwarding.port(80).await;
    cluster.pods.cut_after(Some(0));
    cluster.pods.cut_all();
    let mut last = forwarding.stderr_line().await;
    while !last.starts_with("error: ") {
        last = forwarding.stderr_line().await;
    }
    assert!(
        last.starts_with("error: lost connection to pod web: "),
        "{last}"
    );
    assert_eq!(forwarding.code().await, Some(1));
    let seen = cluster.pods.requests();
    let attempts = seen.iter().filter(|it| it.contains("/portforward")).count();
    // The first one, and then with pauses of 0, 200, 400 and 800 ms.
    assert!((2..=5).contains(&attempts), "{seen:?}");
}

#[tokio::test]
async fn an_unresponsive_server_times_out() {
    let cluster = Cluster::start().await;
    let words = ["--pod-running-timeout=1s", "web", ":80"];
    let mut forwarding = Forwarding::start(&cluster, &words);
    forwarding.port(80).await;
    cluster.pods.websocket(UpgradeResponse::Hang);
    cluster.pods.cut_all();
    let line = forwarding.stderr_line().await;
    assert!(line.starts_with("lost connection to pod web: "), "{line}");
    let last = forwarding.stderr_line().await;
    assert!(
        last.starts_with("error: lost connection to pod web: "),
        "{last}"
    );
    assert_eq!(
        forwarding.stderr_line().await,
        "the server did not answer within --pod-running-timeout (1s)"
    );
    assert_eq!(forwarding.code().await, Some(1));
}

#[tokio::test]
async fn idle_listeners_hold_no_connection_permits() {
    /// One more than the limit.
    const LISTENERS: usize = 501;
    let cluster = Cluster::start().await;
    let (port, task) = answering("here").await;
    let remote = format!(":{port}");
    let mut words = vec!["web"];
    words.resize(1 + LISTENERS, &remote);
    let mut forwarding = Forwarding::start(&cluster, &words);
    let mut last = 0;
    for _ in 0..LISTENERS {
        last = forwarding.port(port).await;
    }
    assert_eq!(send_and_read(last).await, "here");
    task.abort();
}

#[tokio::test]
async fn a_service_falls_over_to_another_pod() {
    let cluster = Cluster::start().await;
    let (port, task) = answering("here").await;
    cluster.pods.object(
        "/api/v1/namespaces/default/services/shop",
        r#"{"spec":{"clusterIP":"10.0.0.1","selector":{"app":"shop"},"ports":[{"port":80,"targetPort":"http"}]}}"#,
    );
    let list = |name: &str| {
        format!(
            r#"{{"items":[{{"metadata":{{"name":"{name}"}},"spec":{{"nodeName":"n","containers":[{{"name":"a","ports":[{{"name":"http","containerPort":{port}}}]}}]}},"status":{{"phase":"Running"}}}}]}}"#
        )
    };
    let path = "/api/v1/namespaces/default/pods";
    cluster.pods.object(path, &list("shop-1"));
    let mut forwarding = Forwarding::start(&cluster, &["svc/shop", ":80"]);
    let local = forwarding.port(port).await;
    assert_eq!(send_and_read(local).await, "here");
    cluster.pods.object(path, &list("shop-2"));
    cluster.pods.cut_all();
    let mut line = forwarding.stderr_line().await;
    if line.starts_with("error: an error occurred forwarding ") {
        // The forwarded connection was still being closed.
        line = forwarding.stderr_line().await;
    }
    assert!(
        line.starts_with("lost connection to pod shop-1: "),
        "{line}"
    );
    assert_eq!(
        forwarding.stderr_line().await,
        "connected to pod shop-2 again"
    );
    assert_eq!(send_and_read(local).await, "here");
    task.abort();
}

#[tokio::test]
async fn impossible_forwards_are_reported() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/slow",
        r#"{"metadata":{"name":"slow"},"spec":{"containers":[{"name":"a"}]},"status":{"phase":"Pending","containerStatuses":[{"name":"a","state":{"waiting":{"reason":"ContainerCreating"}}}]}}"#,
    );
    let output = cluster.run(&["port-forward", "slow", "80"]).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        "error: unable to forward port because pod is not running. Current status=Pending\n\
         container \"a\" of pod \"slow\" is waiting (ContainerCreating)\n"
    );
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/dns",
        r#"{"metadata":{"name":"dns"},"spec":{"containers":[{"name":"a","ports":[{"containerPort":53,"protocol":"UDP"}]}]},"status":{"phase":"Running"}}"#,
    );
    let output = cluster.run(&["port-forward", "dns", ":53"]).await;
    assert_eq!(
        (output.code, &*output.stderr),
        (Some(1), "error: UDP protocol is not supported for 53\n")
    );
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let both = format!("{port}:80");
    let output = cluster
        .run(&["port-forward", "--address=127.0.0.1", "web", &both])
        .await;
    assert_eq!(output.code, Some(1));
    let expected = format!("error: Unable to listen on port {port}: 127.0.0.1:{port}: ");
    assert!(output.stderr.starts_with(&expected), "{output:?}");
}

#[tokio::test]
async fn an_unread_pipe_blocks_no_connection() {
    /// A message about a connection has more bytes than that.
    const MIN_LINE_BYTES: usize = 24;
    /// Lines in the queue.
    const QUEUED_LINES: usize = 256;
    let cluster = Cluster::start().await;
    let (port, task) = answering("here").await;
    let mut forwarding = Forwarding::start(&cluster, &["web", &format!(":{port}")]);
    let local = forwarding.port(port).await;
    // A page, of any size.
    let stdout = forwarding.stdout.get_ref().get_ref();
    let pipe = rustix::pipe::fcntl_setpipe_size(stdout, 1).unwrap();
    // More than the pipe and the queue hold.
    for _ in 0..pipe / MIN_LINE_BYTES + 2 * QUEUED_LINES {
        assert_eq!(send_and_read(local).await, "here");
    }
    forwarding.signal(Signal::TERM);
    let ended = timeout(TEST_TIMEOUT, forwarding.child.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(143));
    task.abort();
}

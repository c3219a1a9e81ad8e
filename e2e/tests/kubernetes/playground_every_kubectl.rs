//! The playground with every kubectl, without real servers: its start, streams, pods and discovery.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use skewbridge_e2e::{Playground, RunningKubectl, newest, versions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::join;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kubectl_terminal::Terminal;
use crate::playground::{COMMAND_TIMEOUT, RELEASES, run};

/// The documented bound. The start takes a tenth of it, even without optimisation.
const READY_TIMEOUT: Duration = Duration::from_secs(3);

/// The best of this many starts counts: the machine may be busy.
const START_ATTEMPTS: usize = 3;

#[tokio::test]
async fn a_playground_is_ready_in_three_seconds() {
    let mut durations = Vec::new();
    while durations.len() < START_ATTEMPTS {
        let began = Instant::now();
        let _playground = Playground::start().await;
        durations.push(began.elapsed());
        println!("ready after {:.2?}", began.elapsed());
        if durations.last().is_some_and(|it| *it < READY_TIMEOUT) {
            return;
        }
    }
    panic!("ready after {durations:.2?}, and the limit is {READY_TIMEOUT:?}");
}

#[tokio::test]
async fn every_kubectl_streams_as_suggested() {
    let playground = &Playground::start().await;
    for version in &versions() {
        let streams = Streams {
            playground,
            version,
            context: "bridge-1.28",
        };
        join!(streams.terminal(), streams.logs(), streams.forward());
    }
}

#[tokio::test]
async fn every_kubectl_runs_and_detaches_from_a_pod() {
    let playground = &Playground::start().await;
    let [oldest, middle, newest] = RELEASES;
    for version in &versions() {
        let once = async |place: &str, release: &str| {
            let name = format!("once-{place}-{}", release.replace('.', "-"));
            let words = [
                "run",
                &name,
                "-i",
                "--rm",
                "--restart=Never",
                "--image=none",
            ];
            let words = [&words[..], &["--", "sh"]].concat();
            let command = playground.kubectl(version, &format!("{place}-{release}"));
            let once = run(command, &words, "sleep 1; echo done\n").await;
            let at = format!("kubectl {version} at {place}-{release}");
            assert_eq!(once.code, Some(0), "{at}: {once:?}");
            assert!(once.stdout.contains("done"), "{at}: {once:?}");
        };
        join!(
            once("server", oldest),
            once("bridge", oldest),
            once("server", middle),
            once("bridge", middle),
            once("server", newest),
            once("bridge", newest),
        );
    }
}

#[tokio::test]
async fn every_bridge_discovers_what_all_servers_serve() {
    let playground = &Playground::start().await;
    let versions = versions();
    let resources = async |place: &str, release: &str| {
        let command = playground.kubectl(newest(&versions), &format!("{place}-{release}"));
        let listed = run(command, &["api-resources", "-o", "name"], "").await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let names = listed.stdout.lines().map(str::to_owned);
        names.collect::<BTreeSet<_>>()
    };
    let mut all = BTreeSet::new();
    for release in RELEASES {
        all.extend(resources("server", release).await);
    }
    for release in RELEASES {
        assert_eq!(resources("bridge", release).await, all, "{release}");
    }
}

/// Streams of the playground's initial pod, with a kubectl in a context.
struct Streams<'a> {
    playground: &'a Playground,
    version: &'a str,
    context: &'a str,
}

impl Streams<'_> {
    async fn terminal(&self) {
        let mut command = self.playground.kubectl(self.version, self.context);
        command.args(["exec", "-it", "web", "--", "sh"]);
        let mut terminal = Terminal::start(&command);
        // The shell may not have started yet: typed text is queued.
        terminal.types("echo is$((6*7)); exit 4\r").await;
        terminal.line_with("is42").await;
        let (_, code) = terminal.rest().await;
        assert_eq!(code, Some(4));
    }

    async fn logs(&self) {
        let mut command = self.playground.kubectl(self.version, self.context);
        let words = ["logs", "-f", "web", "--tail=1"];
        let mut following = RunningKubectl::start(command.args(words));
        // The last existing line, and a later one.
        for _ in 0..2 {
            assert!(following.line().await.starts_with("web: "));
        }
    }

    async fn forward(&self) {
        let mut command = self.playground.kubectl(self.version, self.context);
        let mut forward = RunningKubectl::start(command.args(["port-forward", "web", ":8080"]));
        let line = forward.line().await;
        let address = line.split_whitespace().nth(2).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: web\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        timeout(COMMAND_TIMEOUT, read).await.unwrap().unwrap();
        assert!(
            answer.ends_with("Hello from pod web, port 8080.\n"),
            "{answer}"
        );
    }
}

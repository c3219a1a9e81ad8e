//! Informers and leader election of client-go for a minute, through the bridges of a playground
//! whose servers are upgraded, downgraded, stopped and killed meanwhile.
//!
//! The guarantees: no informer gets a false deletion, misses an object or has one twice; no client
//! gets "no such resource" while a server has the resource, or returns with it; there are never two
//! leaders, and a new leader is always elected.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::Playground;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The minimum duration of the test.
const MIN_DURATION: Duration = Duration::from_mins(1);

/// For an operation that takes seconds. The informers of client-go wait for up to a minute
/// after repeated rejections.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(3);

/// How long a server is down: long enough for all clients to detect it.
const OUTAGE_DURATION: Duration = Duration::from_millis(1500);

const NAMESPACE: &str = "upgrades";

/// Only the newest version serves this resource.
const NEWEST_RESOURCE: &str = "mutatingadmissionpolicies";

/// What happens to a server, named by its initial version.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The server is replaced in place, and another server has its APIs.
    Replaced(&'static str, &'static str),
    /// The server stops in this way, and is started again.
    Away(&'static str, &'static str),
    /// The only server of the newest API is replaced by one without it, and back.
    Without(&'static str),
    /// The server behind the leader's bridge fails.
    LeaderKilled,
}

/// All servers have gone through all states, and have their initial versions in the end.
const EVENTS: [Event; 13] = [
    Event::Replaced("1.34", "upgrade"),
    Event::Away("1.36", "stop"),
    Event::Replaced("1.28", "upgrade"),
    Event::Away("1.34", "kill"),
    Event::Replaced("1.28", "upgrade"),
    Event::Replaced("1.36", "downgrade"),
    Event::Replaced("1.36", "upgrade"),
    Event::LeaderKilled,
    Event::Replaced("1.28", "downgrade"),
    Event::Replaced("1.34", "downgrade"),
    Event::Replaced("1.28", "downgrade"),
    Event::Away("1.36", "kill"),
    Event::Without("1.36"),
];

#[tokio::test]
async fn informers_and_elections_survive_a_minute_of_upgrades() {
    let playground = Playground::start().await;
    let mut client = Client::start(&playground);
    client.run("wait-settled", "start").await;
    let began = Instant::now();
    for (number, turn) in (1_u32..).zip(EVENTS) {
        let turned = Instant::now();
        match turn {
            Event::Replaced(server, how) => playground.control(server, how).await,
            Event::Away(server, how) => {
                playground.control(server, how).await;
                sleep(OUTAGE_DURATION).await;
                playground.control(server, "start").await;
            }
            Event::Without(server) => {
                client.run("set-unserved", NEWEST_RESOURCE).await;
                playground.control(server, "downgrade").await;
                sleep(OUTAGE_DURATION).await;
                playground.control(server, "upgrade").await;
                client.run("set-served", NEWEST_RESOURCE).await;
            }
            Event::LeaderKilled => {
                let leader = client.query("wait-leader", "-").await;
                let server = leader.strip_prefix("bridge-").expect("a bridge");
                playground.control(server, "kill").await;
                let next = client.query("wait-leader", &leader).await;
                assert_ne!(next, leader);
                playground.control(server, "start").await;
            }
        }
        client.run("wait-settled", &number.to_string()).await;
        println!("{turn:?}: settled after {:.1?}", turned.elapsed());
        let turns = u32::try_from(EVENTS.len()).expect("few");
        sleep_until(began + MIN_DURATION * number / turns).await;
    }
    let seen = client.finish().await;
    println!("{seen:#}");
    assert_eq!(seen["Violations"], Value::Array(Vec::new()));
    // Everything was in use.
    for (what, at_least) in [("Writes", 300), ("Events", 900), ("Deleted", 100)] {
        assert!(seen[what].as_u64() >= Some(at_least), "{what}");
    }
    let terms = seen["LeaderTerms"].as_object().expect("terms").values();
    let terms: u64 = terms.filter_map(Value::as_u64).sum();
    assert!(terms >= 3, "{terms} terms");
}

/// The check `upgrades` of `e2e/client-go`.
struct Client {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(playground: &Playground) -> Self {
        let mut command = playground.client_go(NAMESPACE);
        let mut child = command
            .arg("upgrades")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Informers log each watch that ends.
            .stderr(Stdio::null())
            .spawn()
            .expect("client-go starts");
        let stdout = child.stdout.take().expect("a piped output");
        Self {
            stdin: child.stdin.take().expect("a piped input"),
            lines: BufReader::new(stdout).lines(),
            child,
        }
    }

    /// Runs a command of the client to its end.
    async fn run(&mut self, command: &str, argument: &str) {
        assert_eq!(self.query(command, argument).await, argument);
    }

    /// Runs a command of the client, and returns the argument of its reply.
    async fn query(&mut self, command: &str, argument: &str) -> String {
        let line = format!("{command} {argument}\n");
        self.stdin
            .write_all(line.as_bytes())
            .await
            .expect("the client reads commands");
        let reply = self.line(command).await;
        let (repeated, argument) = reply.split_once(' ').unwrap_or((&reply, ""));
        assert_eq!(repeated, command, "{reply}");
        argument.to_owned()
    }

    async fn line(&mut self, after: &str) -> String {
        let line = timeout(COMMAND_TIMEOUT, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("no reply to {after:?}"));
        line.expect("a readable line")
            .expect("the client is running")
    }

    /// Ends the client and returns its result.
    async fn finish(mut self) -> Value {
        drop(self.stdin);
        let line = timeout(COMMAND_TIMEOUT, self.lines.next_line()).await;
        let line = line.expect("an end").expect("a readable line");
        let ended = timeout(COMMAND_TIMEOUT, self.child.wait()).await;
        assert!(ended.expect("it ends").expect("a child").success());
        serde_json::from_str(&line.expect("a result")).expect("JSON")
    }
}

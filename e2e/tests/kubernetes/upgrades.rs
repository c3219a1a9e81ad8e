//! Informers and leader election of client-go for a minute, by the bridges of a
//! playground whose servers are upgraded, downgraded, stopped and killed meanwhile.
//!
//! What is promised: no informer is told of a deletion that there was not, misses an
//! object or has one twice; nobody is told that there is no such resource while a
//! server has it, or comes back with it; never do two lead, and always somebody leads
//! again.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::Playground;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long all of it takes at least.
const MINUTE: Duration = Duration::from_mins(1);

/// For what takes seconds. The informers of client-go wait for up to a minute when
/// they have been refused often.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(3);

/// How long a server is away: long enough for everybody to notice.
const AWAY: Duration = Duration::from_millis(1500);

const NAMESPACE: &str = "upgrades";

/// Of this, only the newest version has it.
const NEWEST: &str = "mutatingadmissionpolicies";

/// What becomes of a server, by the version that it had at first.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// It is replaced at its place, and somebody else has what it had.
    Replaced(&'static str, &'static str),
    /// It goes in this way, and comes back.
    Away(&'static str, &'static str),
    /// The only one that has what is newest is replaced by one that has not, and back.
    Without(&'static str),
    /// The one behind whose bridge the leader is loses its power.
    LeaderKilled,
}

/// All of them have been everything in between, and are in the end what they were.
const TURNS: [Turn; 13] = [
    Turn::Replaced("1.34", "upgrade"),
    Turn::Away("1.36", "stop"),
    Turn::Replaced("1.28", "upgrade"),
    Turn::Away("1.34", "kill"),
    Turn::Replaced("1.28", "upgrade"),
    Turn::Replaced("1.36", "downgrade"),
    Turn::Replaced("1.36", "upgrade"),
    Turn::LeaderKilled,
    Turn::Replaced("1.28", "downgrade"),
    Turn::Replaced("1.34", "downgrade"),
    Turn::Replaced("1.28", "downgrade"),
    Turn::Away("1.36", "kill"),
    Turn::Without("1.36"),
];

#[tokio::test]
async fn informers_and_elections_go_through_a_minute_of_upgrades() {
    let playground = Playground::start().await;
    let mut client = Client::start(&playground);
    client.is("settled", "at-first").await;
    let began = Instant::now();
    for (number, turn) in (1_u32..).zip(TURNS) {
        let turned = Instant::now();
        match turn {
            Turn::Replaced(server, how) => playground.control(server, how).await,
            Turn::Away(server, how) => {
                playground.control(server, how).await;
                sleep(AWAY).await;
                playground.control(server, "start").await;
            }
            Turn::Without(server) => {
                client.is("absent", NEWEST).await;
                playground.control(server, "downgrade").await;
                sleep(AWAY).await;
                playground.control(server, "upgrade").await;
                client.is("present", NEWEST).await;
            }
            Turn::LeaderKilled => {
                let leader = client.asks("leader", "-").await;
                let server = leader.strip_prefix("bridge-").expect("a bridge");
                playground.control(server, "kill").await;
                let next = client.asks("leader", &leader).await;
                assert_ne!(next, leader);
                playground.control(server, "start").await;
            }
        }
        client.is("settled", &number.to_string()).await;
        println!("{turn:?}: settled after {:.1?}", turned.elapsed());
        let turns = u32::try_from(TURNS.len()).expect("few");
        sleep_until(began + MINUTE * number / turns).await;
    }
    let seen = client.end().await;
    println!("{seen:#}");
    assert_eq!(seen["Faults"], Value::Array(Vec::new()));
    // All of it was in use.
    for (what, at_least) in [("Writes", 300), ("Events", 900), ("Deleted", 100)] {
        assert!(seen[what].as_u64() >= Some(at_least), "{what}");
    }
    let terms = seen["Terms"].as_object().expect("terms").values();
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
            // Informers complain of each watch that ends.
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

    /// Waits until the client says that something is so.
    async fn is(&mut self, word: &str, about: &str) {
        assert_eq!(self.asks(word, about).await, about);
    }

    /// What the client says about something.
    async fn asks(&mut self, word: &str, about: &str) -> String {
        let line = format!("{word} {about}\n");
        self.stdin
            .write_all(line.as_bytes())
            .await
            .expect("it hears");
        let said = self.line(word).await;
        let (repeated, about) = said.split_once(' ').unwrap_or((&said, ""));
        assert_eq!(repeated, word, "{said}");
        about.to_owned()
    }

    async fn line(&mut self, after: &str) -> String {
        let line = timeout(COMMAND_TIMEOUT, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("no word after {after:?}"));
        line.expect("a readable line").expect("the client goes on")
    }

    /// What it has seen. Nobody writes any more then.
    async fn end(mut self) -> Value {
        drop(self.stdin);
        let line = timeout(COMMAND_TIMEOUT, self.lines.next_line()).await;
        let line = line.expect("an end").expect("a readable line");
        let ended = timeout(COMMAND_TIMEOUT, self.child.wait()).await;
        assert!(ended.expect("it ends").expect("a child").success());
        serde_json::from_str(&line.expect("what it has seen")).expect("JSON")
    }
}
